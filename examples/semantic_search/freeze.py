"""Makes a folder with the program and all that it needs: python -m examples.semantic_search.freeze.

It runs where there is no Python, no compiler and no network; the model lies in it as one file, and
so do the programs that OpenCL has compiled for the devices of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = "semantic-search"
# What clrt imports for other purposes than to run a compiled model of text.
_LEFT_OUT = ("IPython", "huggingface_hub", "matplotlib", "onnx", "onnxruntime", "rich", "tkinter")
_LEFT_OUT += ("torch", "typer", "PIL", "cryptography", "numpy.f2py", "setuptools")
# Batches and lengths of texts for which kernels are chosen.
_SHAPES = ("1x16", "16x32", "16x128")
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def main() -> None:
    """Makes dist/semantic-search."""
    import PyInstaller.__main__

    from clrt.models.locate import find_model

    from .encoder import DEFAULT_MODEL

    work = ROOT / "build" / "search-app"
    model = work / f"{DEFAULT_MODEL}.clrt"
    work.mkdir(parents=True, exist_ok=True)
    programs = work / "programs"
    shutil.rmtree(programs, ignore_errors=True)
    _convert(str(find_model(DEFAULT_MODEL)), model, programs)
    launcher = work / "launcher.py"
    launcher.write_text(
        "import sys\nfrom examples.semantic_search.ui.app import main\nsys.exit(main())\n"
    )
    PyInstaller.__main__.run(
        [
            *("--name", NAME, "--noconfirm", "--clean", "--windowed", "--log-level", "WARN"),
            *("--distpath", str(ROOT / "dist"), "--workpath", str(work), "--specpath", str(work)),
            *("--paths", str(ROOT), "--hidden-import", "sqlite_vec"),
            *(f"--add-binary={file}{os.pathsep}sqlite_vec" for file in _extension()),
            *("--add-data", f"{model}{os.pathsep}."),
            *("--add-data", f"{programs}{os.pathsep}clrt/shipped/programs"),
            *(f"--exclude-module={name}" for name in _LEFT_OUT),
            str(launcher),
        ]
    )


def _extension() -> Iterator[Path]:
    """The library of sqlite-vec, which SQLite loads and nothing imports."""
    from .store import vector_extension

    place = Path(vector_extension())
    return place.parent.glob(f"{place.name}.*")


def _convert(source: str, model: Path, programs: Path) -> None:
    """Writes the model as one file, and what PoCL makes of its kernels for CPUs as this one."""
    command = [str(Path(sys.executable).with_name("clrt-convert")), source, "--output", str(model)]
    command += ["--precision", "float16", "--precompile", str(programs), "--device", "pocl"]
    command += [f"--shape={name}={shape}" for shape in _SHAPES for name in _INPUTS]
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
