"""Capabilities: what planning may know of a device, read from hardware or from JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

# Alignment of tensor starts in bytes (two cache lines); pointer-cast vector loads require it.
ALIGNMENT_BYTES = 128


@dataclass(frozen=True, order=True)
class MatrixShape:
    """What a matrix unit multiplies at once: rows x depth by depth x columns.

    Attributes:
        operands, sums: Dtypes.
        instructions: By what kernels reach it: "amx", "vnni", "avx_vnni", "avx2", and those of
            `clrt.device.gpu_matrix_shapes`.
    """

    rows: int
    columns: int
    depth: int
    operands: str
    sums: str
    instructions: str

    def __str__(self) -> str:
        size = f"{self.rows} x {self.columns} x {self.depth}"
        return f"{size} {self.operands} by {self.instructions}"


AMX_BFLOAT16 = MatrixShape(16, 16, 32, "bfloat16", "float32", "amx")
# A number of 8 bits without a sign by one with a sign, four of each at a time.
VNNI_INT8 = MatrixShape(1, 16, 4, "int8", "int32", "vnni")
# The same in vectors half as long, and that in two instructions: where there is nothing better.
AVX_VNNI_INT8 = MatrixShape(1, 8, 4, "int8", "int32", "avx_vnni")
AVX2_INT8 = MatrixShape(1, 8, 4, "int8", "int32", "avx2")
# DOTS of common/dots.clh for each.
_DOTS = {VNNI_INT8: 1, AVX2_INT8: 2, AVX_VNNI_INT8: 3}
# Of a core, where each of them is counted: at least as many as any such device has.
_SMALL_UNITS = 8


@dataclass(frozen=True)
class DeviceCaps:
    """Capabilities of one OpenCL device.

    Attributes:
        kind: "cpu", "gpu" (discrete), "igpu" (shares the host's memory), "accelerator".
        cl_version: (major, minor) of OpenCL.
        float_lanes: Floats in a vector register of the compiled code (16 with AVX-512).
        opencl_c: (major, minor) of the newest OpenCL C that its compiler takes.
        sub_group_sizes: Work-items of a sub-group that kernels may ask for.
        matrix_shapes: What its matrix units multiply, where kernels may use them.
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
    opencl_c: tuple[int, int] = (1, 2)
    sub_group_sizes: frozenset[int] = frozenset()
    matrix_shapes: frozenset[MatrixShape] = frozenset()
    extensions: frozenset[str] = frozenset()
    simulator: bool = False
    quirks: frozenset[str] = frozenset()

    @property
    def int8_dot_isa(self) -> int:
        """By what bytes are multiplied, DOTS of common/dots.clh; 0: by no instruction for them."""
        return next((n for shape, n in _DOTS.items() if shape in self.matrix_shapes), 0)

    @property
    def cores(self) -> int:
        """How many work-groups run apart from each other: one on a unit, or several small ones."""
        small = "counts-small-units" in self.quirks
        return max(1, self.compute_units // _SMALL_UNITS) if small else self.compute_units

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
        for name in ("extensions", "quirks", "sub_group_sizes"):
            record[name] = sorted(record[name])
        record["matrix_shapes"] = [asdict(s) for s in sorted(self.matrix_shapes)]
        return json.dumps(record, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DeviceCaps:
        """The inverse of `to_json`. Fields of other versions of clrt are ignored."""
        known = {f.name for f in fields(cls)}
        record = {k: v for k, v in json.loads(text).items() if k in known}
        for name in {"cl_version", "opencl_c"} & record.keys():
            record[name] = tuple(record[name])
        for name in {"extensions", "quirks", "sub_group_sizes"} & record.keys():
            record[name] = frozenset(record[name])
        shapes = record.get("matrix_shapes", ())
        record["matrix_shapes"] = frozenset(MatrixShape(**s) for s in shapes)
        return cls(**record)
