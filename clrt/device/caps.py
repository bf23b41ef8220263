"""Device capabilities: all that planning may know of a device, read from hardware or JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, fields, replace

from clrt.util.fast_dataclass import dataclass

# Alignment of tensor starts in bytes (two cache lines); pointer-cast vector loads require it.
ALIGNMENT_BYTES = 128


@dataclasses.dataclass(frozen=True, order=True)  # has an order
class MatrixShape:
    """A matrix instruction and its shape: (rows x depth) times (depth x columns).

    Attributes:
        rows: Rows of the result.
        columns: Columns of the result.
        depth: Size of the summed axis.
        operands: Name of the operands' dtype.
        sums: Name of the result's dtype.
        instructions: Instruction set: "amx", "vnni", "avx_vnni", "avx2", or one of
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
# Dot products of 4 uint8 by 4 int8: by AVX-512 VNNI; by AVX-VNNI in vectors half as long; and, on
# CPUs without either, by two instructions of AVX2.
VNNI_INT8 = MatrixShape(1, 16, 4, "int8", "int32", "vnni")
AVX_VNNI_INT8 = MatrixShape(1, 8, 4, "int8", "int32", "avx_vnni")
AVX2_INT8 = MatrixShape(1, 8, 4, "int8", "int32", "avx2")
# Values of the macro DOT_ISA of common/dots.clh.
_DOT_CODES = {VNNI_INT8: 1, AVX2_INT8: 2, AVX_VNNI_INT8: 3}
# Execution units per core, on devices that report execution units as compute units; no such device
# has more.
_UNITS_PER_CORE = 8


@dataclass(frozen=True)
class DeviceCaps:
    """Capabilities of one OpenCL device.

    Attributes:
        platform: Name of the OpenCL platform.
        name: Name of the device, as OpenCL reports it.
        vendor: Name of the vendor, as OpenCL reports it.
        driver: Driver version, as OpenCL reports it.
        kind: "cpu", "gpu" (discrete), "igpu" (shares the host's memory), "accelerator".
        cl_version: (major, minor) of the supported OpenCL version.
        compute_units: Number of compute units that OpenCL reports; see `cores`.
        max_work_group_size: Maximum number of work-items per work-group.
        local_mem_bytes: Local memory per work-group, in bytes.
        global_mem_bytes: Global memory of the device, in bytes.
        max_alloc_bytes: Maximum size of one buffer, in bytes.
        float_lanes: float32 elements per vector register of compiled code (16 with AVX-512).
        opencl_c: (major, minor) of the newest OpenCL C version that the compiler supports.
        sub_group_sizes: Sub-group sizes that kernels may request.
        matrix_shapes: Matrix instructions that kernels may use.
        extensions: OpenCL extensions.
        simulator: Whether the device interprets kernels (Oclgrind).
        quirks: Ids of the quirks in `clrt.device.quirks` that apply.
        has_twin: Whether the device has a twin: a second device that shares buffers with it, and
            runs kernels on the calling thread, on one core.
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
    has_twin: bool = False

    @property
    def int8_dot_isa(self) -> int:
        """Code of the int8 dot-product instructions (macro DOT_ISA, common/dots.clh); 0 if none."""
        return next((code for shape, code in _DOT_CODES.items() if shape in self.matrix_shapes), 0)

    @property
    def cores(self) -> int:
        """Number of cores that run work-groups independently.

        Equal to `compute_units`, unless the device reports execution units, of which each core has
        several.
        """
        counts_execution_units = "counts-small-units" in self.quirks
        if counts_execution_units:
            return max(1, self.compute_units // _UNITS_PER_CORE)
        return self.compute_units

    @property
    def twin(self) -> DeviceCaps | None:
        """Capabilities of the twin, for planning; None if there is none."""
        return replace(self, compute_units=1, has_twin=False) if self.has_twin else None

    @property
    def is_cpu(self) -> bool:
        return self.kind == "cpu"

    @property
    def has_fp64(self) -> bool:
        return "cl_khr_fp64" in self.extensions

    @property
    def has_fp16(self) -> bool:
        """Whether kernels can compute with float16; they can always load and store it."""
        return "cl_khr_fp16" in self.extensions

    def to_json(self) -> str:
        """Returns the capabilities as JSON text, so that tests can plan without the device."""
        record = asdict(self)
        for name in ("extensions", "quirks", "sub_group_sizes"):
            record[name] = sorted(record[name])
        record["matrix_shapes"] = [asdict(s) for s in sorted(self.matrix_shapes)]
        return json.dumps(record, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> DeviceCaps:
        """Parses JSON text written by `to_json`; ignores fields that this version does not know."""
        known = {f.name for f in fields(cls)}
        record = {k: v for k, v in json.loads(text).items() if k in known}
        for name in {"cl_version", "opencl_c"} & record.keys():
            record[name] = tuple(record[name])
        for name in {"extensions", "quirks", "sub_group_sizes"} & record.keys():
            record[name] = frozenset(record[name])
        shapes = record.get("matrix_shapes", ())
        record["matrix_shapes"] = frozenset(MatrixShape(**s) for s in shapes)
        return cls(**record)
