"""Frozen applications run without Python, network, PATH or a writable home.

`make test-frozen` runs these; they take minutes, and half an hour with Nuitka.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyopencl
import pytest

from clrt.freezing.contents import nuitka_options

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).with_name("similarity_app.py")
TEXTS = ["A cat sleeps on the windowsill.", "The kitten naps by the window."]
# What every Linux has, and the tools that a bare folder must not.
SYSTEM = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0")
SYSTEM += ("librt.so.1", "libutil.so.1", "libz.so.1")
# And what Nuitka leaves to it.
COMPILER = ("libgcc_s.so.1", "libstdc++.so.6")
LIBRARIES = Path("/lib/x86_64-linux-gnu")
# Which packages an application that loads compiled models does without.
UNUSED = ("onnx", "rich", "pygments")


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `model.clrt` and its PoCL programs in `programs`."""
    work = tmp_path_factory.mktemp("frozen")
    command = ["clrt-convert", "all-MiniLM-L6-v2", "-o", str(work / "model.clrt")]
    command += ["--precompile", str(work / "programs"), "--device", "pocl"]
    command += [
        f"--shape={name}=2x11" for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    _run(command, work)
    return work


@pytest.fixture(scope="session")
def expected(work: Path) -> dict[str, object]:
    """Output of the application when not frozen."""
    return _answer(_run([sys.executable, str(APP), str(work / "model.clrt"), *TEXTS], work))


def _run(command: Sequence[str], folder: Path) -> str:
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": tools, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _answer(output: str) -> dict[str, object]:
    found = json.loads(output.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def _in_bare_root(
    app: Path,
    name: str,
    model: Path,
    root: Path,
    libraries: Sequence[str] = (),
    device: str = "pocl",
) -> dict[str, object]:
    """Runs an application in a chroot with only the system's libc; returns its output."""
    for folder in ("lib64", "lib/x86_64-linux-gnu", "tmp", "home", "proc", "dev"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for library in (*SYSTEM, *libraries):
        shutil.copy(LIBRARIES / library, root / "lib/x86_64-linux-gnu" / library)
    shutil.copy(LIBRARIES / SYSTEM[0], root / "lib64" / SYSTEM[0])
    shutil.copytree(app, root / "app", symlinks=True)
    shutil.copy(model, root / "app" / "model.clrt")
    script = (
        'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && '
        'mount --bind "$0/home" "$0/home" && mount -o remount,ro,bind "$0/home" && '
        f'exec env -i HOME=/home CLRT_DEVICE={device} "$(command -v chroot)" "$0" "$@"'
    )
    inside = [f"/app/{name}", "/app/model.clrt", *TEXTS]
    command = ["unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork"]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    done = subprocess.run(
        [*command, "sh", "-c", script, str(root), *inside],
        capture_output=True,
        text=True,
        env=env,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("Warning: ") <= 1, done.stderr
    return _answer(done.stdout)


def _check(found: dict[str, object], expected: dict[str, object], *, builds: int | None) -> None:
    np.testing.assert_allclose(found["vectors"], expected["vectors"], atol=1e-6)
    assert not set(UNUSED) & set(found["modules"])  # type: ignore[call-overload]
    if builds is not None:
        assert found["builds"] == builds


def _freeze(work: Path, *options: str, settings: dict[str, object] | None = None) -> Path:
    target = work / ("one" if "--onefile" in options else "many")
    excluded = [f"--exclude-module={name}" for name in UNUSED]
    hooks = f"--additional-hooks-dir={ROOT / 'clrt' / 'freezing'}"
    _run(["pyi-makespec", f"--specpath={target}", hooks, *excluded, *options, str(APP)], work)
    spec = target / f"{APP.stem}.spec"
    text = spec.read_text(encoding="utf-8")
    assert "hooksconfig={}" in text
    named = f"hooksconfig={{'clrt': {settings or {}!r}}}"
    spec.write_text(text.replace("hooksconfig={}", named), encoding="utf-8")
    places = [f"--{kind}path={target / kind}" for kind in ("dist", "work")]
    _run(["pyinstaller", "--clean", "--noconfirm", *places, str(spec)], work)
    return target / "dist"


@pytest.mark.parametrize("kind", ["onedir", "onefile"])
def test_pyinstaller_app_compiles_with_bundled_linker(
    kind: str, work: Path, expected: dict[str, object], tmp_path: Path
) -> None:
    """PoCL compiles with the bundled linker."""
    folder = _freeze(work, f"--{kind}")
    app = folder / APP.stem if kind == "onedir" else folder
    found = _in_bare_root(app, APP.stem, work / "model.clrt", tmp_path)
    _check(found, expected, builds=None)
    assert found["builds"]


def test_bundled_programs_need_no_compiler(
    work: Path, expected: dict[str, object], tmp_path: Path
) -> None:
    folder = _freeze(work, "--onedir", f"--add-data={work / 'programs'}:clrt/shipped/programs")
    found = _in_bare_root(folder / APP.stem, APP.stem, work / "model.clrt", tmp_path)
    _check(found, expected, builds=0)


@pytest.fixture
def old_icd() -> Iterator[str]:
    """Writes an .icd file as earlier versions of clrt did; yields the library path in it."""
    named = "/home/builder/libintelocl.so"
    path = Path(pyopencl.__file__).parent / ".libs" / "intel-cpu.icd"
    before = path.read_bytes() if path.exists() else None
    path.write_text(f"{named}\n", encoding="utf-8")
    yield named
    path.unlink(missing_ok=True)
    if before is not None:
        path.write_bytes(before)


def _build_planted_library(library: Path) -> None:
    """Builds a library that prints a message and exits when loaded."""
    library.parent.mkdir(parents=True)
    source = library.with_suffix(".c")
    code = (
        '__attribute__((constructor)) static void f(void) { write(2, "planted\\n", 8); _exit(9); }'
    )
    source.write_text(f"#include <unistd.h>\n{code}\n", encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)


def test_pyinstaller_app_loads_only_its_own_libraries(
    work: Path, expected: dict[str, object], tmp_path: Path, old_icd: str
) -> None:
    """A library planted at the path in the build machine's .icd file is not loaded."""
    _build_planted_library(tmp_path / old_icd.lstrip("/"))
    app = _freeze(work, "--onedir", settings={"intel": True, "cpus": ["avx2", "avx512"]}) / APP.stem
    sizes = {p.name: p.stat().st_size for p in app.rglob("*") if not p.is_symlink() and p.is_file()}
    assert sum(sizes.values()) < 700e6, sorted(sizes.items(), key=lambda item: item[1])[-20:]
    for icd_file in app.rglob("*.icd"):
        assert (icd_file.parent / icd_file.read_text().strip()).is_file()
    found = _in_bare_root(app, APP.stem, work / "model.clrt", tmp_path, device="intel")
    np.testing.assert_allclose(found["vectors"], expected["vectors"], atol=1e-5)
    assert any("Intel" in platform for platform in found["platforms"])  # type: ignore[attr-defined]


def test_nuitka_app_runs_bundled_programs(
    work: Path, expected: dict[str, object], tmp_path: Path
) -> None:
    options = [*nuitka_options(), f"--include-data-dir={work / 'programs'}=clrt/shipped/programs"]
    unused = f"--nofollow-import-to={','.join(UNUSED)}"
    command = [sys.executable, "-m", "nuitka", "--standalone", "--assume-yes-for-downloads"]
    _run([*command, f"--output-dir={work / 'nuitka'}", unused, *options, str(APP)], work)
    app = work / "nuitka" / f"{APP.stem}.dist"
    found = _in_bare_root(app, f"{APP.stem}.bin", work / "model.clrt", tmp_path, COMPILER)
    _check(found, expected, builds=0)
