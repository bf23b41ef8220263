"""Code branches for a single operating system."""

from __future__ import annotations

import io
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from clrt.cli import convert, main
from clrt.cli.console import stdout
from clrt.cli.embed import json_lines
from clrt.device.caps import DeviceCaps
from clrt.device.quirks import quirks_of
from clrt.errors import DeviceError, InputError
from clrt.models.onnx import nchwc as onnx_nchwc
from clrt.runtime.opencl import cpu_matrix_units, devices, icd_loader, pocl
from clrt.runtime.opencl.devices import choose_device
from clrt.util import files
from clrt.util.table_text import table_text

SYSTEMS = ("win32", "darwin", "linux")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")


@pytest.mark.parametrize(
    ("path", "long"),
    [
        (r"C:\m.onnx", r"\\?\C:\m.onnx"),
        (r"\\server\share\m.onnx", r"\\?\UNC\server\share\m.onnx"),
        (r"\\?\C:\m.onnx", r"\\?\C:\m.onnx"),
        (r"\\.\NUL", r"\\.\NUL"),
    ],
)
def test_long_windows_path_forms_get_prefix(path: str, long: str) -> None:
    assert files.long_windows_path(path) == long


def test_short_windows_paths_get_no_prefix(windows: None) -> None:
    assert str(files.expanded("m.onnx")) == "m.onnx"
    name = "m" * 200
    assert str(files.expanded(name)) == rf"\\?\{os.path.abspath(name)}"


def test_replace_retries_briefly_open_file(
    windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, really = iter(range(3)), os.replace

    def refuse(source: Path, target: Path) -> None:
        if next(tries, None) is not None:
            raise PermissionError(13, "Access is denied")
        really(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with files.atomic_write(tmp_path / "m") as stream:
        stream.write(b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m").read_bytes() == b"new"


def test_replace_of_open_file_fails_and_keeps_it(
    windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Access is denied")

    (tmp_path / "m").write_bytes(b"old")
    monkeypatch.setattr(files, "_REPLACE_TIMEOUT_S", 0.1)
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, refuse)
    with (
        pytest.raises(InputError, match=r"/m' cannot be replaced: .* name another file"),
        files.atomic_write(tmp_path / "m") as stream,
    ):
        stream.write(b"new")
    with pytest.raises(InputError, match="cannot be replaced"):
        files.check_targets({"--output": tmp_path / "m"})
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]


@pytest.mark.parametrize(
    ("system", "machine", "remedy"),
    [
        ("linux", "x86_64", r'pip install "pyopencl\[pocl\]"'),
        ("linux", "aarch64", "apt-get install pocl-opencl-icd"),
        ("win32", "AMD64", "pip install intel-opencl-rt intel-cmplr-lib-rt"),
        ("darwin", "arm64", "ocl_icd_wrapper_apple"),
    ],
)
def test_missing_device_error_has_platform_install_hint(
    system: str, machine: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(icd_loader, "_data_folders", list)
    monkeypatch.setattr(devices, "devices", list)
    with pytest.raises(DeviceError, match=remedy):
        choose_device()


def test_intel_library_is_found_in_pip_folder(
    windows: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(icd_loader, "_data_folders", lambda: ["/nowhere", str(tmp_path)])
    assert icd_loader.intel_library() is None and not icd_loader.load_failure()
    library = tmp_path / "Library" / "bin" / "intelocl64.dll"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"damaged")
    assert icd_loader.intel_library() == library
    assert "does not load" in icd_loader.load_failure()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert icd_loader.intel_library() is None  # an application takes what it brings


def test_cpu_features_are_read_only_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_: pytest.fail("reads a file"))
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opens a file"))
    for system in ("win32", "darwin"):
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        assert cpu_matrix_units.matrix_shapes.__wrapped__() == frozenset()
        assert pocl.repair_target_cpu(0) == ""


def test_unknown_cpu_has_no_nchwc_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", absent)
    assert onnx_nchwc._block_of_cpu() is None


def test_file_mode_is_ignored_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all: Any = SimpleNamespace(st_uid=12345, st_mode=0o777)
    for system in SYSTEMS:
        monkeypatch.setattr(sys, "platform", system)
        assert files.is_private(open_to_all) == (system == "win32")


def test_pocl_needs_linker_only_on_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    caps = DeviceCaps("p", "cpu", "v", "1", "cpu", quirks=frozenset({"needs-linker"}))
    for system in SYSTEMS:
        monkeypatch.setattr(sys, "platform", system)
        assert bool(devices._unusable(caps)) == (system == "linux")


def test_translation_layer_is_chosen_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCLOn12 lists vendors' devices under their own names."""
    caps = [
        DeviceCaps(platform, "NVIDIA GeForce", "NVIDIA", "1", "gpu")
        for platform in ("OpenCLOn12", "NVIDIA CUDA")
    ]
    found = [
        devices.DeviceInfo(i, replace(c, quirks=quirks_of(c)), True, "", False, None)
        for i, c in enumerate(caps)
    ]
    monkeypatch.setattr(devices, "devices", lambda: found)
    for request in ("auto", "gpu", "geforce"):
        assert choose_device(request).platform == "NVIDIA CUDA"
    assert choose_device("on12").index == 0
    monkeypatch.setattr(devices, "devices", lambda: found[:1])
    assert choose_device("gpu").index == 0


@pytest.mark.parametrize("encoding", ["cp1252", "cp437", "ascii", "utf-8"])
def test_tables_use_characters_of_output_encoding(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    table = Table("näme", title="模型…")
    table.add_row("x³")
    text = table_text(table)
    stdout().print(table)
    print(text)
    if encoding.startswith("cp"):
        with pytest.raises(UnicodeEncodeError):  # programs are told, and not given less
            typer.echo("模")
    sys.stdout.flush()
    assert ("模型" in text and "┃" in text) == (encoding == "utf-8")
    assert "".join(json_lines(["模"], [[1.0]])).isascii() == (encoding != "utf-8")  # type: ignore[arg-type]
    assert written.getvalue().count(b"x") == 2


def test_tables_print_without_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows GUI programs have no standard output."""
    monkeypatch.setattr(sys, "stdout", None)
    assert "┃" in table_text(Table("a"))
    stdout().print("a")


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_help_prints_on_ascii_terminal(command: str) -> None:
    runner = CliRunner(charset="ascii")
    result = runner.invoke(main.app, [command, "--help"] if command else ["--help"])
    assert result.exit_code == 0, result.exception
    assert "--help" in result.output


def test_convert_help_prints_on_ascii_terminal() -> None:
    result = CliRunner(charset="ascii").invoke(convert.app, ["--help"])
    assert result.exit_code == 0, result.exception
