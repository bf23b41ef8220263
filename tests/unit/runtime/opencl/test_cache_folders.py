"""clrt runs with one warning if no user folder is writable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from clrt.runtime.opencl import cache_folders
from clrt.runtime.opencl.cache_folders import prepare_pocl_cache, why_unusable
from tests.harness import quick_device

_PROGRAM = """
import sys
import onnx.parser
import clrt
from clrt.runtime.opencl.devices import devices
text = '<ir_version: 8, opset_import: ["" : 17]> n (float[n] x) => (float[n] y) {y = Neg(x)}'
with clrt.load(onnx.parser.parse_model(text), device=sys.argv[1]) as model:
    assert model.run({"x": [1.0, 2.0]})["y"].tolist() == [-1, -2]
print([d.platform for d in devices()])
"""
_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def _run(device: str, folder: Path, **variables: str) -> tuple[str, str]:
    """Runs the program above with the given variables, as user nobody if root."""
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "CLRT_CACHE_DIR")}
    unprivileged = _NOBODY if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*unprivileged, sys.executable, "-c", _PROGRAM, device],
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="homes and users of Linux")
@pytest.mark.skipif(
    sys.platform == "linux" and os.geteuid() == 0 and shutil.which("setpriv") is None,
    reason="root may write anywhere",
)
@pytest.mark.parametrize("kind", ["unset", "a file", "read-only XDG"])
def test_clrt_runs_without_writable_home(kind: str, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    variables = {
        "unset": {},
        "a file": {"HOME": os.devnull},
        "read-only XDG": {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(closed)},
    }[kind]
    tmp_path.chmod(0o755)
    shown, warnings = _run(quick_device().platform, Path("/"), **variables)
    assert warnings.count("Warning:") == warnings.count("cannot be kept in") <= 1, warnings
    assert warnings or kind == "unset"  # this user may have a home in the password file
    assert ("Portable" in shown) == ("Portable" in _platforms())


def _platforms() -> str:
    from clrt.runtime.opencl.devices import devices

    return str([device.platform for device in devices()])


def test_unusable_cache_folder_reason_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_unusable(tmp_path / "a" / "b") == "" and not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    assert "is not a folder" in why_unusable(tmp_path / "file" / "b")
    if sys.platform != "win32":
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        assert "other users" in why_unusable(tmp_path / "open")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100))
    assert "full" in why_unusable(tmp_path / "a")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "cannot be written" in why_unusable(tmp_path / "a")


@pytest.mark.skipif(sys.platform != "linux", reason="PoCL of Linux")
def test_pocl_cache_falls_back_to_writable_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path / "clrt"))
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    prepare_pocl_cache()
    assert "POCL_CACHE_DIR" not in os.environ
    monkeypatch.setenv("HOME", os.devnull)
    prepare_pocl_cache()
    assert os.environ["POCL_CACHE_DIR"] == str(tmp_path / "clrt" / "pocl")
    monkeypatch.setenv("POCL_CACHE_DIR", os.devnull)
    monkeypatch.setenv("CLRT_CACHE_DIR", os.devnull)
    prepare_pocl_cache()
    made = Path(os.environ["POCL_CACHE_DIR"])
    assert made.is_dir() and not why_unusable(made)
    cache_folders._remove(made, os.getpid() + 1)
    assert made.is_dir()
    cache_folders._remove(made, os.getpid())
    assert not made.exists()


def test_pyopencl_invoker_database_is_disabled_for_clrt() -> None:
    """The database is under the user's home; other programs keep pyopencl's caches."""
    program = (
        "import pyopencl; was = pyopencl._PYOPENCL_NO_CACHE; import clrt.runtime.opencl.programs\n"
    )
    program += "from pyopencl import invoker; print(was, pyopencl._PYOPENCL_NO_CACHE)\n"
    program += "print(type(invoker.invoker_cache).__name__)"
    environment = {k: v for k, v in os.environ.items() if k != "PYOPENCL_NO_CACHE"}
    shown = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["False", "False", "_NoDatabase"]
