"""1-D convolution without padding as a GEMM whose rows of A overlap in memory.

A window is a contiguous run of elements, and the next window starts one stride later. An example
is an STFT exported as a Conv with 256 taps and stride 128.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from clrt.ir.graph import Node
from clrt.kernels.gemm_cpu import packed_width
from clrt.kernels.gemm_problem import GemmProblem, MatrixOperand
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import BufferArg
from clrt.kernels.variant import Lowering
from clrt.ops.conv.conv import Convolution


def product_of_lines(node: Node, product: GemmProblem, ctx: Lowering) -> GemmProblem | None:
    """Returns a 1-D channels-last convolution as a GEMM for `emit_cpu`, with overlapping rows of A.

    Returns None if the convolution has padding, dilations, groups or several spatial axes.

    Args:
        node: Convolution of `[images, positions, channels]`.
        product: GEMM of windows and weights by `channels_last_gemm.product_of`.
    """
    op, x, w = node.op_as(Convolution), node.arg(0), node.arg(1)
    window = op.window(w.shape)
    assert window is not None
    steps = (*window.steps(op.dilations), op.group)
    if len(x.dims) != 3 or window.is_padded or any(v != 1 for v in steps):
        return None
    channels = x.dims[2]
    (stride,) = window.steps(op.strides)
    rows = MatrixOperand(BufferArg(x), (x.dims[1] * channels, 0, stride * channels, 1))
    columns = packed_width(product, ctx)
    packed = Panels(product.k, product.n, columns, True, prod(w.dims[2:])).of(w)
    panels = MatrixOperand(BufferArg(packed), (0, 0, columns, 1), in_panels=True)
    return replace(product, a=rows, b=panels)
