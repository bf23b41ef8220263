"""Lowering of channels-last convolutions to GEMMs, shared by their kernels."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from clrt.errors import UnsupportedError
from clrt.ir.dims import provably_equal
from clrt.ir.graph import Node, Value
from clrt.ir.op import TensorType
from clrt.kernels.gemm_problem import Epilogue, EpilogueOperand, GemmProblem, MatrixOperand
from clrt.kernels.gemm_tile import is_whole
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch, pitched_args
from clrt.kernels.strided import broadcast_strides
from clrt.kernels.tuned import TunedKernel
from clrt.ops.conv.conv import FusedConv, window_of
from clrt.ops.matmul.matmul import make_epilogue
from clrt.ops.pointwise.fused import symbolic_shape

_AXES = 3


def _epilogue(node: Node) -> Epilogue:
    """Returns the epilogue of a channels-last convolution: its bias, then the op's `steps`."""
    op, y = node.op_as(FusedConv), node.output
    maps = y.dims[-1] // op.group
    operands = [_operand(value, y, maps) for value in op.extras(node)]
    bias = node.input(2)
    if bias is not None:
        operands.insert(0, EpilogueOperand(bias, (0, maps, 0), per_column=True))
    return make_epilogue(op.program(node.input_types), y.dtype, operands)


def _operand(value: Value, y: Value, maps: int) -> EpilogueOperand:
    """Returns a tensor that the epilogue reads, with its strides over images, groups and positions.

    Args:
        value: Tensor that broadcasts to `y`.
        y: Output of the convolution, channels last.
        maps: Output channels per group.
    """
    shape, rank = symbolic_shape(value), len(y.dims)
    full = (*(1,) * (rank - len(shape)), *shape)
    per_column = not provably_equal(full[-1], 1)
    per_position = not all(provably_equal(d, 1) for d in full[1:-1])
    image = broadcast_strides(value.dims, y.dims)[0]
    channels = y.dims[-1] if per_column else 1
    strides = (image, maps if per_column else 0, channels if per_position else 0)
    return EpilogueOperand(
        value, strides, per_column, width=channels if per_column and per_position else 0
    )


def product_of(node: Node) -> GemmProblem:
    """Lowers a channels-last convolution to the GEMM of windows and weights.

    A, the matrix of windows, is x itself if windows are 1 x 1. For larger windows A is x, too, but
    kernels gather the elements of the windows from it.

    Raises:
        UnsupportedError: There are more than three spatial axes, or kernels do not support the
            epilogue.
    """
    x, w, y, op = node.arg(0), node.arg(1), node.output, node.op_as(FusedConv)
    if len(x.dims) - 2 > _AXES:
        raise UnsupportedError(f"{len(x.dims) - 2} spatial axes; the kernel walks up to {_AXES}")
    n, k, positions = w.dims[0] // op.group, prod(w.dims[1:]), prod(y.dims[1:-1])
    batch = (x.dims[0], op.group)
    images = MatrixOperand(BufferArg(x), (positions * k, 0, k, 1), by_rows=True)
    weights = MatrixOperand(BufferArg(w), (0, n * k, 1, k))
    return GemmProblem(y, x.dtype, batch, positions, n, k, images, weights, _epilogue(node))


def geometry(node: Node) -> dict[str, int]:
    """Returns the geometry of a channels-last convolution by kernel argument name.

    The result has, for each spatial axis, the sizes of x, y and the window, stride, dilation and
    padding.
    """
    return window_of(node).geometry(node.arg(0).dims[1:-1], node.output.dims[1:-1])


def launch_rows(
    node: Node,
    product: GemmProblem,
    kernel: TunedKernel,
    macros: Mapping[str, int],
    groups: int,
    /,
    **args: Any,
) -> list[Launch]:
    """Emits a CPU kernel that multiplies windows of x by panels of weights.

    Args:
        node: Channels-last convolution.
        product: GEMM of windows and weights, with its epilogue.
        kernel: Kernel to launch.
        macros: Macros of the kernel besides those of the epilogue.
        groups: Number of work-groups, of one work-item each.
        args: Kernel arguments besides x, y, N, the geometry and those of the epilogue.

    Raises:
        UnsupportedError: The epilogue has steps without vector code.
    """
    product.epilogue.check_vectors()
    whole = int(is_whole(product, macros["T_VW"]))
    source = f"conv/{kernel.entry.removesuffix('_cpu')}.cl"
    defines = {**macros, **product.epilogue.defines, "S_N_WHOLE": whole}
    spec = KernelSpec.of(source, kernel.entry, **defines)
    names = spec.signature.names
    args |= {name: n for name, n in geometry(node).items() if name in names}
    x, y = node.arg(0), node.output
    args |= pitched_args("y", y, y.dims[-1]) | {"N": product.n} | product.epilogue.args
    args |= pitched_args("x", x, x.dims[-1]) if "x_pitch" in names else {"x": x}
    return [launch(spec, (groups,), (1,), product.flops, **args)]


@lru_cache(maxsize=256)
def zeros(elems: int) -> Value:
    """Returns a float32 constant of `elems` zeros, which windows read in place of padding.

    Calls with the same `elems` share one constant.
    """
    return Value(f"zeros_{elems}", TensorType.of(np.zeros(elems, np.float32)))
