"""Device identifiers (PCI, UUID, LUID) from vendor-specific driver queries."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

import clrt
from clrt.errors import DeviceError
from clrt.runtime.opencl import device_ids, devices
from clrt.runtime.opencl.device_ids import DeviceIds, read_ids

UUID = bytes(range(16))
ANSWERS: dict[str, dict[int, bytes]] = {
    "cl_khr_device_uuid cl_khr_pci_bus_info": {
        0x106A: UUID,
        0x106C: struct.pack("<I", 1),
        0x106D: bytes(range(8)),
        0x410F: struct.pack("<4I", 1, 0x2A, 3, 0),
    },
    "cl_khr_device_uuid": {0x106A: UUID, 0x106C: bytes(4), 0x106D: bytes(8)},
    "cl_nv_device_attribute_query": {
        0x4008: struct.pack("<I", 0x65),
        0x4009: struct.pack("<I", 2 << 3 | 1),
    },
    "cl_amd_device_attribute_query": {
        0x4037: struct.pack("<I17x3B", 1, 0xC3, 0, 0),
        0x4034: struct.pack("<I", 0x744C),
    },
    "cl_intel_device_attribute_query": {0x4251: struct.pack("<I", 0x56A0)},
    "": {},
}
EXPECTED = [
    DeviceIds("0001:2a:03.0", UUID.hex(), "0001020304050607"),
    DeviceIds("", UUID.hex(), ""),
    DeviceIds("0000:65:02.1"),
    DeviceIds("0000:c3:00.0", product=0x744C),
    DeviceIds(product=0x56A0),
    DeviceIds(),
]


@pytest.mark.parametrize(("answers", "expected"), [*zip(ANSWERS, EXPECTED, strict=True)])
def test_device_ids_are_read_from_vendor_queries(
    answers: str, expected: DeviceIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: Any, number: int, nbytes: int) -> bytes:
        found = ANSWERS[answers].get(number, b"")
        return found if len(found) == nbytes else b""

    monkeypatch.setattr(device_ids, "device_bytes", answer)
    assert read_ids(SimpleNamespace(extensions=f"a {answers} b")) == expected


@pytest.mark.parametrize(
    ("kind", "text", "same"),
    [
        ("pci", "0000:65:02.1", True),
        ("pci", "65:02.1", True),
        ("pci", "65:02", False),
        ("pci", "1:65:02.1", False),
        ("pci", "x", False),
        ("pci", "", False),
        ("uuid", "00010203-0405-0607-0809-0a0b0c0d0e0f", True),
        ("uuid", "", False),
        ("luid", "", False),
    ],
)
def test_pci_and_uuid_texts_match_device_ids(kind: str, text: str, same: bool) -> None:
    assert DeviceIds("0000:65:02.1", UUID.hex()).matches(kind, text) == same


def test_device_is_chosen_by_pci_or_luid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices have the same name, as in a laptop with two GPUs."""
    found = clrt.devices()[-2:]
    ids = {id(d.handle): DeviceIds(f"0000:0{i}:00.0", "", f"{i:016x}") for i, d in enumerate(found)}
    monkeypatch.setattr(devices, "devices", lambda: found)
    monkeypatch.setattr(devices, "_ids", lambda handle: ids[id(handle)])
    for i, device in enumerate(found):
        assert devices.choose_device(f"pci:0{i}:00.0") is device
        assert devices.choose_device(f"LUID:{i:016X}") is device
    with pytest.raises(DeviceError, match=r"No OpenCL device matches 'pci:09:00\.0'"):
        devices.choose_device("pci:09:00.0")


def test_real_device_ids_are_well_formed() -> None:
    for device in clrt.devices():
        assert all(c in "0123456789abcdef:." for c in device.ids.pci + device.ids.uuid)
