"""RoutedMatMul: the matrix product of a mixture of experts, each row with its expert's matrix."""

from __future__ import annotations

from math import prod

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.cl_code import Define
from clrt.ir.dims import provably_different
from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.thresholds import Tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.index_checks import check_indices, index_status
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

CPU = tuned(
    "routed_matmul_cpu",
    {"T_VW": (4, 8, 16), "T_MR": (2, 4, 6), "T_NR": (2, 4), "T_ROWS": (16, 32, 64)},
    T_VW=8,
    T_MR=4,
    T_NR=Tunable(4, "rows of w", "Rows of w per register tile, as far as registers permit."),
    T_ROWS=32,
)
_FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16)


def _slots(node: Node) -> int:
    return prod(node.arg(2).dims)


def _reject_many(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why the variant that computes slots one by one does not apply; None if it does.

    A slot is a pair of a token and an expert. With more slots than experts the variant does not
    apply, since it would read the weights of an expert again for each slot.
    """
    experts = node.arg(1).dims[0]
    return None if _slots(node) <= experts else f"for up to {experts} slots"


def _launches(node: Node, entry: str, size: tuple[int, ...], **tunables: int) -> list[Launch]:
    """Returns the launch of a kernel of RoutedMatMul; [] for an empty output.

    Args:
        entry: Entry point of the kernel.
        size: Global size.
        tunables: Macros of tunables.
    """
    op, x, weights, experts = node.op_as(RoutedMatMul), node.arg(0), node.arg(1), node.arg(2)
    count, rows, depth = weights.dims
    if not prod(node.output.dims):
        return []
    defines: dict[str, Define] = {
        "DATA_T": x.dtype.cl,
        "DATA": x.dtype.storage,
        "WEIGHT_T": weights.dtype.cl,
        "WEIGHT": weights.dtype.storage,
        "INDEX_T": experts.dtype.cl,
        **tunables,
    }
    kernel = KernelSpec.of("matmul/routed_matmul.cl", entry, **defines)
    status = index_status(node, 2, (count,), "experts")
    buffers = dict(y=node.output, x=x, w=weights, experts=experts, status=status)
    numbers = dict(slots=_slots(node), rows=rows, depth=depth, count=count, each=op.each)
    local = (1, 1) if entry.endswith("cpu") else None
    return [launch(kernel, size, local, **buffers, **numbers)]


def _emit_few(node: Node, ctx: Lowering) -> list[Launch]:
    tunables = {**ctx.tunables(CPU), "T_MR": 1, "BY_SLOT": 1}
    groups = ceil_div(node.arg(1).dims[1], tunables["T_ROWS"])
    return _launches(node, "routed_matmul_cpu", (groups, _slots(node)), **tunables)


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    tunables = {**ctx.tunables(CPU), "BY_SLOT": 0}
    count, rows, _ = node.arg(1).dims
    size = (ceil_div(rows, tunables["T_ROWS"]), count)
    return _launches(node, "routed_matmul_cpu", size, **tunables)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    return _launches(node, "routed_matmul", (node.arg(1).dims[1], _slots(node)), T_VW=1)


@register
@dataclass(frozen=True)
class RoutedMatMul(Op):
    """y[s] = W[experts[s]] x[s / each] for each slot s, a pair of a token and one of its experts.

    Inputs: x `[slots / each, K]` and W `[E, N, K]`, for E experts with matrices of N rows and K
    columns, float32, float16 or bfloat16, not necessarily of one dtype; experts `[tokens, used]`,
    the expert of each slot, for `used` experts per token. Output: `[slots, N]` in x's dtype. Only
    the weights of experts with a token are read.

    Attributes:
        each: Slots per row of x: `used` if the rows of x are tokens, 1 if they are slots.

    Numerics: sums are float32.

    Source: clrt; Shazeer et al., Outrageously Large Neural Networks (2017) for mixtures of experts.
    """

    each: int = 1

    domain = "clrt"
    accuracy = Accuracy.ACCUMULATED
    supported_storages = WIDENED_STORAGES
    input_traits = InputTraits(index=(2,), half_storage=(1,))
    variants = (
        Variant("few_cpu", _emit_few, _reject_many, requires.CPU),
        Variant("cpu", _emit_cpu, requires=requires.CPU),
        Variant("any", _emit_any, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x, weights, experts = (need(inputs, i, self) for i in range(3))
        if x.dtype not in _FLOATS or weights.dtype not in _FLOATS or self.each < 1:
            raise ShapeError(f"{self.name}: {x} times {weights}; expected floats.")
        shapes = (x.shape, weights.shape, experts.shape)
        if any(s is not None and len(s) != n for s, n in zip(shapes, (2, 3, 2), strict=True)):
            raise ShapeError(
                f"{self.name}: x {x}, W {weights} and experts {experts}; expected ranks 2, 3, 2."
            )
        if x.shape is None or weights.shape is None or experts.shape is None:
            return [TensorType(x.dtype, None)]
        slots = experts.shape[0] * experts.shape[1]
        if provably_different(x.shape[1], weights.shape[2]) or provably_different(
            x.shape[0] * self.each, slots
        ):
            raise ShapeError(
                f"{self.name}: x {x} does not match W {weights} and experts {experts}, with "
                f"{self.each} slots of each row."
            )
        return [TensorType(x.dtype, (slots, weights.shape[1]))]

    def flops(self, inputs: Types, outputs: Types) -> int:
        weights, y = need(inputs, 1, self).shape, need(outputs, 0, self).shape
        assert weights is not None and y is not None
        return 2 * prod(int(d) for d in y) * int(weights[2])

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, weights, experts = inputs
        assert x is not None and weights is not None and experts is not None
        chosen = check_indices(experts, weights.shape[:1], self.name, 2).reshape(-1)
        wide = x.astype(np.float64)
        y = np.zeros((len(chosen), weights.shape[1]))
        for slot, expert in enumerate(chosen):
            y[slot] = weights[expert].astype(np.float64) @ wide[slot // self.each]
        return (y.astype(x.dtype),)
