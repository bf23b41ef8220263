"""DepthToSpace and SpaceToDepth: rearrange blocks of pixels into channels and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from clrt.errors import ShapeError
from clrt.ir.dim_operations import floordiv
from clrt.ir.dims import Dim, Shape
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import contiguous_strides, copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import fresh_dims, num_elements
from clrt.ops.registry import register
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y = node.arg(0), node.output
    if not num_elements(y.dims):
        return []
    split, order = node.op_as(_DepthSpace).blocks(x.dims)
    strides = contiguous_strides(split)
    dims, moved = [split[i] for i in order], [strides[i] for i in order]
    target = contiguous_strides(dims)
    return copy_launches(ctx, BufferArg(x), BufferArg(y), x.dtype, dims, moved, target)


@dataclass(frozen=True)
class _DepthSpace(Op):
    """Base of DepthToSpace and SpaceToDepth.

    Attributes:
        blocksize: Height and width of a block, b.
        mode: Channel order: in DCR, the position in the block is the outer part of the channel
            index; in CRD the inner part.
    """

    blocksize: int = 1
    mode: Literal["DCR", "CRD"] = "DCR"

    accuracy = Accuracy.EXACT
    supported_storages = None
    variants = (Variant("strided", _emit),)

    def blocks(self, dims: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns how an input of shape `dims` is rearranged.

        Returns:
            The input's shape with separate axes for blocks, and the permutation of these axes.
        """
        raise NotImplementedError(self.name)

    def result(self, n: Dim, c: Dim, h: Dim, w: Dim) -> Shape:
        """Returns the output shape for n images of c channels, h rows and w columns.

        Raises:
            ShapeError: The input does not divide into blocks.
        """
        raise NotImplementedError(self.name)

    def infer(self, inputs: Types) -> list[TensorType]:
        x = need(inputs, 0, self)
        if x.shape is None:
            return [TensorType(x.dtype, fresh_dims(4))]
        if len(x.shape) != 4:
            raise ShapeError(f"{self.name}: {x} has rank {len(x.shape)}; expected N, C, H, W.")
        return [TensorType(x.dtype, self.result(*x.shape))]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        (x,) = inputs
        assert x is not None
        split, order = self.blocks(x.shape)
        shape = [int(d) for d in self.result(*x.shape)]
        return (x.reshape(split).transpose(order).reshape(shape),)


@register
class DepthToSpace(_DepthSpace):
    """Moves channels into blocks of pixels: `[N, C, H, W]` to `[N, C / b², b H, b W]`.

    N is the number of images, C of channels, H of rows, W of columns; b is `blocksize`.

    Source: ONNX DepthToSpace, opset 1 to 28.
    """

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        return [b("SpaceToDepth", cotangent, blocksize=self.blocksize, mode=self.mode)]

    def blocks(self, dims: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, c, h, w = dims
        b = self.blocksize
        rest = c // (b * b)
        if self.mode == "DCR":
            return (n, b, b, rest, h, w), (0, 3, 4, 1, 5, 2)
        return (n, rest, b, b, h, w), (0, 1, 4, 2, 5, 3)

    def result(self, n: Dim, c: Dim, h: Dim, w: Dim) -> Shape:
        b = self.blocksize
        if b < 1 or (isinstance(c, int) and c % (b * b)):
            raise ShapeError(f"DepthToSpace: {c} channels are not a multiple of {b}x{b}.")
        return (n, floordiv(c, b * b), h * b, w * b)


@register
class SpaceToDepth(_DepthSpace):
    """Moves blocks of pixels into channels: `[N, C, H, W]` to `[N, C b², H / b, W / b]`.

    N is the number of images, C of channels, H of rows, W of columns; b is `blocksize`.

    Source: ONNX SpaceToDepth, opset 1 to 28.
    """

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        (cotangent,) = cotangents
        return [b("DepthToSpace", cotangent, blocksize=self.blocksize, mode=self.mode)]

    def blocks(self, dims: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        n, c, h, w = dims
        b = self.blocksize
        order = (0, 3, 5, 1, 2, 4) if self.mode == "DCR" else (0, 1, 3, 5, 2, 4)
        return (n, c, h // b, b, w // b, b), order

    def result(self, n: Dim, c: Dim, h: Dim, w: Dim) -> Shape:
        b = self.blocksize
        if b < 1 or any(isinstance(d, int) and d % b for d in (h, w)):
            raise ShapeError(f"SpaceToDepth: {h}x{w} pixels do not divide into blocks of {b}x{b}.")
        return (n, c * (b * b), floordiv(h, b), floordiv(w, b))
