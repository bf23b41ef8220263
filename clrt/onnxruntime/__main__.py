"""Runs a program written for ONNX Runtime on clrt.

python -m clrt.onnxruntime PROGRAM [ARGUMENT …]
python -m clrt.onnxruntime -m MODULE [ARGUMENT …]
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from clrt.onnxruntime.replacement import install


def main(arguments: list[str]) -> None:
    """Runs a program, or a module with `-m`, with clrt in place of ONNX Runtime.

    Args:
        arguments: Path of the program, or "-m" and the name of the module; then its arguments.

    Raises:
        SystemExit: No program is named, or help is requested.
    """
    is_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if is_module else arguments
    if not rest or rest[0] in ("-h", "--help"):
        print(__doc__)
        raise SystemExit(0 if rest else 2)
    install()
    sys.argv = rest
    if is_module:
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(rest[0]).resolve().parent)
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
