"""`QuantizedWeights`: a constant B of a GEMM in a layout that kernels unpack by macros."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from clrt.ir.cl_code import Define


class QuantizedWeights(ABC):
    """Constant B of a GEMM, packed in one of the layouts of quantized weights.

    Each layout is a subclass. A kernel reads one layout, so the code that launches it checks the
    class of `GemmProblem.weights`.

    Attributes:
        n: Columns of B.
        k: Rows of B, along the summed axis.
    """

    n: int
    k: int

    @property
    @abstractmethod
    def defines(self) -> Mapping[str, Define]:
        """Macros that describe the layout to kernels."""

    @abstractmethod
    def args(self, columns: int) -> dict[str, Any]:
        """Returns the kernel arguments for B by name: `b`, and further ones of the layout.

        Args:
            columns: Columns per panel, for layouts in which the kernel chooses the panel width;
                otherwise ignored.
        """
