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
_WARM_UP = """
import sys
from examples.semantic_search.encoder import Encoder
from examples.semantic_search.index import BATCH
encoder = Encoder(sys.argv[1])
for words in (4, 100):
    encoder.encode_passages(["word " * words] * BATCH)
encoder.close()
"""


def main() -> None:
    """Makes dist/semantic-search."""
    import PyInstaller.__main__

    from clrt.text.locate import find_model

    from .encoder import DEFAULT_MODEL

    work = ROOT / "build" / "search-app"
    model = work / f"{DEFAULT_MODEL}.clrt"
    work.mkdir(parents=True, exist_ok=True)
    convert = Path(sys.executable).with_name("clrt-convert")
    source = str(find_model(DEFAULT_MODEL))
    _run(str(convert), source, "--precision", "float16", "--output", str(model))
    programs = _compiled(model, work / "programs")
    launcher = work / "launcher.py"
    launcher.write_text(
        "import sys\nfrom examples.semantic_search.ui.app import main\nsys.exit(main())\n"
    )
    PyInstaller.__main__.run(
        [
            *("--name", NAME, "--noconfirm", "--clean", "--windowed", "--log-level", "WARN"),
            *("--distpath", str(ROOT / "dist"), "--workpath", str(work), "--specpath", str(work)),
            *("--paths", str(ROOT)),
            *(f"--add-binary={file}{os.pathsep}sqlite_vec" for file in _extension()),
            *("--add-data", f"{model}{os.pathsep}."),
            *("--add-data", f"{programs}{os.pathsep}clrt/shipped/programs"),
            *(f"--exclude-module={name}" for name in _LEFT_OUT),
            str(launcher),
        ]
    )


def _extension() -> Iterator[Path]:
    """The library of sqlite-vec, which SQLite loads and nothing imports."""
    import sqlite_vec

    place = Path(sqlite_vec.loadable_path())  # without its suffix
    return place.parent.glob(f"{place.name}.*")


def _compiled(model: Path, folder: Path) -> Path:
    """The programs that this machine's devices run for the model, as clrt's cache keeps them."""
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-c", _WARM_UP, str(model), CLRT_CACHE_DIR=str(folder))
    return folder


def _run(*command: str, **environment: str) -> None:
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)


if __name__ == "__main__":
    main()
