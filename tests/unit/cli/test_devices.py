"""`clrt devices` with fake devices."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from clrt.cli import app
from clrt.cli import devices as command
from clrt.device.caps import DeviceCaps
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.formatting import format_bytes

GPU = DeviceCaps(
    platform="Vendor",
    name="Fast [GPU]",
    vendor="Vendor",
    driver="1.0",
    kind="gpu",
    cl_version=(3, 0),
    compute_units=64,
    global_mem_bytes=8 << 30,
    extensions=frozenset({"cl_khr_fp16"}),
)
CPU = DeviceCaps(
    platform="Portable",
    name="cpu",
    vendor="x",
    driver="1",
    kind="cpu",
    extensions=frozenset({"cl_khr_fp64"}),
    quirks=frozenset({"slow-builtins", "needs-linker"}),
)


def run(monkeypatch: pytest.MonkeyPatch, *found: DeviceInfo) -> Result:
    monkeypatch.setattr(command, "find_devices", lambda: list(found))
    return CliRunner().invoke(app, ["devices"], env={"COLUMNS": "200"})


def test_device_table_lists_capabilities_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(
        monkeypatch,
        DeviceInfo(0, GPU, True, "", True, None),
        DeviceInfo(1, CPU, False, "no linker", False, None),
    )
    assert result.exit_code == 0, result.output
    gpu, cpu = result.stdout.split("├")[0], result.stdout.split("┤")[-1]
    for cell in ("*", "0", "Fast [GPU]", "64 units", "gpu", "3.0", "8.0 GiB", "fp16 fp32"):
        assert cell in gpu
    cpu = cpu.split("selected by device")[0].removesuffix("* ")
    for cell in ("1.2", "1.0 GiB", "fp32 fp64", "needs-linker, slow-builtins", "no linker"):
        assert cell in cpu
    assert "*" not in cpu.split("└")[0]


def test_devices_without_default_exits_1(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, DeviceInfo(0, CPU, True, "simulator", False, None))
    assert result.exit_code == 1
    assert "No usable OpenCL device was found. There is: " in result.stderr
    assert "simulator" in result.stderr


def test_devices_without_platform_exits_1_with_install_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = run(monkeypatch)
    assert result.exit_code == 1
    assert "No usable OpenCL device was found" in result.stderr
    assert "pip install" in result.stderr


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1 << 10, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 40, "1.0 TiB"),
    ],
)
def test_format_bytes_uses_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text
