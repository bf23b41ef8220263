"""Intel's CPU runtime is found without an .icd file, and no other library is loaded instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clrt.runtime.opencl import icd_loader

_NO_INTEL = icd_loader.intel_library() is None
# Shows the platforms where pyopencl's folder of .icd files is another one.
_SHOW = """
import os, sys, pyopencl
os.environ["PYOPENCL_HOME"] = sys.argv[1]
import clrt
from clrt.runtime.opencl.icd_loader import load_failure
print([d.platform for d in clrt.devices()], load_failure())
"""


def _platforms(home: Path, **variables: str) -> str:
    env = os.environ | {"OCL_ICD_VENDORS": ""} | variables
    done = subprocess.run(
        [sys.executable, "-c", _SHOW, str(home)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(_NO_INTEL, reason="Intel's runtime is not installed")
@pytest.mark.skipif(sys.platform != "linux", reason="the loader of Linux")
def test_intel_runtime_needs_no_icd_file(tmp_path: Path) -> None:
    assert "Intel" in _platforms(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="the loader of Linux")
def test_icd_vendors_variable_hides_intel_runtime(tmp_path: Path) -> None:
    assert "Intel" not in _platforms(tmp_path, OCL_ICD_VENDORS=os.devnull)


@pytest.mark.parametrize(("named", "kept"), [("ours", True), ("/tmp/planted.so", False)])
def test_old_icd_file_of_other_library_is_removed(
    named: str, kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(icd_loader, "intel_library", lambda: Path("ours"))
    written = tmp_path / ".libs" / "intel-cpu.icd"
    icd_loader.remove_old_icd(tmp_path)
    written.parent.mkdir()
    written.write_text(f"{named}\n")
    icd_loader.remove_old_icd(tmp_path)
    assert written.exists() == kept


@pytest.mark.skipif(sys.platform != "linux", reason="needs a library without OpenCL")
def test_library_without_opencl_entry_point_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(icd_loader, "intel_library", lambda: Path("libm.so.6"))
    assert "clGetExtensionFunctionAddress" in icd_loader.load_failure()
