"""PoCL's linker, of the system or the application, and libraries without gcc."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from clrt.runtime.opencl import linker, pocl
from clrt.runtime.opencl.linker import has_linker

LD = shutil.which("ld") or ""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Removes linkers and libraries from the environment; returns the application's folder."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("LIBRARY_PATH", "")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(linker, "SHIPPED", tmp_path)
    return tmp_path


def test_linker_is_missing_without_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_linker()
    monkeypatch.delenv("PATH")  # Python's `which` would look in /usr/bin
    assert not has_linker()


def test_shipped_linker_is_added_to_path_once(bare: Path) -> None:
    (bare / "linker").mkdir()
    shutil.copy(LD, bare / "linker" / "ld")
    assert has_linker() and has_linker()
    assert os.environ["PATH"] == os.environ["LD_LIBRARY_PATH"] == str(bare / "linker")


def test_system_linker_precedes_shipped_linker(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "linker").mkdir()
    shutil.copy(LD, bare / "linker" / "ld")
    monkeypatch.setenv("PATH", str(Path(LD).parent))
    assert has_linker()
    assert os.environ["PATH"] == str(Path(LD).parent)


def test_linker_works_without_gcc_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the linker like PoCL, with the library path that clrt sets."""
    (tmp_path / "data").write_text("x")
    run = [LD, "-r", "-b", "binary", "-o", "x.o", "data"]
    subprocess.run(run, cwd=tmp_path, check=True)
    link = [LD, "-shared", "-nostdlib", "-o", "x.so", "x.o", "-lgcc", "-lgcc_s", "-lc"]
    assert subprocess.run(link, cwd=tmp_path, capture_output=True).returncode != 0
    monkeypatch.setenv("PATH", str(Path(LD).parent))
    assert has_linker()
    folders = [f"-L{f}" for f in os.environ["LIBRARY_PATH"].split(os.pathsep)]
    subprocess.run([*link, *folders], cwd=tmp_path, check=True)
    assert (tmp_path / "x.so").exists()


@pytest.mark.parametrize(
    ("flags", "there", "lacks"),
    [
        ("avx avx2 avx512f", {"avx2", "avx512"}, False),
        ("avx avx2", {"avx2", "avx512"}, False),
        ("avx avx2 avx512f", {"avx2"}, True),
        ("avx f16c", {"avx2", "avx512"}, True),
        ("avx f16c", pocl._OLD_BUILTINS, False),
        ("avx", set(), False),
        ("", {"avx2"}, False),
    ],
)
def test_missing_pocl_builtins_for_cpu_are_detected(
    flags: str, there: set[str], lacks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "pocl_binary_distribution" / ".libs" / "share" / "pocl"
    shared.mkdir(parents=True)
    for kind in there:
        (shared / f"kernel-x86_64-unknown-linux-gnu-{kind}.bc").touch()

    class Spec:
        origin = str(tmp_path / "pyopencl" / "__init__.py")

    monkeypatch.setattr(pocl.importlib.util, "find_spec", lambda name: Spec)
    monkeypatch.setattr(pocl, "_cpu_flags", lambda: set(flags.split()))
    assert pocl.lacks_builtins() == lacks
