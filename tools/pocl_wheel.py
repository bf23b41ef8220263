"""Makes a small wheel of PoCL from the one that is installed: 99 MiB instead of 158.

    python tools/pocl_wheel.py build/wheels
    pip install --find-links build/wheels ".[pocl]"

It leaves out what only debuggers read, and PoCL's functions for CPUs without AVX2 (Intel's before
2013, AMD's before 2015), on which clrt then refuses PoCL. pip prefers its version, 3.0+small.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

from clrt.freezing.contents import POCL, pocl_files
from clrt.freezing.elf import without_symbols

_CPUS = ("avx2", "avx512")
_LOCAL = "+small"
_METADATA = ("METADATA", "WHEEL", "top_level.txt")


def contents() -> dict[str, bytes]:
    """The files of the wheel but for its record."""
    found = distribution(POCL)
    name = POCL.replace("-", "_")
    info = f"{name}-{found.version}{_LOCAL}.dist-info"
    files = {f"{info}/{part}": (found.read_text(part) or "").encode() for part in _METADATA}
    version = f"Version: {found.version}"
    files[f"{info}/METADATA"] = files[f"{info}/METADATA"].replace(
        version.encode(), (version + _LOCAL).encode()
    )
    package = found.locate_file(f"{name}/__init__.py")
    files[f"{name}/__init__.py"] = Path(str(package)).read_bytes()
    for path, folder in pocl_files(_CPUS):
        data = path.read_bytes()
        files[f"{folder}/{path.name}"] = without_symbols(data)
    return files


def write(folder: Path) -> Path:
    """Writes the wheel into a folder."""
    files = contents()
    info = next(name for name in files if name.endswith("/WHEEL")).partition("/")[0]
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    lines = str(files[f"{info}/WHEEL"], "utf-8").splitlines()
    tag = next(t.removeprefix("Tag: ") for t in lines if t.startswith("Tag: py3-"))
    target = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return target


def _digest(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return str(digest.rstrip(b"="), "ascii")


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
