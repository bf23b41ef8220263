"""KernelLoop: runs the iterations of a loop over small tensors in one kernel launch.

If nodes are launched one by one, each costs about 3 us; ONNX Runtime needs about 3 us for a whole
iteration of a few nodes. Inside a kernel, a node of a few elements takes some 10 ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from clrt.device import requires
from clrt.device.caps import DeviceCaps
from clrt.ir.builder import Builder
from clrt.ir.cl_code import Code
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.kernels.cost import PlainEfficiency
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, reject_float64
from clrt.ops.base import Op, Types
from clrt.ops.control.host_driven import infer_known, sizes
from clrt.ops.control.loop_code import LoopCode, node_work
from clrt.ops.movement.concat import Concat
from clrt.ops.reference_interpreter import evaluate
from clrt.ops.traits import HostTraits
from clrt.util.fast_dataclass import dataclass

# Maximum operations per iteration: one core needs about 20 us for them, the time of 7 launches.
_MAX_WORK = 1 << 14
# Maximum operations per launch: about 0.1 s, so that runs stay cancellable and no display freezes.
_MAX_LAUNCH_WORK = 1 << 26
_MAX_NODES = 64  # nodes of a loop body
# Maximum elements of the stacked outputs of a launch.
_MAX_STACK_ELEMS = 1 << 24
_MAX_ITERATIONS = 1 << 16  # iterations per launch
# Maximum size of the kernel parameters in bytes: the minimum that OpenCL guarantees.
_MAX_PARAMETER_BYTES = 1024
# Parameter bytes of `held`, `first`, `limit` and `most`, and of the row count of a backward scan.
_COUNTER_BYTES, _ROW_COUNT_BYTES = 52, 4
_LANES = 64  # work-items on a GPU, in one work-group


@dataclass(frozen=True)
class KernelLoop(Op):
    """Runs up to `most` iterations of a graph over small tensors while its condition holds.

    Inputs: the number of the first iteration and the maximum number of iterations (int64 scalars);
    the initial states; scanned tensors; captured values. Iteration k reads row k of each scanned
    tensor, counted from the last row if `backwards`. Outputs: the number of conditions that held
    (int64 scalar), including the initial one, which is true; the final states; stacks of `most`
    rows, in which only executed iterations write their row.

    Attributes:
        body: Graph of an iteration. Inputs: iteration number, condition, states, rows, captured
            values. Outputs: next condition, next states, rows to stack.
        states: Number of states.
        backwards: Per scanned tensor, whether rows are read from the last to the first.
        reversed: Per stack, whether the first iteration writes the last row.
        most: Maximum number of iterations; the row count of each stack.
        goes_on: Whether the condition always holds.

    Source: clrt; only plans contain it, files do not.
    """

    body: Graph
    states: int
    backwards: tuple[bool, ...]
    reversed: tuple[bool, ...]
    most: int
    goes_on: bool

    name = "KernelLoop"
    domain = "clrt"
    supported_storages = None
    host_traits = HostTraits(has_slow_reference=True)

    def infer(self, inputs: Types) -> list[TensorType]:
        results = [v.type for v in self.body.outputs[1:]]
        rows = [TensorType(t.dtype, (self.most, *(t.shape or ()))) for t in results[self.states :]]
        return [TensorType(DType.INT64, ()), *results[: self.states], *rows]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        first, limit, *others = inputs
        assert first is not None and limit is not None
        end = self.states + len(self.backwards)
        states, scanned, rest = others[: self.states], others[self.states : end], others[end:]
        stacks = [
            np.zeros((self.most, *v.dims), v.dtype.numpy)
            for v in self.body.outputs[1 + self.states :]
        ]
        done, going = 0, True
        while going and done < min(int(limit), self.most):
            at = int(first) + done
            pairs = zip(scanned, self.backwards, strict=True)
            rows = [x[-1 - at if back else at] for x, back in pairs if x is not None]
            values = [np.asarray(at), np.asarray(True), *states, *rows, *rest]
            shaped = zip(self.body.inputs, values, strict=True)
            feeds = {v.name: np.reshape(x, v.dims) for v, x in shaped if x is not None}
            results = list(evaluate(self.body, feeds).values())
            going = bool(np.all(results[0]))
            states = results[1 : 1 + self.states]
            rows_out = results[1 + self.states :]
            for stack, row, back in zip(stacks, rows_out, self.reversed, strict=True):
                stack[-1 - done if back else done] = row
            done += 1
        return (np.asarray(done + going), *(s for s in states if s is not None), *stacks)


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    op = node.op_as(KernelLoop)
    for inner in op.body.nodes:
        if lacking := reject_float64(inner, caps):
            return lacking
    return reject_float64(node, caps)


def _code(node: Node) -> LoopCode:
    """Generates the C code of a KernelLoop node."""
    op, inputs = node.op_as(KernelLoop), [v for v in node.inputs if v is not None]
    args = inputs[2:]
    iteration, condition, *formals = op.body.inputs
    results = node.outputs[1:]
    end = op.states + len(op.backwards)
    code = LoopCode()
    for formal, start, result in zip(formals[: op.states], args, results, strict=False):
        code.state(formal, start, result)
    for formal, x, back in zip(formals[op.states :], args[op.states :], op.backwards, strict=False):
        code.row(formal, x, back)
    for formal, x in zip(formals[end:], args[end:], strict=True):
        code.tensor(x, Code("IN"), formal)
    read = {v for inner in op.body.nodes for v in inner.inputs} | {*op.body.outputs}
    for formal, text in ((iteration, Code("at")), (condition, Code("1"))):
        if formal in read:
            code.variable(formal, text)
    code.add(op.body)
    after = op.body.outputs[1:]
    if not op.goes_on:  # no state changes before all work-items have read the condition
        code.next.append(Code("MEET"))
    stacks = zip(after[op.states :], results[op.states :], op.reversed, strict=True)
    for value, stack, back in stacks:
        code.stack(value, stack, back)
    code.carry(formals[: op.states], after[: op.states])
    return code


def _emit(node: Node, ctx: Lowering, lanes: int) -> list[Launch]:
    op, code = node.op_as(KernelLoop), _code(node)
    goes_on = Code("1")
    if not op.goes_on:
        goes_on = Code("{} != 0").substitute(code.first_element(op.body.outputs[0]))
    code.allocate(ctx)
    kernel = KernelSpec.of(
        "control/kernel_loop.cl", "kernel_loop", LANES=lanes, **code.defines(goes_on)
    )
    args = {"held": node.output, "first": node.arg(0), "limit": node.arg(1), "most": op.most}
    flops = op.most * sum(node_work(inner) or 0 for inner in op.body.nodes)
    return [launch(kernel, (lanes,), (lanes,), flops, **args, **code.args)]


KernelLoop.variants = (
    Variant("cpu", lambda node, ctx: _emit(node, ctx, 1), _reject, requires.CPU),
    Variant(
        "group",
        lambda node, ctx: _emit(node, ctx, _LANES),
        _reject,
        replace(requires.GPU, work_group_size=_LANES),
    ),
    Variant("any", lambda node, ctx: _emit(node, ctx, 1), _reject, speed=PlainEfficiency),
)


@dataclass(frozen=True)
class LoopBody:
    """A loop body that can run in a KernelLoop.

    Attributes:
        graph: Body in the form of `KernelLoop.body`. Its last inputs stand for the constants that
            kernels read.
        constants: The constants for the last inputs of `graph`, in order.
        most: Maximum number of iterations per launch.
    """

    graph: Graph
    constants: tuple[Value, ...]
    most: int

    @classmethod
    def of(cls, body: Graph, states: int, goes_on: bool) -> LoopBody | None:
        """Converts a loop body to the form that KernelLoop runs.

        Args:
            body: Graph of one iteration; not modified.
            states: Number of loop-carried values.
            goes_on: Whether the condition always holds, so that kernels need not compute it.

        Returns:
            The loop body; None if a shape is not static or empty, a state changes its shape or
            dtype, the condition has several elements, a node is unsupported, or the body is too
            large.
        """
        graph = body.copy()
        if goes_on:
            graph.outputs[0] = graph.inputs[1]  # always true
        graph.remove_dead()
        works = [node_work(node) for node in graph.nodes]
        work = sum(w or 0 for w in works) + sum(prod(v.dims) for v in graph.outputs)
        if None in works or len(works) > _MAX_NODES or work > _MAX_WORK:
            return None
        if not all(
            v.type.is_static and not v.type.on_host for v in (*graph.inputs, *graph.outputs)
        ):
            return None
        carried = zip(graph.inputs[2:], graph.outputs[1 : 1 + states], strict=False)
        if any(a.dims != b.dims or a.dtype is not b.dtype for a, b in carried):
            return None
        if prod(graph.outputs[0].dims) != 1 or not all(prod(v.dims) for v in graph.outputs):
            return None
        constants = _constants_as_inputs(graph)
        names = Names()
        for value in graph.inputs:
            value.name = names.unique(value.name)
        graph.output_names = [str(k) for k in range(len(graph.outputs))]
        rows = sum(prod(v.dims) for v in graph.outputs[1 + states :])
        most = min(_MAX_ITERATIONS, _MAX_LAUNCH_WORK // work, _MAX_STACK_ELEMS // max(rows, 1))
        return cls(graph, constants, most) if _parameters_fit(graph, states) else None


def _parameters_fit(graph: Graph, states: int) -> bool:
    """Returns whether the kernel parameters of a loop body are small enough for every device.

    Args:
        graph: Loop body.
        states: Number of loop-carried values.
    """
    build, stacks = Builder(), len(graph.outputs) - 1 - states
    op = KernelLoop(graph, states, (), (False,) * stacks, 1, True)
    build.add_all(op, build.numbers(0), build.numbers(1), *graph.inputs[2:])
    others = _COUNTER_BYTES + _ROW_COUNT_BYTES * len(graph.inputs[2 + states :])
    return _code(build.nodes[0]).parameter_bytes + others <= _MAX_PARAMETER_BYTES


def static_body(body: Graph, types: Sequence[TensorType]) -> Graph | None:
    """Returns a copy of a loop body with static shapes.

    Returns None if a shape stays unknown or a node needs the host.

    Args:
        body: Graph of one iteration.
        types: Types of the body inputs after the iteration number and the condition.
    """
    build = Builder()
    counters = [TensorType(v.dtype, (1,) * len(v.shape or ())) for v in body.inputs[:2]]
    # Error messages trace numbers back to their source by these input names.
    pairs = zip(body.inputs, [*counters, *types], strict=True)
    inputs = [build.input(v.name, t.dtype, t.shape) for v, t in pairs]
    outputs = build.inline(body, inputs, sizes(body, inputs))
    if not all(map(infer_known, build.nodes)):
        return None
    return build.graph(body.name, inputs, outputs, [str(k) for k in range(len(outputs))])


def _constants_as_inputs(graph: Graph) -> tuple[Value, ...]:
    """Replaces the constants that kernels read by new graph inputs, in place.

    Constants that ops need as numbers at plan time stay in the graph.

    Returns:
        The replaced constants, in the order of the new inputs, which are the last ones.
    """
    formals: dict[Value, Value] = {}

    def formal(value: Value | None) -> Value | None:
        if value is None or not value.is_constant:
            return value
        if value not in formals:
            formals[value] = Value(value.name, TensorType(value.dtype, value.dims))
        return formals[value]

    for node in graph.nodes:
        op = node.op_as(Op)
        pairs = enumerate(node.inputs)
        node.inputs = [v if k in op.input_traits.plan_time else formal(v) for k, v in pairs]
    graph.outputs = [formal(v) or v for v in graph.outputs]
    graph.inputs = [*graph.inputs, *formals.values()]
    return tuple(formals)


def repeat(
    builder: Builder,
    body: LoopBody,
    count: int,
    states: Sequence[Value],
    scanned: Sequence[tuple[Value, bool]],
    captured: Sequence[Value],
    reverses: Sequence[bool],
) -> list[Value]:
    """Adds KernelLoop nodes that run `count` iterations, each node up to `body.most` of them.

    Args:
        builder: Adds the nodes.
        body: Loop body, whose condition always holds.
        count: Number of iterations.
        states: Initial states.
        scanned: Tensors read row by row, each with whether rows are read from the last to the
            first.
        captured: Values captured by the body.
        reverses: Per stack, whether the first iteration writes the last row.

    Returns:
        The final states, then the stacks.
    """
    parts: list[list[Value]] = []
    states = list(states)
    for first in range(0, count, body.most):
        steps = min(body.most, count - first)
        backwards = tuple(back for _, back in scanned)
        op = KernelLoop(body.graph, len(states), backwards, tuple(reverses), steps, True)
        args = [*states, *(x for x, _ in scanned), *captured, *body.constants]
        results = builder.add_all(op, builder.numbers(first), builder.numbers(steps), *args)
        parts.append(results[1 + len(states) :])
        states = results[1 : 1 + len(states)]
    stacks = []
    for column, back in zip(zip(*parts, strict=True), reverses, strict=True):
        ordered = column[::-1] if back else column
        stacks.append(builder.add(Concat(0), *ordered) if len(ordered) > 1 else ordered[0])
    return [*states, *stacks]
