"""Files and modules that freezing tools are told to include exist and are complete."""

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
import clrt.text
import clrt.vision
from clrt.errors import InputError
from clrt.freezing.contents import (
    intel_files,
    linker,
    linker_libraries,
    named_modules,
    nuitka_options,
    pocl_files,
)
from clrt.runtime.opencl import icd_loader

ROOT = Path(clrt.freezing.__file__).resolve().parents[2]


class _HookApi:
    """PyInstaller hook API that records added files by their path in the bundle."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.analysis = self
        self.hooksconfig = {"clrt": settings}
        self.added: dict[str, Path] = {}

    def add_datas(self, entries: list[tuple[str, str]]) -> None:
        self.added |= {f"{to}/{Path(path).name}": Path(path) for path, to in entries}

    add_binaries = add_datas


def _load_hook(name: str) -> ModuleType:
    path = Path(clrt.freezing.get_hook_dirs()[0]) / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    return _load_hook("hook-clrt")


def _added(hook: ModuleType, folder: Path, **settings: Any) -> dict[str, Path]:
    hook.CONF["workpath"] = str(folder)
    api = _HookApi(settings)
    hook.hook(api)
    return api.added


def _modules(folder: str) -> set[str]:
    files = (p.relative_to(ROOT).with_suffix("") for p in (ROOT / folder).rglob("*.py"))
    return {".".join(f.parts).removesuffix(".__init__") for f in files}


def test_pyinstaller_finds_hook() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    group = '[project.entry-points.pyinstaller40]\nhook-dirs = "clrt.freezing:get_hook_dirs"'
    assert group in project
    (folder,) = clrt.freezing.get_hook_dirs()
    assert (Path(folder) / "hook-clrt.py").is_file()


def test_hook_lists_dynamically_imported_modules(hook: ModuleType) -> None:
    wanted = _modules("clrt/ops")
    assert wanted | set(named_modules()) <= set(hook.hiddenimports)


def test_hook_includes_all_data_files(hook: ModuleType) -> None:
    folders = (ROOT / "clrt", ROOT / "kernels_cl")
    files = (p for f in folders for p in f.rglob("*.*") if p.suffix not in (".py", ".pyc"))
    assert {p.resolve() for p in files} <= {Path(path).resolve() for path, _ in hook.datas}


def test_hook_bundles_pocl_and_linker(hook: ModuleType, tmp_path: Path) -> None:
    added = _added(hook, tmp_path)
    assert added.keys() >= {f"{to}/{path.name}" for path, to in pocl_files()}
    names = {Path(place).name.partition("-")[0] for place in added}
    assert {"libpocl", "libhwloc", "pocl.icd", "ld", "opencl"} <= names
    shown = subprocess.run([added["clrt/shipped/linker/ld"], "--version"], capture_output=True)
    assert b"ld" in shown.stdout


def test_hook_settings_omit_linker_and_unlisted_cpus(hook: ModuleType, tmp_path: Path) -> None:
    added = _added(hook, tmp_path, linker=False, cpus=["avx2"])
    assert [p for p in added if p.endswith(".bc")] == [
        "pocl_binary_distribution/.libs/share/pocl/kernel-x86_64-unknown-linux-gnu-avx2.bc"
    ]
    assert not any("linker" in place for place in added)


def test_build_machine_icd_files_are_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pyopencl"
    (package / ".libs").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / ".libs" / "intel-cpu.icd").write_text("/home/builder/libintelocl.so\n")
    (package / "header.h").touch()
    monkeypatch.setattr("PyInstaller.utils.hooks.get_all_package_paths", lambda _: [str(package)])
    taken = {Path(path).name for path, _ in _load_hook("hook-pyopencl").datas}
    assert "header.h" in taken and "intel-cpu.icd" not in taken
    named = {p.read_text().strip(): p for p, _ in pocl_files() if p.suffix == ".icd"}
    assert all((icd_file.parent / name).is_file() for name, icd_file in named.items())
    patterns = [o for o in nuitka_options() if o.startswith("--include-package-data=pyopencl")]
    assert patterns and all(o.endswith((":*.cl", ":*.h")) for o in patterns)


@pytest.mark.skipif(icd_loader.intel_library() is None, reason="Intel's runtime is not installed")
def test_intel_runtime_is_bundled_on_request(hook: ModuleType, tmp_path: Path) -> None:
    places = set(_added(hook, tmp_path, intel=True)) - set(_added(hook, tmp_path))
    names = {Path(place).name for place in places}
    assert {"libintelocl.so", "libtbb.so.12", "cl.cfg", "EULA.txt"} <= names
    assert all(f"clbltfn{kind}.rtl" in names for kind in ("h8", "e9", "l9", "z0", "z1"))
    slim = intel_files(["avx2", "avx512"])
    assert {p.name[7:9] for p, _ in slim if p.name.startswith("clbltfn")} == {
        "l9",
        "z0",
        "z1",
        "sh",
    }
    assert sum(p.stat().st_size for p, _ in slim) < 420e6
    options = nuitka_options(intel=True)
    assert f"--include-data-files={icd_loader.intel_library()}=libintelocl.so" in options


def test_missing_intel_runtime_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clrt.freezing.contents.intel_library", lambda: None)
    with pytest.raises(InputError, match="pip install intel-opencl-rt"):
        intel_files()


def test_nuitka_options_include_pocl_and_linker() -> None:
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


def test_linker_search_without_path_returns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert linker() is not None
    monkeypatch.setenv("PATH", "")
    assert linker() is None


def test_named_modules_are_those_of_lazy_names_and_recipes() -> None:
    found = set(named_modules())
    assert found >= set(clrt._HOMES.values()) | set(clrt.text._HOMES.values())
    assert found >= {*clrt.vision._HOMES.values(), "clrt.text.pooling_graph", "clrt.text.splade"}
    assert not any(name.startswith(("clrt.cli", "clrt.ray")) for name in found)


def test_modules_are_imported_by_whole_names_only() -> None:
    """Freezing tools do not find a name that code puts together."""
    root = Path(clrt.__file__).parent
    adapters = {"cli", "onnxruntime", "sentence_transformers", "ray", "integrations"}
    parts = [
        path
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in adapters
        and "import_module(f" in path.read_text("utf-8")
    ]
    assert not parts
