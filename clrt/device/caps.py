"""Capabilities: what planning may know of a device, read from hardware or from JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class DeviceCaps:
    """Capabilities of one OpenCL device.

    Attributes:
        kind: "cpu", "gpu" (discrete), "igpu" (shares the host's memory), "accelerator".
        cl_version: (major, minor) of OpenCL.
        float_lanes: Floats in a vector register of the compiled code (16 with AVX-512).
        matrix_unit: The hardware for small matrices of bfloat16 that kernels may use: "amx" or "".
        quirks: Ids of the rows of `clrt.device.quirks` that apply.
    """

    platform: str
    name: str
    vendor: str
    driver: str
    kind: str
    cl_version: tuple[int, int] = (1, 2)
    compute_units: int = 1
    max_work_group_size: int = 1
    local_mem_bytes: int = 16 << 10
    global_mem_bytes: int = 1 << 30
    max_alloc_bytes: int = 256 << 20
    float_lanes: int = 4
    matrix_unit: str = ""
    extensions: frozenset[str] = frozenset()
    simulator: bool = False
    quirks: frozenset[str] = frozenset()

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def has_fp64(self) -> bool:
        return "cl_khr_fp64" in self.extensions

    @property
    def has_fp16(self) -> bool:
        """Whether half arithmetic works (16-bit storage always does)."""
        return "cl_khr_fp16" in self.extensions

    def to_json(self) -> str:
        """The capabilities as JSON, with which planning is tested where the device is not."""
        record = asdict(self)
        record["extensions"] = sorted(self.extensions)
        record["quirks"] = sorted(self.quirks)
        return json.dumps(record, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DeviceCaps:
        """The inverse of `to_json`. Fields of other versions of clrt are ignored."""
        known = {f.name for f in fields(cls)}
        record = {k: v for k, v in json.loads(text).items() if k in known}
        record["cl_version"] = tuple(record["cl_version"])
        record["extensions"] = frozenset(record["extensions"])
        record["quirks"] = frozenset(record["quirks"])
        return cls(**record)
