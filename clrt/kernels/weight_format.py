"""`WeightFormat`: how a constant encodes B of a GEMM, and the layouts of it that kernels read.

A weight passes through three objects. Each object refers only to the next one:

1. The encoding of a file: the `BlockType` of a GGUF tensor, or the attributes of a MatMulNBits
   node. It has the decoder for the host and, for GGUF, the OpenCL expressions that read a block.
2. `WeightFormat`: one constant in that encoding, with a method per layout it can be packed in.
   Products of quantized weights and their fusion rules know only this class.
3. `QuantizedWeights`: B in the layout of one kernel, with its packing on the host and on the
   device, macros and arguments. It is `GemmProblem.weights`.

A new GGUF type needs a `BlockType` in a module of `clrt/formats/gguf/`, and the name of the module
in `block_types.py`; it then works with all products and devices. A new layout needs a subclass of
`QuantizedWeights`, and a kernel that reads it. No other table lists types by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from clrt.kernels.quantized_panels_cpu import QuantizedPanels
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows


class WeightFormat(ABC):
    """A quantized constant B `[N, K]` of a matrix product, before it is packed for a kernel.

    N is the number of columns of the product, K the summed axis.
    """

    @abstractmethod
    def panels(self) -> QuantizedPanels:
        """Returns B for the int8 dot-product kernels of CPUs.

        Numerics: scales and minima may be rounded to float16.
        """

    @abstractmethod
    def rows(self) -> PackedQuantizedRows:
        """Returns B for the kernels of GPUs; nothing is rounded."""
