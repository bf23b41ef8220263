"""The matrix units of GPUs for floats of 16 bits, with sums in float32."""

from __future__ import annotations

from dataclasses import replace

from clrt.device.caps import MatrixShape

OPERANDS = ("float16", "bfloat16")
_IN_C = " in C"


def _units(rows: int, columns: int, instructions: str) -> tuple[MatrixShape, ...]:
    """One for each dtype."""
    made = (MatrixShape(rows, columns, 16, o, "float32", instructions) for o in OPERANDS)
    return tuple(made)


# NVIDIA's from compute capability 8.0 on.
MMA = _units(16, 8, "mma")
# AMD's: RDNA 3, RDNA 4, whose lanes hold no number twice, and CDNA 2 and 3.
WMMA = _units(16, 16, "wmma")
WMMA_12 = _units(16, 16, "wmma_12")
MFMA = _units(16, 16, "mfma")
# Intel's: sub-groups of 8 (Xe-HPG) and of 16 (Xe-HPC, Xe2).
DPAS_8 = _units(8, 8, "dpas_8")
DPAS_16 = _units(8, 16, "dpas_16")
GPU_UNITS = (*MMA, *WMMA, *WMMA_12, *MFMA, *DPAS_8, *DPAS_16)


def in_c(unit: MatrixShape) -> MatrixShape:
    """The unit as plain OpenCL C computes it, lane by lane: for tests on devices without it."""
    return replace(unit, instructions=unit.instructions + _IN_C)


def is_in_c(unit: MatrixShape) -> bool:
    """Whether `in_c` made it."""
    return unit.instructions.endswith(_IN_C)


def instructions_of(unit: MatrixShape) -> str:
    """The instructions of a unit, in C or not."""
    return unit.instructions.removesuffix(_IN_C)
