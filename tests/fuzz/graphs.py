"""Random valid graphs over the registry.

A graph grows by nodes whose inputs are existing values. Nodes around which passes work
(elementwise, products, views, reductions) come from recipes; every other op comes with the inputs
of one of its own samples, the floating-point ones of which become inputs of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from clrt.errors import ClrtError
from clrt.ir.dims import Dim, UndecidableDim, same_shape, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.text import print_graph
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.pointwise.base import Pointwise
from tests.ops.samples import Sample, samples

SIZES = {"n": 4, "m": 3}
_DIMS: tuple[Dim, ...] = (1, 2, 3, 5, 17, symbol("n"), symbol("m"))
_MAX_ELEMS = 20_000
_TRIES = 20


@dataclass
class _Builder:
    """A graph in the making.

    Attributes:
        choose: A number below another.
        rng: For constants.
    """

    choose: Callable[[int], int]
    rng: np.random.Generator
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    names: int = 0

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.choose(len(options))]

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def input(self, dtype: DType, shape: tuple[Dim, ...]) -> Value:
        value = Value(self.fresh("x"), TensorType(dtype, shape))
        self.inputs.append(value)
        self.pool.append(value)
        return value

    def constant(self, array: Any, dtype: DType = DType.INT64) -> Value:
        data = np.asarray(array, dtype.numpy)
        return Value(self.fresh("c"), TensorType(dtype, data.shape, data))

    def weight(self, *shape: int) -> Value:
        return self.constant(self.rng.standard_normal(shape), DType.FLOAT32)

    def floats(self, ranks: Sequence[int] = (0, 1, 2, 3, 4)) -> Value:
        """Returns a float32 tensor of one of the ranks; a new input if none exists."""
        found = [
            v
            for v in self.pool
            if v.dtype is DType.FLOAT32 and v.shape is not None and len(v.shape) in ranks
        ]
        if found and self.choose(8):
            return found[-1 - min(self.choose(len(found)), self.choose(len(found)))]
        rank = self.pick([r for r in ranks if r])
        return self.input(DType.FLOAT32, tuple(self.pick(_DIMS) for _ in range(rank)))

    def add(self, op: Op, *inputs: Value | None) -> list[Value] | None:
        """Adds a node and returns its outputs; None if its inputs do not fit."""
        given = [None if v is None else v.type for v in inputs]
        try:
            types = op.infer_with_data(given)
            op.infer_with_data([None if t is None else t.bind(SIZES) for t in given])
        except (ClrtError, UndecidableDim):
            return None
        if not all(_fits(t) for t in types):
            return None
        outputs = [Value(self.fresh("y"), t) for t in types]
        self.nodes.append(Node(self.fresh("n"), op, list(inputs), outputs))
        self.pool += outputs
        return outputs


def _fits(type_: TensorType) -> bool:
    if type_.shape is None:
        return False
    bound = type_.bind(SIZES)
    return bound.is_static and np.prod([int(d) for d in bound.shape or ()]) <= _MAX_ELEMS


def _ints(shape: tuple[Dim, ...] | None) -> tuple[int, ...]:
    bound = TensorType(DType.FLOAT32, shape).bind(SIZES).shape
    return tuple(int(d) for d in bound or ())


def _op(name: str, **attributes: Any) -> Op:
    op = REGISTRY.named(name)(**attributes)
    assert isinstance(op, Op)
    return op


@cache
def _pointwise() -> tuple[type[Pointwise], ...]:
    """Returns elementwise ops defined for all numbers, with slopes that do not amplify errors."""
    wild = {"Tan", "Sinh", "Cosh", "Pow", "Mod", "Log", "Acosh", "Atanh", "Asin", "Acos", "Exp"}
    return tuple(
        c
        for c in REGISTRY.all_classes().values()
        if issubclass(c, Pointwise) and c.floats and not c.domain and c.__name__ not in wild
        if c.__name__ not in ("Cast", "Where", "PRelu", "Clip", "BitShift")
    )


@cache
def _samples() -> tuple[Sample, ...]:
    """Returns the samples of every deterministic op with at least one tensor input."""
    found = []
    for cls in REGISTRY.all_classes().values():
        if (
            cls.domain
            or cls.host_traits.host_driven
            or cls.__name__.startswith(("Random", "Multinomial"))
        ):
            continue
        if issubclass(cls, Pointwise):
            continue
        found += [s for s in list(samples(cls))[:12] if not any(map(_is_text, s.inputs))]
    return tuple(found)


def _is_text(array: Array | None) -> bool:
    return array is not None and array.dtype.kind == "U"


def _elementwise(b: _Builder) -> None:
    cls = b.pick(_pointwise())
    operands = [b.floats() for _ in range(cls.arity)]
    if cls.arity == 2 and not b.choose(3):
        operands[b.choose(2)] = b.constant(round(b.rng.uniform(-2, 2), 2), DType.FLOAT32)
    if cls.__name__ in ("Div", "Reciprocal"):
        # Away from 0, where the rounding of what comes before decides.
        size = b.add(_op("Abs"), operands[-1])
        far = b.add(_op("Add"), size[0], b.constant(0.5, DType.FLOAT32)) if size else None
        operands[-1] = far[0] if far else operands[-1]
    made = b.add(cls(), *operands)
    if made and made[0].dtype is DType.BOOL:
        x = operands[0]
        b.add(_op("Where"), made[0], x, b.floats())
        b.add(_op("Cast", to=DType.FLOAT32), made[0])


def _product(b: _Builder) -> None:
    x = b.floats((2, 3, 4))
    k = _ints(x.shape)[-1]
    if b.choose(3):
        n = b.pick((1, 3, 16, 20))
        made = b.add(_op("MatMul"), x, b.weight(k, n))
        if made and b.choose(2):
            made = b.add(_op("Add"), made[0], b.weight(n))
        if made and b.choose(2):
            b.add(_op(b.pick(("Relu", "Tanh", "Sigmoid", "Gelu"))), made[0])
    else:
        perm = (*range(len(x.shape or ()) - 2), len(x.shape or ()) - 1, len(x.shape or ()) - 2)
        made = b.add(_op("Transpose", perm=perm), x)
        if made:
            b.add(_op("MatMul"), *(x, made[0]) if b.choose(2) else (made[0], x))


def _movement(b: _Builder) -> None:
    x = b.floats((1, 2, 3, 4))
    rank, dims = len(x.shape or ()), _ints(x.shape)
    axis = b.choose(rank)
    match b.choose(10):
        case 0:
            b.add(_op("Transpose", perm=tuple(b.rng.permutation(rank).tolist())), x)
        case 1:
            b.add(_op("Reshape"), x, b.constant([-1] if b.choose(2) else [0] * axis + [-1]))
        case 2:
            made = b.add(_op("Unsqueeze"), x, b.constant([axis]))
            if made and b.choose(2):
                b.add(_op("Squeeze"), made[0], b.constant([axis]))
        case 3:
            start = b.choose(max(dims[axis], 1))
            step = b.pick((1, 1, 2, -1))
            end = start + 1 + b.choose(dims[axis]) if step > 0 else -dims[axis] - 1
            b.add(_op("Slice"), x, *(b.constant([v]) for v in (start, end, axis, step)))
        case 4:
            b.add(_op("Concat", axis=axis), x, b.floats((rank,)), x)
        case 5:
            for part in b.add(_op("Split", axis=axis, num_outputs=2), x) or ():
                if b.choose(2):
                    b.add(_op("Neg"), part)
        case 6:
            b.add(_op("Expand"), x, b.constant([b.pick((1, 2, 3)), *(1 for _ in dims)]))
        case 7:
            if dims[axis]:
                index = b.rng.integers(-dims[axis], dims[axis], b.pick(((), (2,), (2, 3))))
                b.add(_op("Gather", axis=axis), x, b.constant(index))
        case 8:
            pads = [b.choose(3) for _ in range(2 * rank)]
            b.add(_op("Pad", mode="constant"), x, b.constant(pads))
        case 9:
            b.add(_op("Tile"), x, b.constant([b.pick((1, 2)) for _ in dims]))


def _reduction(b: _Builder) -> None:
    x = b.floats((1, 2, 3, 4))
    rank = len(x.shape or ())
    name = b.pick(("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare"))
    axes = sorted({b.choose(rank) for _ in range(1 + b.choose(rank))})
    made = b.add(_op(name, keepdims=bool(b.choose(2))), x, b.constant(axes))
    if made and b.choose(2):
        b.add(_op("Sub"), x, made[0])


def _normalisation(b: _Builder) -> None:
    x = b.floats((1, 2, 3, 4))
    last = _ints(x.shape)[-1]
    match b.choose(4):
        case 0:
            b.add(_op("Softmax", axis=b.choose(len(x.shape or ()))), x)
        case 1:
            b.add(_op("LayerNormalization", axis=-1), x, b.weight(last), b.weight(last))
        case 2:
            b.add(_op("RMSNormalization", axis=-1), x, b.weight(last))
        case 3:
            mean = b.add(_op("ReduceMean"), x, b.constant([-1]))
            centred = b.add(_op("Sub"), x, mean[0]) if mean else None
            square = b.add(_op("Mul"), centred[0], centred[0]) if centred else None
            variance = b.add(_op("ReduceMean"), square[0], b.constant([-1])) if square else None
            if variance and centred:
                eps = b.constant(1e-3, DType.FLOAT32)
                root = b.add(_op("Sqrt"), (b.add(_op("Add"), variance[0], eps) or [eps])[0])
                b.add(_op("Div"), centred[0], (root or [eps])[0])


def _sample(b: _Builder) -> None:
    """Any op, on the inputs of one of its samples."""
    sample = b.pick(_samples())
    inputs: list[Value | None] = []
    for index, array in enumerate(sample.inputs):
        if array is None:
            inputs.append(None)
            continue
        known = index in sample.op.input_traits.plan_time or array.dtype != np.float32
        if known or not b.choose(2):
            inputs.append(b.constant(array, DType.of(array.dtype)))
        else:
            inputs.append(_shaped(b, array.shape))
    b.add(sample.op, *inputs)


def _shaped(b: _Builder, shape: tuple[int, ...]) -> Value:
    """Returns a float32 value of a shape: an existing one or a new input."""
    found = [v for v in b.pool if v.dtype is DType.FLOAT32 and same_shape(v.shape, shape)]
    return b.pick(found) if found and b.choose(4) else b.input(DType.FLOAT32, shape)


_RECIPES = (
    _elementwise, _elementwise, _elementwise, _product, _movement, _movement, _reduction,
    _normalisation, _sample, _sample,
)  # fmt: skip


class Case:
    """A graph and an array for each of its inputs; hypothesis would print all of a dataclass."""

    def __init__(self, graph: Graph, feeds: dict[str, Array]) -> None:
        self.graph, self.feeds = graph, feeds

    def __repr__(self) -> str:
        shapes = ", ".join(f"{n}={list(a.shape)}" for n, a in self.feeds.items())
        return f"{print_graph(self.graph)}with {shapes}"


@st.composite
def graphs(draw: st.DrawFn, max_nodes: int = 12) -> Case:
    """Draws a graph with symbolic dims n and m, and an array for each input."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    builder = _Builder(lambda below: draw(st.integers(0, below - 1)) if below > 1 else 0, rng)
    for _ in range(draw(st.integers(1, max_nodes))):
        builder.pick(_RECIPES)(builder)
    read = {v for n in builder.nodes for v in n.inputs}
    outputs = [v for n in builder.nodes for v in n.outputs if v not in read]
    if not outputs:
        x = builder.floats()
        outputs = builder.add(_op("Neg"), x) or [x]
    kept = [v for v in builder.pool if v.producer is not None and v in read]
    if kept and draw(st.booleans()):
        outputs.append(builder.pick(kept))  # a value that a fusion must not swallow
    graph = Graph("fuzz", builder.inputs, list(dict.fromkeys(outputs)), builder.nodes)
    feeds = {v.name: rng.uniform(-2, 2, _ints(v.shape)).astype(np.float32) for v in graph.inputs}
    return Case(graph, feeds)
