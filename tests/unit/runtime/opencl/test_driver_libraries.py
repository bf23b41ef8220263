"""Libraries of drivers: mapped ahead of their use, and their code pages dropped."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from clrt.runtime.opencl.driver_libraries import drop_code, mapped_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def _loaded(path: Path) -> ctypes.CDLL:
    """Loads a library of more than 1 MiB and touches all of its pages."""
    spec = find_spec("numpy._core._multiarray_umath") or find_spec("numpy.core._multiarray_umath")
    assert spec is not None and spec.origin is not None
    shutil.copy(spec.origin, path)
    library = ctypes.CDLL(str(path))
    for line in Path("/proc/self/maps").read_text("utf-8").splitlines():
        if line.endswith(str(path)) and " r" in line:
            start, end = (int(x, 16) for x in line.split()[0].split("-"))
            ctypes.string_at(start, end - start)
    return library


def _resident_kib(path: Path, *, writable: bool) -> int:
    """Returns resident KiB of a file's mappings."""
    lines = iter(Path("/proc/self/smaps").read_text("utf-8").splitlines())
    return sum(
        int(next(x for x in lines if x.startswith("Rss:")).split()[1])
        for line in lines
        if line.endswith(str(path)) and (line.split()[1][1] == "w") == writable
    )


def test_read_only_pages_of_new_libraries_are_dropped(tmp_path: Path) -> None:
    old, new = tmp_path / "old.so", tmp_path / "new.so"
    _loaded(old)
    known = mapped_files()
    library = _loaded(new)
    assert bytes(old) in known and bytes(new) not in known
    before = [_resident_kib(p, writable=w) for p in (old, new) for w in (False, True)]
    assert min(before) > 0 and before[2] > 1024
    drop_code(known)
    after = [_resident_kib(p, writable=w) for p in (old, new) for w in (False, True)]
    assert after[0] == before[0] and after[3] >= before[3]
    assert after[2] < before[2] / 4  # what the linker protects once it has written there stays
    assert hasattr(library, "PyInit__multiarray_umath")


def test_drop_code_without_known_files_keeps_resident_pages(tmp_path: Path) -> None:
    path = tmp_path / "new.so"
    library = _loaded(path)
    before = _resident_kib(path, writable=False)
    drop_code(frozenset())
    assert _resident_kib(path, writable=False) == before > 0
    del library


# Prints the resident KiB of read-only mappings by library, once the devices are listed.
_SCRIPT = """
import json, re
import clrt

clrt.load  # maps libraries ahead
from clrt.runtime.opencl.devices import devices, start_drivers

start_drivers()
devices()
rows = re.findall(
    r" r-[x-]p .*?(/.*)\\n(?:[A-Z].*\\n)*?Rss: +(\\d+) kB", open("/proc/self/smaps").read()
)
print(json.dumps({file: sum(int(n) for f, n in rows if f == file) for file, _ in rows}))
"""


def test_code_of_drivers_is_dropped_once_they_are_loaded() -> None:
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=100, check=True
    )
    drivers = ("libpocl", "liboclgrind", "libcommon_clang", "libintelocl")
    resident = {
        Path(file): kib << 10
        for file, kib in json.loads(found.stdout).items()
        if Path(file).name.startswith(drivers)
    }
    assert resident
    # Linking leaves a third resident.
    assert sum(resident.values()) < sum(f.stat().st_size for f in resident) / 8
