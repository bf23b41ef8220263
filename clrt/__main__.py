"""`python -m clrt`: the command `clrt`, where the folder of scripts is not on the path."""

from clrt.cli import app

if __name__ == "__main__":
    app(prog_name="python -m clrt")
