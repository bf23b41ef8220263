"""Matrix instructions of GPUs for 16-bit floats with float32 sums."""

from __future__ import annotations

from dataclasses import replace

from clrt.device.caps import MatrixShape

OPERANDS = ("float16", "bfloat16")
_IN_C = " in C"


def _units(rows: int, columns: int, instructions: str) -> tuple[MatrixShape, ...]:
    """Returns the matrix instructions of one shape, one for each operand dtype.

    Args:
        rows: Rows of the result.
        columns: Columns of the result.
        instructions: Name of the instruction set.
    """
    shapes = (MatrixShape(rows, columns, 16, o, "float32", instructions) for o in OPERANDS)
    return tuple(shapes)


# NVIDIA, compute capability 8.0 and later.
MMA = _units(16, 8, "mma")
# AMD: RDNA 3; RDNA 4, which does not duplicate elements across lanes; CDNA 2 and 3.
WMMA = _units(16, 16, "wmma")
WMMA_12 = _units(16, 16, "wmma_12")
MFMA = _units(16, 16, "mfma")
# Intel: sub-groups of 8 (Xe-HPG) and of 16 (Xe-HPC, Xe2).
DPAS_8 = _units(8, 8, "dpas_8")
DPAS_16 = _units(8, 16, "dpas_16")
GPU_UNITS = (*MMA, *WMMA, *WMMA_12, *MFMA, *DPAS_8, *DPAS_16)


def in_c(unit: MatrixShape) -> MatrixShape:
    """Returns a matrix instruction emulated in OpenCL C, for tests on devices without it."""
    return replace(unit, instructions=unit.instructions + _IN_C)


def is_in_c(unit: MatrixShape) -> bool:
    """Returns whether a matrix instruction is emulated in OpenCL C (see `in_c`)."""
    return unit.instructions.endswith(_IN_C)


def instructions_of(unit: MatrixShape) -> str:
    """Returns the instruction set of a matrix instruction, emulated or not."""
    return unit.instructions.removesuffix(_IN_C)
