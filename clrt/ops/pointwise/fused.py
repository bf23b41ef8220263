"""Fused: an elementwise program over broadcast operands, and the kernel generated from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.errors import ModelError
from clrt.ir.cl_code import Code, Define
from clrt.ir.dims import Shape, provably_equal, same_shape
from clrt.ir.dtypes import FLOAT_STORAGES, DType
from clrt.ir.graph import Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.ir.pattern import Captures, op
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.fusion import (
    FusionMatch,
    FusionMiss,
    LaunchFusionRule,
    RegionLaunches,
    by_pattern,
)
from clrt.kernels.row_norm import RowNorm, norm_flops
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    RowPitchSupport,
    indexed_args,
    launch,
    number_inputs,
)
from clrt.kernels.strided import MAX_RANK, broadcast_strides, collapse, launch_places, pad_rank
from clrt.kernels.thresholds import Tunable
from clrt.kernels.tuned import tuned
from clrt.kernels.variant import Lowering, Variant, lacks_float64, runs_as
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.norm.layer_normalization import Normalization, row_norm
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.conversions import literal
from clrt.ops.registry import register
from clrt.ops.traits import MemoryTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div

CPU = tuned(
    "elementwise_cpu",
    {"T_VW": (4, 8, 16)},
    T_VW=8,
    T_ELEMS=Tunable(2048, "elements", "Elements per work-group: amortizes its start."),
)


_VARIABLE, _NUMBER = Code("v{}"), Code("c{}")


@register
@dataclass(frozen=True)
class Literal(Op):
    """A constant scalar in an elementwise program, without inputs.

    Attributes:
        value: Value of the constant.
        dtype: Dtype of the constant.

    Source: clrt; it replaces a one-element constant.
    """

    value: float = 0.0
    dtype: DType = DType.FLOAT32

    domain = "clrt"

    def infer(self, inputs: Types) -> list[TensorType]:
        return [TensorType(self.dtype, ())]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        return (np.asarray(self.value, self.dtype.numpy),)

    def cl(self) -> Code:
        """Returns the constant as an OpenCL C literal."""
        return literal(self.value, self.dtype)

    @property
    def is_argument(self) -> bool:
        """Whether the constant is a kernel argument instead of a literal in the kernel's source.

        Arguments let layers with different constants share a kernel. Literals are: integers,
        float64, infinity, NaN, and multiples of 1/8 up to 64, which the compiler optimizes.
        """
        if not self.dtype.is_float or self.dtype is DType.FLOAT64:
            return False
        return math.isfinite(self.value) and (abs(self.value) > 64 or self.value % 0.125 != 0)


@dataclass(frozen=True)
class Program:
    """An elementwise program as OpenCL C.

    Attributes:
        body: Declarations of a variable per step, over the operands v0, v1, …
        result: Name of the last step's variable.
        dtype: Dtype of the last step.
        numbers: Values of the kernel arguments c0, c1, …
    """

    body: Code
    result: Code
    dtype: DType
    numbers: tuple[float, ...] = ()


def compute_type(dtype: DType) -> Code:
    """Returns the name of the OpenCL C type in which kernels compute values of `dtype`."""
    if dtype.compute == "float":
        return Code("F")
    return Code("I") if dtype is DType.BOOL else dtype.compute


def step_types(
    steps: Sequence[ElementwiseInstruction], inputs: Sequence[TensorType]
) -> list[TensorType]:
    """Returns the types of an elementwise program's operands, followed by the types of its steps.

    Args:
        steps: Program; step k reads operands and earlier steps.
        inputs: Types of the operands.

    Raises:
        ModelError: A step is not an elementwise op, or reads a later step.
    """
    types = list(inputs)
    for index, step in enumerate(steps):
        if not isinstance(step.op, (Pointwise, Literal)):
            raise ModelError(f"Step {index} is {step.op.name}, which is not an elementwise op.")
        if not all(0 <= a < len(types) for a in step.args):
            raise ModelError(
                f"Step {index} ({step.op.name}) reads a value that is not computed before it."
            )
        types.append(step.op.infer([types[a] for a in step.args])[0])
    return types


@lru_cache(maxsize=1024)
def step_dtypes(
    steps: tuple[ElementwiseInstruction, ...], inputs: tuple[DType, ...]
) -> tuple[DType, ...]:
    """Returns the dtypes of an elementwise program's operands, followed by the dtypes of its steps.

    Results are cached, since the layers of a model repeat programs.

    Args:
        steps: Program; step k reads operands and earlier steps.
        inputs: Dtypes of the operands.

    Raises:
        ModelError: A step is not an elementwise op, or reads a later step.
    """
    return tuple(t.dtype for t in step_types(steps, [TensorType(d, ()) for d in inputs]))


def render(
    steps: tuple[ElementwiseInstruction, ...], inputs: Sequence[DType], takes_numbers: bool = True
) -> Program | str:
    """Renders an elementwise program as OpenCL C over the operands v0, v1, …

    Args:
        steps: Program.
        inputs: Dtypes of the operands.
        takes_numbers: Whether constants may become kernel arguments c0, c1, … instead of literals.

    Returns:
        The rendered program; or, as a string, the reason why kernels do not support a step.
    """
    return _rendered(steps, tuple(inputs), takes_numbers)


@lru_cache(maxsize=1024)
def _rendered(
    steps: tuple[ElementwiseInstruction, ...], inputs: tuple[DType, ...], takes_numbers: bool
) -> Program | str:
    """Returns the program of `steps` in OpenCL C, or as a string why one step has no kernel.

    Args:
        steps: Program.
        inputs: Dtypes of the operands.
        takes_numbers: Whether constants may become kernel arguments instead of literals.
    """
    all_dtypes = step_dtypes(steps, inputs)
    lines: list[Code] = []
    numbers: list[float] = []
    for index, step in enumerate(steps, start=len(inputs)):
        dtypes = [all_dtypes[a] for a in step.args]
        if isinstance(step.op, Literal) and takes_numbers and step.op.is_argument:
            expr: Code | None = _NUMBER.substitute(len(numbers))
            numbers.append(step.op.value)
        elif isinstance(step.op, Literal):
            expr = step.op.cl()
        else:
            assert isinstance(step.op, Pointwise)
            expr = step.op.cl([_VARIABLE.substitute(a) for a in step.args], dtypes)
        if expr is None:
            return f"{step.op.name} has no kernel for {dtypes[0]}"
        kind = compute_type(all_dtypes[index])
        lines.append(Code("const {0} v{1} = ({0})({2});").substitute(kind, index, expr))
    result = _VARIABLE.substitute(len(all_dtypes) - 1)
    return Program(Code(" ").join(lines), result, all_dtypes[-1], tuple(numbers))


def can_vectorise(
    steps: tuple[ElementwiseInstruction, ...],
    inputs: Sequence[DType],
    memory: Collection[DType] = (DType.FLOAT32,),
) -> bool:
    """Returns whether kernels can compute an elementwise program on float vectors.

    This requires that operands and result have dtypes in `memory`, and each step has a dtype in
    `memory` or bool.

    Args:
        steps: Program.
        inputs: Dtypes of the operands.
        memory: Dtypes of which the kernel loads and stores vectors.
    """
    dtypes = step_dtypes(steps, tuple(inputs))
    return all(d in memory for d in (*inputs, dtypes[-1])) and all(
        d in memory or d is DType.BOOL for d in dtypes
    )


@register
@dataclass(frozen=True)
class Fused(Op):
    """Elementwise program over inputs that broadcast together; the output is the last step.

    Attributes:
        steps: Program; step k reads inputs and earlier steps.

    Source: clrt.
    """

    supported_storages = None

    steps: tuple[ElementwiseInstruction, ...] = ()

    domain = "clrt"
    accuracy = Accuracy.TRANSCENDENTAL
    memory_traits = MemoryTraits(inplace_inputs=tuple(range(64)))

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


def steps_of(op: Op, arity: int) -> tuple[ElementwiseInstruction, ...]:
    """Returns an elementwise op as a program: the steps of a Fused, else one step with `op`.

    Args:
        arity: Number of operands.
    """
    return op.steps if isinstance(op, Fused) else (ElementwiseInstruction(op, tuple(range(arity))),)


def _inputs(node: Node) -> list[Value]:
    return [v for v in node.inputs if v is not None]


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    values = _inputs(node)
    steps = steps_of(node.op_as(Op), len(values))
    dtypes = tuple(v.dtype for v in values)
    program = render(steps, dtypes)
    if isinstance(program, str):
        return program
    if lacking := lacks_float64(step_dtypes(steps, dtypes), caps):
        return lacking
    out = node.output.dims
    dims, _ = collapse(out[:-1], *(broadcast_strides(v.dims, out)[:-1] for v in values))
    if len(dims) > MAX_RANK - 1:
        return f"{len(dims) + 1} axes remain after merging; kernels walk up to {MAX_RANK}"
    return None


def symbolic_shape(value: Value) -> Shape:
    """Returns the shape of a value before its symbols were bound to the sizes of a call.

    Kernels must be chosen by this shape, so that a call with other sizes does not compile another
    kernel.
    """
    return value.symbolic_shape if value.symbolic_shape is not None else value.dims


def _is_one(value: Value) -> bool:
    return all(provably_equal(d, 1) for d in symbolic_shape(value))


def _inner(value: Value, y: Value) -> Code:
    """Returns the OpenCL C code of an operand's stride along the last axis of the output.

    The code is 0 or 1 if the symbolic shapes determine the stride; else the macro ARG, which reads
    a kernel argument.

    Args:
        value: Operand, which broadcasts to `y`.
        y: Output of the node.
    """
    shape, target = symbolic_shape(value), symbolic_shape(y)
    if _is_one(value):
        return Code("0")
    if provably_equal(shape[-1], target[-1]):
        return Code("1")
    return Code("0") if provably_equal(shape[-1], 1) else Code("ARG")


def _takes_vectors(node: Node) -> bool:
    """Returns whether the CPU kernel can compute an elementwise node on float vectors.

    Only symbolic shapes count, so that the answer is the same for all sizes of a call.
    """
    values, y = _inputs(node), node.output
    row = symbolic_shape(y)[-1:]
    short = row and isinstance(row[0], int) and row[0] < CPU.defaults["T_VW"]
    return (
        can_vectorise(
            steps_of(node.op_as(Op), len(values)), [v.dtype for v in values], FLOAT_STORAGES
        )
        and "ARG" not in [_inner(v, y) for v in values]
        and (_is_flat(node) or not short)
    )


def _is_flat(node: Node) -> bool:
    """Returns whether each operand of a node has the shape of its output, or one element."""
    target = symbolic_shape(node.output)
    return all(_is_one(v) or same_shape(symbolic_shape(v), target) for v in _inputs(node))


def _lower_norm(found: Captures, ctx: Lowering) -> RowNorm | FusionMiss:
    """Returns the normalization of the rows that an elementwise node computes.

    Returns a miss if the node does not run on vectors.

    Args:
        found: Captured nodes `producer` (elementwise) and `norm`.
    """
    producer, norm = found.node("producer"), row_norm(found.node("norm"), ctx.caps)
    runs_as("cpu", producer.op_as(Op).variants, producer, ctx.caps)
    return norm if _takes_vectors(producer) else FusionMiss(f"{producer} does not go by vectors")


def _emit_norm(match: FusionMatch, ctx: Lowering) -> RegionLaunches:
    return RegionLaunches(_emit_cpu(match.nodes[0], ctx, match.payload))


_ELEMENTWISE = op((Pointwise, Fused), ..., name="producer")
_NORM = op(Normalization, _ELEMENTWISE, ..., name="norm")
LAUNCH_FUSIONS = (
    LaunchFusionRule(
        "elementwise_norm", 2, (Normalization,), by_pattern(_NORM, _lower_norm), _emit_norm
    ),
)


def _emit_cpu(node: Node, ctx: Lowering, norm: RowNorm | None = None) -> list[Launch]:
    values, y = _inputs(node), node.output
    total = prod(y.dims)
    if total == 0:
        return []
    tunables = ctx.tunables(CPU) | ({} if _takes_vectors(node) else {"T_VW": 1})
    read, walk = Code("READ_{}({}, {})"), Code("WALK({}, {})")
    reads = [read.substitute(_inner(v, y), k, v.dtype.storage) for k, v in enumerate(values)]
    walks = Code(" ").join(walk.substitute(k, v.dtype.cl) for k, v in enumerate(values))
    defines = _defines(node, reads) | {"WALKS": walks} | tunables
    if y.dtype is DType.BOOL:
        defines["RESULT"] = Code("{} & one").substitute(defines["RESULT"])
    dims, args = _walk(values, y, keeps_rows=True)
    share, flops = tunables["T_ELEMS"], 0
    if norm is not None:
        defines |= norm.defines
        n = y.dims[-1]
        rows = ceil_div(share, n)
        share, flops = rows * n, norm_flops(total // n, n)
        args |= norm.args | {"n": n, "rows": rows}
    kernel = KernelSpec.of("pointwise/elementwise.cl", "elementwise_cpu", **defines)
    args |= indexed_args("d", dims) | _operands(node)
    args |= {f"x{k}": _by_rows(v, k, y, dims[-1], args) for k, v in enumerate(values)}
    return [launch(kernel, (ceil_div(total, share),), (1,), flops, **args)]


def _by_rows(value: Value, k: int, y: Value, width: int, args: Mapping[str, Any]) -> BufferArg:
    """Returns the kernel argument of an operand of an elementwise node.

    If the operand's stride along the last axis is 1, the argument supports a row pitch.

    Args:
        value: Operand, which broadcasts to `y`.
        k: Index of the operand.
        y: Output of the node.
        width: Elements per row: size of the last merged axis.
        args: Kernel arguments, with the strides s`k`_0, s`k`_1, …
    """
    if _inner(value, y) != "1":
        return BufferArg(value)
    steps = [f"s{k}_{axis}" for axis in range(MAX_RANK - 1) if args[f"s{k}_{axis}"]]
    return BufferArg(value, rows=RowPitchSupport(width, tuple(steps)))


def _is_subview(value: Value, width: int) -> bool:
    """Returns whether a value is a subview with a row pitch (an output of Split), or a view of one.

    Args:
        value: Value to look at.
        width: Required elements per row of the subview.
    """
    producer = value.producer
    while (
        producer is not None
        and isinstance(producer.op, Op)
        and producer.op.is_view(producer.input_types)
    ):
        value, producer = producer.arg(0), producer.arg(0).producer
    if producer is None or not isinstance(producer.op, Op) or not value.dims:
        return False
    subviews = producer.op.subviews(producer)
    return any(s.value is value and s.width == width != s.pitch for s in subviews)


def _emit_any(node: Node, ctx: Lowering) -> list[Launch]:
    values, y = _inputs(node), node.output
    total = prod(y.dims)
    if total == 0:
        return []
    storages = [v.dtype.storage for v in values]
    if _is_flat(node):
        indices = [Code("0") if _is_one(v) else Code("i") for v in values]
        reads = [
            Code("READ_AS({}, {}, {})").substitute(k, s, index)
            for k, (s, index) in enumerate(zip(storages, indices, strict=True))
        ]
        kernel = KernelSpec.of(
            "pointwise/elementwise.cl", "elementwise_flat", **_defines(node, reads)
        )
        return [launch(kernel, (total,), n=total, **_operands(node))]
    inner = [_inner(v, y) for v in values]
    reads = [
        Code("READ_AS({0}, {1}, WHERE({0}, {2}))").substitute(k, s, stride)
        for k, (s, stride) in enumerate(zip(storages, inner, strict=True))
    ]
    defines = _defines(node, reads) | {"GENERAL": 1}
    kernel = KernelSpec.of("pointwise/elementwise.cl", "elementwise_general", **defines)
    dims, steps = _walk(values, y)
    return [launch_places(kernel, dims, ctx, **_operands(node), **steps)]


def _program(node: Node) -> Program:
    values = _inputs(node)
    program = render(steps_of(node.op_as(Op), len(values)), [v.dtype for v in values])
    assert isinstance(program, Program)
    return program


def _operands(node: Node) -> dict[str, Any]:
    """Returns the kernel arguments of an elementwise node: output, inputs and constants."""
    numbers = indexed_args("c", _program(node).numbers)
    return {"y": node.output, **indexed_args("x", _inputs(node)), **numbers}


def _defines(node: Node, reads: Sequence[Code]) -> dict[str, Define]:
    """Returns the kernel macros of an elementwise node's program.

    Args:
        reads: OpenCL C expressions that load the operands, in order.
    """
    values, program = _inputs(node), _program(node)
    declarations = (
        Code("const {} v{} = {};").substitute(compute_type(v.dtype), k, read)
        for k, (v, read) in enumerate(zip(values, reads, strict=True))
    )
    stride, operand = Code(", const IDX_T s{}_{}"), Code(", IN({}, x{})")
    strides = (stride.substitute(k, j) for k in range(len(values)) for j in range(MAX_RANK))
    inputs = (operand.substitute(v.dtype.cl, k) for k, v in enumerate(values))
    return {
        "OUT_T": node.output.dtype.cl,
        "STORAGE": node.output.dtype.storage,
        "STRIDES": Code("").join(strides),
        "INPUTS": Code("").join([*inputs, number_inputs(len(program.numbers))]),
        "READS": Code(" ").join(declarations),
        "BODY": program.body,
        "RESULT": program.result,
    }


def _walk(
    values: Sequence[Value], y: Value, keeps_rows: bool = False
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Merges axes of an elementwise node that all operands traverse with one stride.

    The last axis may be merged with the axes before it but is never dropped: the kernel's source
    has its strides.

    Args:
        values: Operands, which broadcast to `y`.
        y: Output of the node.
        keeps_rows: Whether the kernel reads subviews with a row pitch; then the last axis is not
            merged if an operand is a subview.

    Returns:
        The merged dims of the output, padded to MAX_RANK; and the operands' strides over them, in
        elements, by the names of kernel arguments.
    """
    out = y.dims or (1,)
    strides = [broadcast_strides(v.dims or (1,), out) for v in values]
    inner = [0 if _inner(v, y) == "0" else s[-1] for v, s in zip(values, strides, strict=True)]
    dims, outer = collapse(out[:-1], *(s[:-1] for s in strides))
    n = out[-1]
    merges = not (keeps_rows and any(_is_subview(v, n) for v in values))
    while dims and merges and all(o[-1] == step * n for o, step in zip(outer, inner, strict=True)):
        n, dims, outer = n * dims[-1], dims[:-1], [o[:-1] for o in outer]
    steps: dict[str, Any] = {}
    for k, (o, step) in enumerate(zip(outer, inner, strict=True)):
        steps |= indexed_args(f"s{k}_", (*pad_rank(o, 0)[1:], step))
    return (*pad_rank(dims, 1)[1:], n), steps


Pointwise.variants = (
    Variant("cpu", _emit_cpu, _reject, requires.CPU),
    Variant("any", _emit_any, _reject, speed=PlainEfficiency),
)
Fused.variants = Pointwise.variants
