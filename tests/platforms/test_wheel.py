"""Wheel: platform tag, contents, and requirements per operating system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[2]
# Of each system what markers of requirements ask for: sys_platform, platform_machine.
SYSTEMS = {
    "Linux": ("linux", "x86_64"),
    "Linux for Arm": ("linux", "aarch64"),
    "Windows": ("win32", "AMD64"),
    "macOS": ("darwin", "arm64"),
    "macOS on Intel": ("darwin", "x86_64"),
}
# Packages that have wheels for few systems.
ONLY_ON = {
    "pocl": {"Linux"},
    "oclgrind": {"Linux"},
    "intel-opencl-rt": {"Linux", "Windows"},
    "intel-cmplr-lib-rt": {"Linux", "Windows"},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (found,) = folder.iterdir()
    return found


def test_wheel_is_platform_independent(wheel: Path) -> None:
    name, _, _, tags = parse_wheel_filename(wheel.name)
    assert name == "clrt"
    assert {str(tag) for tag in tags} == {"py3-none-any"}


def test_wheel_contains_all_package_files(wheel: Path) -> None:
    held = {n for n in ZipFile(wheel).namelist() if ".dist-info/" not in n}
    there = {
        path.relative_to(ROOT).as_posix()
        for folder in ("clrt", "kernels_cl")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert held == there
    assert {
        "kernels_cl/common/math.clh",
        "clrt/py.typed",
        "clrt/runtime/profiling/page.html",
    } <= held


@pytest.mark.parametrize("system", SYSTEMS)
def test_wheel_markers_select_requirements_of_each_platform(wheel: Path, system: str) -> None:
    """`make check-wheels` checks the same against the package index."""
    with ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(name))
    platform, machine = SYSTEMS[system]
    asked: set[str] = set()
    for extra in ("", *(metadata.provides_extra or ())):
        environment = {"sys_platform": platform, "platform_machine": machine, "extra": extra}
        for requirement in metadata.requires_dist or ():
            if requirement.marker is None or requirement.marker.evaluate(environment):
                asked |= {requirement.name, *requirement.extras}
    assert {"numpy", "onnx", "pyopencl"} <= asked
    for package, systems in ONLY_ON.items():
        assert (package in asked) == (system in systems), package
