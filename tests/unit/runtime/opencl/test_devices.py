"""Device choice, and errors if no device matches."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clrt.device.caps import DeviceCaps
from clrt.errors import DeviceError
from clrt.runtime.opencl import devices as module
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.runtime.opencl.pocl import float_lanes, target_of

CPU = DeviceCaps("Portable Computing Language", "pthread-x", "v", "3.0", "cpu")


def _fake(*caps: DeviceCaps, notes: tuple[str, ...] = ()) -> list[DeviceInfo]:
    padded = notes + ("",) * (len(caps) - len(notes))
    return [
        DeviceInfo(i, c, not n, n, False, None)
        for i, (c, n) in enumerate(zip(caps, padded, strict=True))
    ]


GPU = replace(CPU, platform="NVIDIA CUDA", name="NVIDIA H200", kind="gpu")
IGPU = replace(CPU, platform="Intel(R) OpenCL Graphics", name="Intel Iris Xe", kind="igpu")
SIMULATOR = replace(CPU, platform="Oclgrind", name="Oclgrind Simulator", simulator=True)


@pytest.mark.parametrize(
    ("request_", "index"),
    [
        ("auto", 3),
        ("cpu", 1),
        ("gpu", 3),
        ("iris", 2),
        ("nvidia", 3),
        (1, 1),
        ("2", 2),
        ("oclgr", 0),
        ("PoCL", 1),
        (" ", 3),
    ],
)
def test_device_request_selects_device(
    monkeypatch: pytest.MonkeyPatch, request_: str | int, index: int
) -> None:
    monkeypatch.setattr(module, "devices", lambda: _fake(SIMULATOR, CPU, IGPU, GPU))
    assert choose_device(request_).index == index


def test_environment_variable_selects_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "devices", lambda: _fake(CPU, GPU))
    monkeypatch.setenv("CLRT_DEVICE", "cpu")
    assert choose_device().index == 0
    assert choose_device("gpu").index == 1


def test_device_without_quirks_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = replace(CPU, quirks=frozenset({"slow-launches"}))
    other = replace(CPU, platform="Intel(R) OpenCL", name="Intel x")
    translated = replace(GPU, quirks=frozenset({"translation-layer"}))
    monkeypatch.setattr(module, "devices", lambda: _fake(slow, translated, other))
    assert choose_device("cpu").index == 2
    assert choose_device("auto").index == 2
    assert choose_device("portable").index == 0


def test_simulator_is_never_chosen_automatically(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "devices", lambda: _fake(SIMULATOR))
    for request in ("auto", "cpu"):
        with pytest.raises(DeviceError, match="There is"):
            choose_device(request)


def test_unmatched_request_lists_available_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "devices", lambda: _fake(CPU, IGPU))
    with pytest.raises(DeviceError, match=r"No OpenCL device matches 'radeon'.*Iris Xe"):
        choose_device("radeon")
    with pytest.raises(DeviceError, match="matches 7"):
        choose_device(7)
    for digits in ("9" * 5000, "\u0663", "²"):
        with pytest.raises(DeviceError, match="No OpenCL device matches"):
            choose_device(digits)
    assert choose_device("0" * 5000 + "1").index == 1
    monkeypatch.setattr(module, "devices", lambda: _fake(CPU))
    with pytest.raises(DeviceError, match=r"matches 'GPU'\. There is: "):
        choose_device("GPU")
    with pytest.raises(DeviceError, match=r"'gpuu'\. There is"):  # no hint at a GPU
        choose_device("gpuu")
    monkeypatch.setattr(module, "devices", lambda: _fake(CPU, GPU))
    with pytest.raises(DeviceError, match="Did you mean 'gpu'"):
        choose_device("gpuu")


def test_missing_platform_error_has_install_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "devices", list)
    with pytest.raises(DeviceError, match="pip install"):
        choose_device()


@pytest.mark.parametrize("present", [[], [CPU]], ids=["nothing", "another"])
def test_unloadable_intel_runtime_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: list[DeviceCaps]
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libintelocl.so").write_bytes(b"damaged")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(module, "devices", lambda: _fake(*present))
    reason = r"Intel's CPU runtime .* does not load \(.*libintelocl"
    with pytest.raises(DeviceError, match=reason):
        choose_device("intel")
    if present:
        with pytest.warns(UserWarning, match=r"is used\. " + reason):
            choose_device("auto")


def test_missing_linker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    caps = replace(CPU, quirks=frozenset({"needs-linker"}))
    note = module._unusable(caps)
    assert "binutils" in note
    monkeypatch.setattr(module, "devices", lambda: _fake(caps, notes=(note,)))
    with pytest.raises(DeviceError, match="binutils"):
        choose_device("cpu")


@pytest.mark.parametrize(
    ("target", "cpu", "lanes"),
    [
        ("pthread-x86_64-unknown-linux-gnu-generic", "generic", 4),
        ("pthread-x86_64-unknown-linux-gnu-skx", "skx", 16),
        ("cpu-x86_64-pc-linux-gnu-skylake-avx512", "skylake-avx512", 16),
        ("cpu-x86_64-redhat-linux-gnu-znver5", "znver5", 16),
        ("cpu-x86_64-pc-linux-gnu-haswell", "haswell", 8),
        ("cpu-x86_64-alpine-linux-musl-x86-64-v2", "x86-64-v2", 4),
        ("cpu-x86_64-apple-darwin23.1.0-skylake", "skylake", 8),
        ("cpu-aarch64-unknown-linux-gnu-neoverse-n1", "neoverse-n1", 4),
        ("CUDA-sm_75", "", 4),
    ],
)
def test_pocl_version_gives_cpu_target_and_float_lanes(target: str, cpu: str, lanes: int) -> None:
    architecture, found = target_of(f"OpenCL 3.0 PoCL HSTR: {target}")
    assert found == cpu
    assert float_lanes(architecture, found) == lanes


def test_superscript_digit_is_not_a_device_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "devices", lambda: _fake(CPU))
    with pytest.raises(DeviceError, match="No OpenCL device matches '²'"):
        choose_device("²")


def test_device_caps_round_trip_through_json() -> None:
    assert DeviceCaps.from_json(CPU.to_json()) == CPU


def test_device_caps_with_unknown_fields_are_read() -> None:
    record = json.loads(CPU.to_json()) | {"a_fact_of_another_version": 64}
    assert DeviceCaps.from_json(json.dumps(record)) == CPU
