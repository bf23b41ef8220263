"""Measures install size, import time and memory left behind by a model."""

from __future__ import annotations

import gc
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from .results import ImportRow, InstallRow, LeftRow
from .runtimes import ModelFiles, Runtime, make_feeds
from .turns import call_apart

_ROOT = Path(__file__).resolve().parents[2]
# Wheels that are taken before the index's: the small PoCL of `make pocl-wheel`.
_WHEELS = _ROOT / "build" / "wheels"
_EXTRAS = {"core": "", "core, PoCL": "[pocl]", "all": "[all]"}
_SMALL = "core, small PoCL"
# Those that come with every environment.
_NOT_OURS = ("pip", "setuptools", "pkg_resources")
_LARGEST = 6
# In which file systems give room.
_BLOCK_BYTES = 4096
_IMPORTS = 10
_CYCLES = 2


def measure_install() -> list[InstallRow]:
    """A row for each set of extras, and for PoCL's small wheel where it was made."""
    cases = dict(_EXTRAS)
    if _WHEELS.is_dir():
        cases[_SMALL] = "[pocl]"
    labels = track(list(cases), "install", console=Console(stderr=True))
    return [_install(label, cases[label]) for label in labels]


def _install(label: str, extras: str) -> InstallRow:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = Path(folder, "Scripts" if os.name == "nt" else "bin", "python")
        links = ["--find-links", str(_WHEELS)] if label == _SMALL else []
        command = [str(python), "-m", "pip", "install", "--quiet", *links, f"{_ROOT}{extras}"]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        sizes = _sizes(next(Path(folder).rglob("site-packages")))
    return InstallRow(label, sum(sizes.values()), sizes.most_common(_LARGEST))


def _sizes(folder: Path) -> Counter[str]:
    """MiB on disk by package, with what it keeps beside it (`numpy.libs`, `numpy-2.0.dist-info`).

    PoCL's library lies in pyopencl's folder, and counts as PoCL's.
    """
    sizes: Counter[str] = Counter()
    for file in folder.rglob("*"):
        if file.is_file():
            top = re.split(r"[.-]", file.relative_to(folder).parts[0])[0]
            name = "pocl_binary_distribution" if file.name.startswith("libpocl") else top
            sizes[name] += -(-file.lstat().st_size // _BLOCK_BYTES) * _BLOCK_BYTES
    return Counter({n: size / 2**20 for n, size in sizes.items() if n not in _NOT_OURS})


def measure_import() -> ImportRow:
    """Returns the median time to import clrt, relative to a process that imports nothing."""
    empty, imports = (
        statistics.median(_process_s(code) for _ in range(_IMPORTS)) for code in ("", "import clrt")
    )
    code = "import sys; old = set(sys.modules); import clrt; print(len(sys.modules.keys() - old))"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return ImportRow((imports - empty) * 1e3, int(modules.stdout))


def _process_s(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def measure_left(
    files: ModelFiles, runtimes: Sequence[Runtime], shape: tuple[int, int]
) -> list[LeftRow]:
    """Measures resident memory before a model is loaded, while it runs, and after it is closed."""
    found = []
    for runtime in runtimes:
        for cycle, numbers in enumerate(call_apart(_left, runtime, files, shape), start=1):
            found.append(LeftRow(runtime.name, cycle, *(n / 2**20 for n in numbers)))
    return found


def _left(
    runtime: Runtime, files: ModelFiles, shape: tuple[int, int]
) -> list[tuple[int, int, int]]:
    """Resident bytes before, at the end of a run, and after `close`, for each cycle."""
    import onnx  # noqa: F401  what an importer loads is no part of a model

    import clrt

    clrt.load, clrt.devices()
    found = []
    for _ in range(_CYCLES):
        before = _resident_bytes()
        model = clrt.load(files.source, device=runtime.device)
        feeds = make_feeds([s.name for s in model.inputs], *shape)
        model.run(feeds)
        most = _resident_bytes()
        model.close()
        del model  # its graph keeps constants that passes made
        gc.collect()
        found.append((before, most, _resident_bytes()))
    return found


def _resident_bytes() -> int:
    found = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text("utf-8"))
    assert found is not None
    return int(found[1]) << 10
