"""`WeightFormat`: how a constant encodes B of a GEMM, and the layouts of it that kernels read.

A weight passes through three kinds of objects, each of which knows only the next one:

    encoding of a file        `BlockType` of a GGUF tensor, attributes of a MatMulNBits node: NumPy
                              decoder, and OpenCL expressions that read a block
    `WeightFormat`            one constant of that encoding: which layouts it can be packed in
    `PackedWeights`           one layout of the constant: packing on the host and on the device,
                              macros and arguments for kernels; `GemmProblem.weights`

A new encoding is a `BlockType` in a file of its own (`clrt/formats/gguf/`), a new layout a
`PackedWeights` and the kernel that reads it. No table lists encodings by name but `BLOCK_TYPES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from clrt.kernels.quantized_panels_cpu import QuantizedPanels
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows


class WeightFormat(ABC):
    """A quantized constant B `[N, K]` of a matrix product, before it is packed for a kernel."""

    @abstractmethod
    def panels(self) -> QuantizedPanels:
        """Returns B for the int8 dot-product kernels of CPUs.

        Numerics: scales and minima may be rounded to float16.
        """

    @abstractmethod
    def rows(self) -> PackedQuantizedRows:
        """Returns B for the kernels of GPUs; nothing is rounded."""
