"""FusedRotary: rotary position embedding of the heads of a projection, as one kernel."""

from __future__ import annotations

import numpy as np

from clrt.device import requires
from clrt.errors import ShapeError
from clrt.ir.dims import Dim, provably_different, provably_equal
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, launch
from clrt.kernels.strided import broadcast_strides
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, reject_but_float32
from clrt.ops.attention.fused_attention import head_steps, heads_apart
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

CPU = tuned("rotary_cpu", {"T_VW": (4, 8, 16)}, T_VW=8)


def _launch(node: Node, entry: str, local: tuple[int, ...] | None, lanes: int) -> list[Launch]:
    op, x, tables, y = node.op_as(FusedRotary), node.arg(0), node.arg(1), node.output
    if 0 in y.dims:
        return []
    batch, places, _ = y.dims
    table_batch, _, table_place, _ = broadcast_strides(
        tables.dims, (batch, 1, places, op.head_size)
    )
    kernel = KernelSpec.of(
        "attention/rotary.cl",
        entry,
        S_D=op.head_size,
        DATA_T=y.dtype.cl,
        STORAGE=y.dtype.storage,
        T_VW=lanes,
    )
    tensors = dict(y=y, x=BufferArg(x, op.offset), cosines=tables, sines=node.arg(2))
    steps = head_steps(x, op.head_size, "x", "place")
    steps |= dict(table_batch=table_batch, table_place=table_place)
    pairs = 1 if lanes > 1 else op.num_heads * op.head_size // 2
    sizes = dict(places=places, heads=op.num_heads)
    return [launch(kernel, (pairs, places, batch), local, **tensors, **sizes, **steps)]


def _emit_cpu(node: Node, ctx: Lowering) -> list[Launch]:
    return _launch(node, "rotary_cpu", (1, 1, 1), ctx.tunables(CPU)["T_VW"])


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    return _launch(node, "rotary_any", None, 1)


@register
@dataclass(frozen=True)
class FusedRotary(Op):
    """Rotary position embedding: x cos + [-b, a] sin for each head x = [a, b] of halves a and b.

    Shapes have B sequences, S positions, H heads of D elements (D even), and W columns. Inputs: x
    `[B, S, W]` with the heads as columns from `offset` on, or `[B, H, S, D]`; cos and sin, which
    broadcast to `[B or 1, 1, S or 1, D]`. Output: `[B, S, H * D]`.

    Attributes:
        num_heads: Number of heads H.
        head_size: Elements of a head, D.
        offset: Column of x `[B, S, W]` at which the first head starts.

    Source: clrt; Su et al., RoFormer (2021), with the halves of a head as pairs as in GPT-NeoX.
    """

    num_heads: int = 1
    head_size: int = 2
    offset: int = 0

    domain = "clrt"
    variants = (
        Variant("cpu", _emit_cpu, reject_but_float32, requires.CPU),
        Variant("any", _emit_any, speed=PlainEfficiency),
    )

    def infer(self, inputs: Types) -> list[TensorType]:
        x, cos, sin = (need(inputs, i, self) for i in range(3))
        if x.dtype is not cos.dtype or x.dtype is not sin.dtype:
            raise ShapeError(f"{self.name}: x is {x}, but the tables {cos} and {sin}.")
        if min(self.num_heads, self.head_size) < 1 or self.offset < 0:
            raise ShapeError(f"{self.name}: the sizes of {self} are not valid.")
        if x.shape is None:
            return [TensorType(x.dtype, None)]
        width = self.num_heads * self.head_size
        last = x.shape[-1]
        if len(x.shape) == 4:
            other = provably_different(x.shape[1], self.num_heads) or provably_different(
                last, self.head_size
            )
            fits = not (self.offset or other)
        else:
            fits = len(x.shape) == 3 and (not isinstance(last, int) or last >= self.offset + width)
        if not fits or self.head_size % 2:
            raise ShapeError(f"{self.name}: x is {x}, which does not match {self}.")
        batch, places = x.shape[0], x.shape[-2]
        for table in (cos, sin):
            static = table.is_static and x.is_static
            if static and not self.table_fits(table, batch, places):
                raise ShapeError(f"{self.name}: a table {table} does not match x {x}.")
        return [TensorType(x.dtype, (batch, places, width))]

    def table_fits(self, table: TensorType, batch: Dim, places: Dim) -> bool:
        """Returns whether the table of cosines or sines has a shape that the op supports.

        The table must broadcast to `[batch, 1, places, head_size]`, with a last axis of
        `head_size`.

        Args:
            table: Type of the table.
            batch: Number of sequences, B.
            places: Number of positions, S.
        """
        if table.shape is None or not 1 <= len(table.shape) <= 4:
            return False
        full = (*(1,) * (4 - len(table.shape)), *table.shape)
        pairs = zip(full, (batch, 1, places, self.head_size), strict=True)
        fits = [provably_equal(dim, 1) or provably_equal(dim, goal) for dim, goal in pairs]
        return all(fits) and provably_equal(full[3], self.head_size)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, cos, sin = inputs
        assert x is not None and cos is not None and sin is not None
        heads = heads_apart(x, self.offset, self.num_heads, self.head_size)
        first, second = np.split(heads, 2, axis=-1)
        y = heads * cos + np.concatenate([-second, first], axis=-1) * sin
        batch, count, places, size = y.shape
        return (y.swapaxes(1, 2).reshape(batch, places, count * size).astype(x.dtype),)
