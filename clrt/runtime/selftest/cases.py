"""Cases of the self-test: ops of each kernel family on small data."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.ir.op import Array, ElementwiseInstruction
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.paged_attention import PagedAttention
from clrt.ops.attention.rotate_and_cache import RotateAndCache
from clrt.ops.base import Op
from clrt.ops.conv.conv import Conv
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.matmul_integer import MatMulInteger
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.scatter_elements import ScatterElements
from clrt.ops.movement.transpose import Transpose
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.fused import Fused
from clrt.ops.pointwise.table import Abs, Add, Cos, Erf, Exp, Gelu, Log, Mul, Sin, Sqrt, Tanh
from clrt.ops.reduce.argmax import ArgMax
from clrt.ops.reduce.reduce import ReduceMean, ReduceSum
from clrt.ops.vision.pooling import MaxPool
from clrt.util.fast_dataclass import dataclass

# Query heads, key-value heads, and elements per head of the attention cases.
_HEADS, _KV_HEADS, _SIZE = 4, 2, 64


@dataclass(frozen=True)
class Case:
    """A self-test case: an op with its inputs.

    Attributes:
        family: Kernel family that the case tests, as messages name it.
        op: Op to compute.
        inputs: Array per input of the op; None for an absent one.
        weights: Indices of the inputs that are constants, which kernels read packed.
    """

    family: str
    op: Op
    inputs: tuple[Array | None, ...]
    weights: tuple[int, ...] = ()


def cases() -> Iterator[Case]:
    """Yields all cases of the self-test, with the same data at each call.

    The tensor sizes are not multiples of the kernels' tile sizes.
    """
    rng = np.random.default_rng(0)
    yield from _products(rng)
    yield from _attentions(rng)
    yield from _paged(rng)
    yield from _rows(rng)
    yield from _convolutions(rng)
    yield from _moves(rng)
    yield Case("elementwise kernels", Fused(_mathematics()), _normal(rng, (5, 701), (701,)))


def _products(rng: np.random.Generator) -> Iterator[Case]:
    """Yields cases of matrix products."""
    family = "matrix products"
    gelu = FusedMatMul(
        steps=(ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Gelu(), (2,)))
    )
    yield Case(family, gelu, _normal(rng, (70, 130), (130, 67), (67,)), (1, 2))
    yield Case(family, MatMul(), _normal(rng, (3, 33, 40), (3, 40, 50)))
    yield Case(family, MatMul(), _normal(rng, (300, 200), (200, 300)), (1,))
    halves = tuple(x.astype(np.float16) for x in _normal(rng, (130, 128), (128, 200)))
    yield Case(family, MatMul(), halves, (1,))  # uses the matrix unit, if there is one
    integers = rng.integers(0, 256, (33, 70)), rng.integers(-128, 128, (70, 50))
    yield Case(family, MatMulInteger(), (_as(integers[0], "u1"), _as(integers[1], "i1")), (1,))
    family = "products of few rows"
    yield Case(family, MatMul(), _normal(rng, (3, 300), (300, 70)), (1,))
    x, weights, bias = _normal(rng, (3, 70), (70, 33), (33,))
    biased = FusedMatMul(steps=(ElementwiseInstruction(Add(), (0, 1)),))
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        narrow = weights.astype(dtype.numpy)
        yield Case("weights of 16 bits", biased, (x, narrow, bias), (1, 2))
    op = MatMulNBits(300, 70, 4, 32)
    levels = rng.integers(0, 256, (70, op.blocks, op.lines // op.blocks))
    scales = rng.uniform(0.01, 0.1, (70, op.blocks))
    for rows in (1, 12):
        (x,) = _normal(rng, (rows, 300))
        yield Case(family, op, (x, _as(levels, "u1"), _as(scales, "f4")), (1, 2))


def _attentions(rng: np.random.Generator) -> Iterator[Case]:
    width = _HEADS * _SIZE
    op = FusedAttention.plain(_HEADS, _SIZE, is_causal=True, at_end=True)
    yield Case("attention", op, _normal(rng, (2, 17, width), *[(2, 33, width)] * 2))
    plain = FusedAttention.plain(_HEADS, _SIZE)
    yield Case("attention", plain, _normal(rng, (1, 1, width), *[(1, 300, width)] * 2))


def _paged(rng: np.random.Generator) -> Iterator[Case]:
    """Yields cases of paged attention: a decode step with tokens of two sequences.

    The first sequence has two KV pages, the second has one.

    Args:
        rng: Generator of the cases' random data.
    """
    heads = (_HEADS, _KV_HEADS, _SIZE)
    step = _as([[0, 0, PAGE_TOKENS + 8], [1, 0, PAGE_TOKENS + 9], [2, 1, 5]], "i4")
    table = _as([[0, 2], [1, 0]], "i4")
    pitch = _KV_HEADS * 2 * PAGE_TOKENS * _SIZE
    slabs = _normal(rng, (1, pitch), (2, pitch), *[(0, pitch)] * (MAX_SLABS - 2))
    (x,) = _normal(rng, (3, (_HEADS + 2 * _KV_HEADS) * _SIZE))
    angles = rng.uniform(0, 6, (3, _SIZE // 2))
    tables = _as(np.cos(angles), "f4"), _as(np.sin(angles), "f4")
    written = RotateAndCache(*heads)
    yield Case("paged attention", written, (x, step, table, *tables, None, None, *slabs))
    op = PagedAttention(*heads, scale=_SIZE**-0.5)
    q = x[:, : _HEADS * _SIZE].copy()
    yield Case("paged attention", op, (q, step, table, None, None, None, *slabs))


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    """Yields cases of softmax, normalizations and reductions."""
    yield Case("softmax", Softmax(), _normal(rng, (7, 300)))
    family = "layer normalisation"
    yield Case(family, LayerNormalization(), _normal(rng, (7, 300), (300,), (300,)), (1, 2))
    yield Case(family, RMSNormalization(), _normal(rng, (7, 300), (300,)), (1,))
    family = "reductions"
    x = _as(rng.uniform(1, 4, (41, 700)), "f4")
    yield Case(family, ReduceSum(), (x, np.array([1])))
    yield Case(family, ReduceSum(), (x, np.array([0])))
    yield Case(family, ReduceMean(), (x,))
    yield Case(family, ArgMax(1), (x,))


def _convolutions(rng: np.random.Generator) -> Iterator[Case]:
    pads = (1, 1, 1, 1)
    dense = Conv((3, 3), pads=pads)
    yield Case("convolution", dense, _normal(rng, (2, 5, 14, 13), (20, 5, 3, 3), (20,)), (1, 2))
    by_channel = Conv((3, 3), (2, 2), pads=pads, group=8)
    yield Case("convolution", by_channel, _normal(rng, (1, 8, 15, 14), (8, 1, 3, 3)), (1,))
    yield Case("pooling", MaxPool((3, 3), (2, 2)), _normal(rng, (2, 5, 14, 13)))


def _moves(rng: np.random.Generator) -> Iterator[Case]:
    """Yields cases of gathers, scatters and copies."""
    family = "gather and scatter"
    (x,) = _normal(rng, (50, 33))
    yield Case(family, Gather(), (x, rng.integers(-50, 50, (4, 5))), (0,))
    places = np.argsort(rng.random((50, 33)), 0)[:20]
    yield Case(family, ScatterElements(), (x, places, *_normal(rng, (20, 33))))
    yield Case("copies", Transpose((2, 0, 1)), _normal(rng, (33, 5, 47)))
    yield Case("copies", Concat(1), _normal(rng, (7, 33), (7, 70)))


def _mathematics() -> tuple[ElementwiseInstruction, ...]:
    """Returns an elementwise program that sums math functions whose code differs between devices.

    The terms are of similar size, so that an error in any of them shows.
    """
    a, b = 0, 1
    steps = [
        ElementwiseInstruction(Mul(), (a, b)),
        ElementwiseInstruction(Sin(), (2,)),
        ElementwiseInstruction(Cos(), (2,)),
        ElementwiseInstruction(Erf(), (a,)),
    ]
    steps += [
        ElementwiseInstruction(Tanh(), (b,)),
        ElementwiseInstruction(Exp(), (3,)),
        ElementwiseInstruction(Abs(), (2,)),
        ElementwiseInstruction(Sqrt(), (8,)),
    ]
    steps += [ElementwiseInstruction(Log(), (7,))]
    total = 3
    for term in (4, 5, 6, 7, 9, 10):
        steps.append(ElementwiseInstruction(Add(), (total, term)))
        total = 1 + len(steps)
    return tuple(steps)


def _normal(rng: np.random.Generator, *shapes: tuple[int, ...]) -> tuple[Array, ...]:
    return tuple(rng.standard_normal(s, np.float32) for s in shapes)


def _as(numbers: object, dtype: str) -> Array:
    return np.asarray(numbers).astype(dtype)
