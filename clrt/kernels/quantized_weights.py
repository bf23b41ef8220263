"""`QuantizedWeights`: a constant B of a GEMM in a layout that kernels unpack by macros."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from clrt.ir.cl_code import Define


class QuantizedWeights(ABC):
    """Constant B of a GEMM, packed in one of the layouts of quantized weights.

    A kernel is written for one layout: a subclass, which it asks of `GemmProblem.weights`.

    Attributes:
        n, k: Size of B, which has N columns.
    """

    n: int
    k: int

    @property
    @abstractmethod
    def defines(self) -> Mapping[str, Define]:
        """Macros that describe the layout to kernels."""

    @abstractmethod
    def args(self, columns: int) -> dict[str, Any]:
        """Returns the kernel arguments for B: `b`, and those that the layout adds.

        Args:
            columns: Columns per panel, if the layout has panels whose width the kernel chooses.
        """
