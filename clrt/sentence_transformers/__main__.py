"""Runs a program that uses sentence-transformers on clrt.

`python -m clrt.sentence_transformers PROGRAM …` or `… -m MODULE …`
"""

from __future__ import annotations

import os
import runpy
import sys

from clrt.sentence_transformers import install


def main(arguments: list[str]) -> None:
    """Runs a Python program for which clrt replaces sentence-transformers.

    Args:
        arguments: Python file, or "-m" and a module; then the program's own arguments.
    """
    if not arguments or arguments == ["-m"]:
        raise SystemExit("usage: python -m clrt.sentence_transformers (PROGRAM | -m MODULE) …")
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
