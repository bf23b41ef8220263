"""Builds what a release would upload, and tries it in an empty environment of each Python here.

    make wheels

Interpreters are looked for on the PATH, below pyenv's folder and where Debian puts them. In each
environment the wheel is installed with its extra `all`, and a model runs on the devices there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ROOT = Path(__file__).resolve().parents[1]
# Run outside the checkout: what is imported is what was installed.
PROGRAM = """
import numpy as np
import onnx.parser
import clrt
text = '<ir_version: 8, opset_import: ["" : 17]> n (float[n] x) => (float[n] y) {y = Neg(x)}'
with clrt.load(onnx.parser.parse_model(text)) as model:
    assert model.run({"x": np.ones(3, np.float32)})["y"].tolist() == [-1, -1, -1]
    print(f"clrt {clrt.__version__} runs on {model.device}")
"""


def main(target: Path) -> int:
    """Prints a line for each Python; 1 if one of those that are here fails."""
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for made in sorted(target.iterdir()):
        print(f"{made.name}: {made.stat().st_size / 2**20:.1f} MiB", flush=True)
    (wheel,) = target.resolve().glob("*.whl")
    failed = 0
    for version in VERSIONS:
        python = find_python(version)
        if python is None:
            print(f"Python {version}: not here", flush=True)
            continue
        said, is_good = try_wheel(python, wheel)
        print(f"Python {version}, {python}: {said}", flush=True)
        failed |= not is_good
    return failed


def find_python(version: str) -> str | None:
    """Returns an interpreter of a version that runs, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [str(p) for p in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    named = shutil.which(f"python{version}")
    for path in [*paths, *([named] if named else [])]:
        shown = subprocess.run([path, "--version"], capture_output=True, text=True)
        if shown.returncode == 0 and shown.stdout.startswith(f"Python {version}."):
            return path
    return None


def try_wheel(python: str, wheel: Path) -> tuple[str, bool]:
    """Returns the last line of what was said, and whether all went well."""
    with tempfile.TemporaryDirectory() as folder:
        own = str(Path(folder, "bin", "python"))
        commands = (
            [python, "-m", "venv", folder],
            [own, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", f"{wheel}[all]"],
            [own, "-c", PROGRAM],
        )
        for command in commands:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                return (done.stderr.strip().splitlines() or ["no message"])[-1], False
    return done.stdout.strip(), True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
