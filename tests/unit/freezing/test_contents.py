"""What freezing tools are told to include is there and is all of it."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import clrt.freezing
from clrt.freezing.contents import linker, linker_libraries, nuitka_options, pocl_files

ROOT = Path(clrt.freezing.__file__).resolve().parents[2]


class _HookApi:
    """Keeps what a hook adds, by the path in the bundle."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.analysis = self
        self.hooksconfig = {"clrt": settings}
        self.added: dict[str, Path] = {}

    def add_datas(self, entries: list[tuple[str, str]]) -> None:
        self.added |= {f"{to}/{Path(path).name}": Path(path) for path, to in entries}

    add_binaries = add_datas


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    path = Path(clrt.freezing.get_hook_dirs()[0]) / "hook-clrt.py"
    spec = importlib.util.spec_from_file_location("hook_clrt", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _added(hook: ModuleType, folder: Path, **settings: Any) -> dict[str, Path]:
    hook.CONF["workpath"] = str(folder)
    api = _HookApi(settings)
    hook.hook(api)
    return api.added


def _modules(folder: str) -> set[str]:
    files = (p.relative_to(ROOT).with_suffix("") for p in (ROOT / folder).rglob("*.py"))
    return {".".join(f.parts).removesuffix(".__init__") for f in files}


def test_pyinstaller_finds_the_hook() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    group = '[project.entry-points.pyinstaller40]\nhook-dirs = "clrt.freezing:get_hook_dirs"'
    assert group in project
    (folder,) = clrt.freezing.get_hook_dirs()
    assert (Path(folder) / "hook-clrt.py").is_file()


def test_the_hook_names_every_module_that_a_folder_is_searched_for(hook: ModuleType) -> None:
    wanted = _modules("clrt/ops") | _modules("clrt/decompositions")
    assert wanted | set(clrt._HOMES.values()) <= set(hook.hiddenimports)


def test_the_hook_takes_every_file_that_is_no_module(hook: ModuleType) -> None:
    folders = (ROOT / "clrt", ROOT / "kernels_cl")
    files = (p for f in folders for p in f.rglob("*.*") if p.suffix not in (".py", ".pyc"))
    assert {p.resolve() for p in files} <= {Path(path).resolve() for path, _ in hook.datas}


def test_the_hook_brings_pocl_and_a_linker(hook: ModuleType, tmp_path: Path) -> None:
    added = _added(hook, tmp_path)
    assert added.keys() >= {f"{to}/{path.name}" for path, to in pocl_files()}
    names = {Path(place).name.partition("-")[0] for place in added}
    assert {"libpocl", "libhwloc", "pocl.icd", "ld", "opencl"} <= names
    shown = subprocess.run([added["clrt/shipped/linker/ld"], "--version"], capture_output=True)
    assert b"ld" in shown.stdout


def test_settings_leave_out_what_is_not_wanted(hook: ModuleType, tmp_path: Path) -> None:
    added = _added(hook, tmp_path, linker=False, cpus=["avx2"])
    assert [p for p in added if p.endswith(".bc")] == [
        "pocl_binary_distribution/.libs/share/pocl/kernel-x86_64-unknown-linux-gnu-avx2.bc"
    ]
    assert not any("linker" in place for place in added)


def test_nuitka_is_told_of_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clrt.freezing"], capture_output=True, text=True, check=True
    )
    options = shlex.split(done.stdout)
    assert options == nuitka_options()
    sources = [o.partition("=")[2].rpartition("=")[0] for o in options if "-data-files=" in o]
    ld = linker()
    assert ld is not None and str(ld) in sources
    assert len(sources) == len(pocl_files()) + 1 + len(linker_libraries(ld))
    assert all(Path(s).is_file() for s in sources)


def test_no_linker_is_named_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert linker() is not None
    monkeypatch.setenv("PATH", "")
    assert linker() is None
