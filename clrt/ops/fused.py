"""Fused: an elementwise program over broadcast operands, as one generated kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Shape, same, same_shape
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, Step, TensorType
from clrt.kernels.spec import (
    Arg,
    BufferArg,
    KernelSpec,
    Launch,
    Lowering,
    Scalar,
    Variant,
    ceil_div,
    i32,
)
from clrt.kernels.strided import MAX_RANK, broadcast_strides, collapse, pad_rank
from clrt.ops.base import Accuracy, Op, Sample, Types, register
from clrt.ops.pointwise import Pointwise

VECTOR_WIDTH = 8


@register
@dataclass(frozen=True)
class Literal(Op):
    """A number in a fused program.

    Source: clrt; it takes the place of a one-element constant.
    """

    value: float = 0.0
    dtype: DType = DType.FLOAT32

    domain = "clrt"

    def infer(self, inputs: Types) -> list[TensorType]:
        return [TensorType(self.dtype, ())]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.asarray(self.value, self.dtype.numpy),)

    def cl(self) -> str:
        """The literal in OpenCL C, exact to the last bit."""
        if not self.dtype.is_float:
            return f"({self.dtype.cl})({int(self.value)})"
        if math.isnan(self.value):
            return "NAN"
        if math.isinf(self.value):
            return "INFINITY" if self.value > 0 else "(-INFINITY)"
        if self.dtype is DType.FLOAT64:
            return f"({self.value!r})"
        return f"({float(np.float32(self.value)).hex()}f)"


@dataclass(frozen=True)
class Program:
    """A rendered elementwise program.

    Attributes:
        body: Declarations of the steps over v0, v1, …
        result: The variable that holds the last step.
    """

    body: str
    result: str
    dtype: DType


def compute_type(dtype: DType) -> str:
    """The C type in which a value of a dtype is computed."""
    if dtype in (DType.FLOAT32, DType.FLOAT16):
        return "F"
    return "I" if dtype is DType.BOOL else dtype.cl


def step_types(steps: Sequence[Step], inputs: Sequence[TensorType]) -> list[TensorType]:
    """Types of the operands followed by those of the steps."""
    types = list(inputs)
    for step in steps:
        types.append(step.op.infer([types[a] for a in step.args])[0])
    return types


def render(steps: Sequence[Step], inputs: Sequence[TensorType]) -> Program | str:
    """OpenCL C for a program over variables v0…, or the reason there is none."""
    types = step_types(steps, inputs)
    lines = []
    for index, step in enumerate(steps, start=len(inputs)):
        dtypes = [types[a].dtype for a in step.args]
        if isinstance(step.op, Literal):
            expr: str | None = step.op.cl()
        else:
            assert isinstance(step.op, Pointwise)
            expr = step.op.cl([f"v{a}" for a in step.args], dtypes)
        if expr is None:
            return f"{step.op.name} has no kernel for {dtypes[0]}"
        kind = compute_type(types[index].dtype)
        lines.append(f"const {kind} v{index} = ({kind})({expr});")
    return Program(" ".join(lines), f"v{len(types) - 1}", types[-1].dtype)


def can_vectorise(steps: Sequence[Step], inputs: Sequence[TensorType]) -> bool:
    """Whether the program holds for float vectors: float32 memory, float32 and bool steps."""
    types = step_types(steps, inputs)
    memory = [*inputs, types[-1]]
    return all(t.dtype is DType.FLOAT32 for t in memory) and all(
        t.dtype in (DType.FLOAT32, DType.BOOL) for t in types
    )


@register
@dataclass(frozen=True)
class Fused(Op):
    """Elementwise steps over inputs that broadcast together; the last step is the output.

    Source: clrt.
    """

    steps: tuple[Step, ...] = ()

    domain = "clrt"
    accuracy = Accuracy.TRANSCENDENTAL
    in_place = tuple(range(64))

    def infer(self, inputs: Types) -> list[TensorType]:
        present = [t for t in inputs if t is not None]
        return [step_types(self.steps, present)[-1]]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        values: list[Array | None] = list(inputs)
        for step in self.steps:
            assert isinstance(step.op, Op)
            values.append(step.op.reference(*(values[a] for a in step.args))[0])
        result = values[-1]
        assert result is not None
        return (result,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        from clrt.ops.pointwise import Add, Gelu, Less, Mul, Where

        rng = np.random.default_rng(1)
        steps = (
            Step(Add(), (0, 1)),
            Step(Gelu(), (2,)),
            Step(Literal(0.5), ()),
            Step(Mul(), (3, 4)),
        )
        pick = (Step(Less(), (0, 1)), Step(Where(), (2, 0, 1)))
        for n in (1, 7, 8, 9, 65):
            for shapes in [
                ((n,), (n,)),
                ((3, n), (n,)),
                ((3, n), (3, 1)),
                ((2, 1, n), (4, 1)),
                ((n,), ()),
            ]:
                a, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
                yield Sample(cls(steps), (a, b))
                yield Sample(cls(pick), (a, b))


def steps_of(op: Op, arity: int) -> tuple[Step, ...]:
    """The program of a node: its own steps, or the one step that a pointwise op is."""
    return op.steps if isinstance(op, Fused) else (Step(op, tuple(range(arity))),)


def _inputs(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None]


def _misfit(node: Node, caps: DeviceCaps) -> str | None:
    values = _inputs(node)
    assert isinstance(node.op, Op)
    steps = steps_of(node.op, len(values))
    program = render(steps, [v.type for v in values])
    if isinstance(program, str):
        return program
    types = step_types(steps, [v.type for v in values])
    if not caps.has_fp64 and any(t.dtype is DType.FLOAT64 for t in types):
        return "the device has no float64"
    out = node.output.dims
    dims, _ = collapse(out[:-1], *(broadcast_strides(v.dims, out)[:-1] for v in values))
    if len(dims) > MAX_RANK - 1:
        return f"{len(dims) + 1} axes remain after merging; kernels walk up to {MAX_RANK}"
    return None


def symbolic_shape(value: Value) -> Shape:
    """The shape before dims were bound: what may decide on a kernel without tying it to sizes."""
    return value.symbolic if value.symbolic is not None else value.dims


def _is_one(value: Value) -> bool:
    return all(same(d, 1) for d in symbolic_shape(value))


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    values, y = _inputs(node), node.output
    assert isinstance(node.op, Op)
    steps = steps_of(node.op, len(values))
    total = int(np.prod(y.dims))
    program = render(steps, [v.type for v in values])
    if total == 0 or isinstance(program, str):
        return []
    target = symbolic_shape(y)
    flat = all(_is_one(v) or same_shape(symbolic_shape(v), target) for v in values)
    buffers: list[Arg] = [BufferArg(y), *(BufferArg(v) for v in values)]
    defines: dict[str, object] = {
        "INPUTS": "".join(f", IN({v.dtype.cl}, x{k})" for k, v in enumerate(values)),
        "BODY": program.body,
        "RESULT": program.result,
        "OUT_T": y.dtype.cl,
        "STORE_HALF": int(y.dtype is DType.FLOAT16),
    }
    if flat:
        width = VECTOR_WIDTH if can_vectorise(steps, [v.type for v in values]) else 1
        reads = [
            f"{'ONE' if _is_one(v) else 'READ'}{_suffix(v)}({k})" for k, v in enumerate(values)
        ]
        defines |= {"VW": width, "READS": _declare(values, reads)}
        kernel = KernelSpec.of("elementwise.cl", "elementwise_flat", **defines)
        return [Launch(kernel, (ceil_div(total, width),), None, (*buffers, i32(total)))]
    return [_general(values, y, buffers, defines)]


def _suffix(value: Value) -> str:
    return "_HALF" if value.dtype is DType.FLOAT16 else ""


def _declare(values: Sequence[Value], reads: Sequence[str]) -> str:
    pairs = zip(values, reads, strict=True)
    return " ".join(
        f"const {compute_type(v.dtype)} v{k} = {read};" for k, (v, read) in enumerate(pairs)
    )


def _general(
    values: Sequence[Value], y: Value, buffers: list[Arg], defines: dict[str, object]
) -> Launch:
    """Broadcast operands: the last axis is one work-item each, the others are walked by strides."""
    out = y.dims or (1,)
    strides = [broadcast_strides(v.dims or (1,), out) for v in values]
    dims, outer = collapse(out[:-1], *(s[:-1] for s in strides))
    d = pad_rank(dims, 1)[1:]
    scalars: list[Scalar] = [i32(v) for v in (out[-1], *d)]
    reads = []
    for k, (value, stride, rest) in enumerate(zip(values, strides, outer, strict=True)):
        axes = pad_rank(rest, 0)[1:]
        scalars += [i32(s) for s in axes]
        scalars.append(i32(stride[-1]))
        reads.append(f"AT_STRIDED{_suffix(value)}({k}, {_inner(value, y)})")
    names = [f"const IDX_T s{k}_{j}" for k in range(len(values)) for j in range(MAX_RANK)]
    defines |= {
        "GENERAL": 1,
        "VW": 1,
        "READS": _declare(values, reads),
        "STRIDES": ", " + ", ".join(names),
    }
    kernel = KernelSpec.of("elementwise.cl", "elementwise_general", **defines)
    size = (out[-1], d[4], d[0] * d[1] * d[2] * d[3])
    return Launch(kernel, size, None, (*buffers, *scalars))


def _inner(value: Value, y: Value) -> str:
    """The step along the last axis: a number where every shape agrees on it, else the argument."""
    shape, target = symbolic_shape(value), symbolic_shape(y)
    if not shape or same(shape[-1], 1):
        return "0"
    if target and same(shape[-1], target[-1]):
        return "1"
    return "ARG"


Pointwise.variants = (Variant("generated", _emit, _misfit),)
Fused.variants = Pointwise.variants
