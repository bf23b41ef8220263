"""Identifiers that distinguish devices of the same name: PCI address, UUID, LUID."""

from __future__ import annotations

import re
import struct

from clrt.runtime.opencl.driver import cl, device_bytes
from clrt.util.fast_dataclass import dataclass

# Parameter codes of clGetDeviceInfo that pyopencl has no names for, by extension.
_UUID, _LUID_VALID, _LUID = 0x106A, 0x106C, 0x106D  # cl_khr_device_uuid
_PCI_KHR = 0x410F  # cl_khr_pci_bus_info: domain, bus, device, function
_BUS_NV, _SLOT_NV, _DOMAIN_NV = 0x4008, 0x4009, 0x400A  # cl_nv_device_attribute_query
_TOPOLOGY_AMD, _PCIE_AMD = 0x4037, 1  # cl_amd_device_attribute_query
_PRODUCT_AMD = 0x4034
_PRODUCT_INTEL = 0x4251  # cl_intel_device_attribute_query
_ADDRESS = re.compile(r"(?:([0-9a-f]{1,4}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?")


@dataclass(frozen=True)
class DeviceIds:
    """Identifiers of a device, spelled as in other interfaces (Vulkan, DXGI, the system).

    Attributes:
        pci: PCI address, "0000:01:00.0" (domain, bus, device, function); "" if unknown.
        uuid: 32 hexadecimal digits, as Vulkan's deviceUUID; "" if unknown.
        luid: 16 hexadecimal digits, the bytes of DXGI's AdapterLuid in memory; "" if unknown.
        product: PCI device ID, which AMD's and Intel's drivers report; 0 if unknown.
    """

    pci: str = ""
    uuid: str = ""
    luid: str = ""
    product: int = 0

    def matches(self, kind: str, text: str) -> bool:
        """Returns whether an identifier written by a user identifies this device.

        Args:
            kind: "pci", "uuid" or "luid".
            text: Lower-case identifier. A PCI address may lack its domain and function. A UUID or
                LUID may have hyphens, braces and spaces.
        """
        if kind == "pci":
            return bool(self.pci) and _full_address(text) == self.pci
        expected = self.uuid if kind == "uuid" else self.luid
        return bool(expected) and re.sub(r"[-{}\s]", "", text) == expected


def read_ids(device: cl.Device) -> DeviceIds:
    """Queries a device for its identifiers; each is "" or 0 if its driver does not report it."""
    extensions = device.extensions.split()
    uuid = luid = ""
    if "cl_khr_device_uuid" in extensions:
        uuid = device_bytes(device, _UUID, 16).hex()
        if any(device_bytes(device, _LUID_VALID, 4)):
            luid = device_bytes(device, _LUID, 8).hex()
    product = 0
    for extension, number in (
        ("cl_amd_device_attribute_query", _PRODUCT_AMD),
        ("cl_intel_device_attribute_query", _PRODUCT_INTEL),
    ):
        if extension in extensions:
            product = int.from_bytes(device_bytes(device, number, 4), "little")
    return DeviceIds(_pci(device, extensions), uuid, luid, product)


def _pci(device: cl.Device, extensions: list[str]) -> str:
    """Returns the PCI address of a device; "" if the driver does not report it."""
    if "cl_khr_pci_bus_info" in extensions:
        address = device_bytes(device, _PCI_KHR, 16)
        return _address(*struct.unpack("<4I", address)) if address else ""
    if "cl_nv_device_attribute_query" in extensions:
        bus, slot, domain = (device_bytes(device, n, 4) for n in (_BUS_NV, _SLOT_NV, _DOMAIN_NV))
        if not bus or not slot:
            return ""
        device_function = int.from_bytes(slot, "little")  # 5 bits of device, 3 of function
        domain_number, bus_number = (int.from_bytes(b, "little") for b in (domain, bus))
        return _address(domain_number, bus_number, device_function >> 3, device_function & 7)
    if "cl_amd_device_attribute_query" in extensions:
        topology = device_bytes(device, _TOPOLOGY_AMD, 24)
        if topology and int.from_bytes(topology[:4], "little") == _PCIE_AMD:
            return _address(0, *topology[21:24])
    return ""


def _address(domain: int, bus: int, device: int, function: int) -> str:
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


def _full_address(text: str) -> str:
    """Completes a PCI address that may lack its domain or function, to "0000:01:00.0".

    Returns "" if the address is malformed.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return ""
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return _address(domain, bus, device, function)
