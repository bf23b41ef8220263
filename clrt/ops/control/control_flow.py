"""If, Loop and Scan: ops that run subgraphs.

A subgraph reads outer values only through its own inputs: the last `captures` inputs of the node
are the last inputs of each of its subgraphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.errors import ModelError, ShapeError, counted
from clrt.ir.dims import Bindings
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue, tensor
from clrt.ops.base import HostContext, OnnxNode, Op, Types
from clrt.ops.checks import need, normalize_axis
from clrt.ops.control.chunks import RepeatedBodies, stacked_rows
from clrt.ops.control.host_driven import (
    HostDriven,
    Iterations,
    common_type,
    join,
    positional,
    read_condition,
    sizes,
    take,
)
from clrt.ops.control.scan_loops import loop_graph, moved_rows, padded
from clrt.ops.gradients.shapes import reshaped_like
from clrt.ops.gradients.transform import pull_back_graph
from clrt.ops.movement.common import fresh_dim
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

# Minimum number of slices of a Scan to run it as a Loop, several iterations at once.
_LOOP_SLICES = 16


@register
@dataclass(frozen=True)
class If(HostDriven):
    """Runs one of two subgraphs, chosen by a condition.

    Inputs: the condition, then captured values. If the condition is known at plan time, the branch
    that it selects replaces the node. If both branches are a few small arithmetic ops, both run and
    Where selects.

    Attributes:
        then_branch: Subgraph that runs if the condition is true.
        else_branch: Subgraph that runs if the condition is false.
        captures: Number of captured values.

    Source: ONNX If, opset 1 to 25.
    """

    then_branch: Graph
    else_branch: Graph
    captures: int = 0

    input_traits = InputTraits(plan_time=(0,))
    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"captures"}))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return cls(_body(node, "then_branch"), _body(node, "else_branch"), node.captures)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return (self.then_branch, self.else_branch)

    def infer(self, inputs: Types) -> list[TensorType]:
        need(inputs, 0, self)
        if len(self.then_branch.outputs) != len(self.else_branch.outputs):
            raise ModelError("If: its branches have different numbers of outputs.")
        pairs = zip(self.then_branch.outputs, self.else_branch.outputs, strict=True)
        return [_either(a.type, b.type, inputs[1:]) for a, b in pairs]

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        captured = node.inputs[1:]
        wanted = [
            v is not None and v.dtype.is_float and not isinstance(v.type, ContainerType)
            for v in captured
        ]
        given = [c is not None for c in cotangents]
        then, other = (pull_back_graph(g, given, wanted, b.names) for g in self.graphs)
        more = [c for c in cotangents if c is not None]
        op = If(then, other, len(captured) + len(more))
        results = iter(b.add_all(op, node.arg(0), *captured, *more))
        return [
            None,
            *(
                reshaped_like(b, next(results), v) if v is not None and is_wanted else None
                for v, is_wanted in zip(captured, wanted, strict=True)
            ),
        ]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        return host.run(self.graphs[not read_condition(inputs[0], host)], inputs[1:])


def _either(a: TensorType, b: TensorType, seen: Types) -> TensorType:
    """Returns the type that covers both `a` and `b`; an optional also covers a plain value.

    Args:
        a: Type of a value that may become the output.
        b: Type of another such value.
        seen: Types whose symbols the result may use.
    """
    if isinstance(a, ContainerType) and isinstance(b, ContainerType) and a.kind == b.kind:
        return common_type([a, b], seen)
    if isinstance(a, ContainerType) and a.kind == "optional":
        return a
    return b if isinstance(b, ContainerType) else common_type([a, b], seen)


@register
@dataclass(frozen=True)
class Loop(HostDriven):
    """Repeats a subgraph, at most M times and while its condition holds.

    Inputs: M (int64) and condition (bool), both optional; loop-carried values; captured values.
    Outputs: final loop-carried values, stacks with one row per iteration along axis 0.

    Attributes:
        body: Subgraph of an iteration. Inputs: iteration number, condition, loop-carried values,
            captured values. Outputs: next condition, next loop-carried values, rows to stack.
        captures: Number of captured values.

    Source: ONNX Loop, opset 1 to 25.
    """

    body: Graph
    captures: int = 0

    input_traits = InputTraits(plan_time=(0, 1))
    host_traits = replace(HostDriven.host_traits, loop_carried_offsets=(2, 1))
    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"captures"}))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        return cls(_body(node, "body"), node.captures)

    @classmethod
    def subgraph_input_types(cls, inputs: Types) -> list[TensorType | None]:
        iteration, condition = TensorType(DType.INT64, ()), TensorType(DType.BOOL, ())
        return [iteration, condition, *(_any_shape(t) for t in inputs[2:])]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def carried(self) -> int:
        """Number of loop-carried values."""
        return len(self.body.inputs) - 2 - self.captures

    def infer(self, inputs: Types) -> list[TensorType]:
        if len(inputs) != 2 + self.carried + self.captures:
            raise ModelError(
                f"Loop: it has {counted(len(inputs) - 2 - self.captures, 'loop-carried value')}, "
                f"its body takes {self.carried}."
            )
        results = [v.type for v in self.body.outputs[1:]]
        # With no iteration, the outputs are the initial values.
        starts = [need(inputs, 2 + i, self) for i in range(self.carried)]
        carried = [_either(a, b, inputs) for a, b in zip(results, starts, strict=False)]
        stacked = [_stacked(common_type([t], inputs), 0) for t in results[self.carried :]]
        return [*carried, *stacked]

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        limit, condition = inputs[:2]
        carried, captured = list(inputs[2 : 2 + self.carried]), inputs[2 + self.carried :]
        max_iterations = None if limit is None else int(host.read(limit).reshape(()))
        going = condition is None or read_condition(condition, host)
        if going and max_iterations is None and self.goes_on:
            raise ModelError(
                "Loop: it has no trip count and its condition always holds, so it would never "
                "end; export it with a trip count or a condition."
            )
        iterations = Iterations(self.name, max_iterations if self.goes_on and going else None)
        chunks = RepeatedBodies.of(self, [*carried, *captured], host)
        while going and (max_iterations is None or iterations.count < max_iterations):
            remaining = None if max_iterations is None else max_iterations - iterations.count
            several = chunks and chunks.run(iterations, carried, captured, remaining, host)
            if several:
                carried, going = several
                continue
            inner = [*counters(self.body, iterations.count), *carried, *captured]
            results = iterations.run(self.body, inner, 1 + self.carried, host)
            # Reading the condition waits for the device.
            going = self.goes_on or read_condition(results[0], host)
            carried = results[1 : 1 + self.carried]
        if chunks is not None:
            chunks.ended(iterations.count)
        if iterations.rows:
            return [*carried, *stacked_rows(iterations, host)]
        known = sizes(self.body, [None, None, *inputs[2:]])
        kinds = [v.type.bind(known) for v in self.body.outputs[1 + self.carried :]]
        return [*carried, *(_stack((), kind, 0, host) for kind in kinds)]

    @property
    def goes_on(self) -> bool:
        """Whether the subgraph never ends the loop.

        The next condition that it returns is then a constant true, or its input condition.
        """
        result = self.body.outputs[0]
        holds = result.is_constant and result.numbers is not None and bool(result.numbers.all())
        return result is self.body.inputs[1] or holds


@register
@dataclass(frozen=True)
class Scan(HostDriven):
    """Runs a subgraph on each slice of its scanned inputs, carrying state.

    Inputs: initial states, scanned tensors, captured values. Outputs: final states, then the
    results of all slices, stacked. A Scan over a single slice, such as a decoder's next token, is
    replaced by its subgraph.

    Attributes:
        body: Subgraph of a slice. Inputs: states, slices, captured values. Outputs: next states,
            results to stack.
        num_scan_inputs: Number of scanned tensors.
        scan_input_axes: Axis along which each tensor is scanned; () for 0.
        scan_input_directions: Per scanned tensor, 1 to start at the last slice; () for 0.
        scan_output_axes: New axis of each stack; () for 0.
        scan_output_directions: Per stack, 1 to put the first result last; () for 0.
        captures: Number of captured values.
        batched: Whether the op is that of opset 8: all tensors have a leading batch axis, and an
            optional input 0 has the length of each batch entry; stacks of shorter entries are
            padded with 0.

    Source: ONNX Scan, opset 8 to 25.
    """

    body: Graph
    num_scan_inputs: int = 1
    scan_input_axes: tuple[int, ...] = ()
    scan_input_directions: tuple[int, ...] = ()
    scan_output_axes: tuple[int, ...] = ()
    scan_output_directions: tuple[int, ...] = ()
    captures: int = 0
    batched: bool = False
    onnx_traits = OnnxTraits(non_attribute_fields=frozenset({"captures"}))

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        attrs: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in node.attrs.items()
        }
        batched = node.opset < 9
        if batched:
            attrs["scan_input_directions"] = attrs.pop("directions", ())
        attrs.update(body=_body(node, "body"), captures=node.captures, batched=batched)
        return cls(**attrs)

    @classmethod
    def subgraph_input_types(cls, inputs: Types) -> list[TensorType | None]:
        return [_any_shape(t) for t in inputs]

    @property
    def graphs(self) -> tuple[Graph, ...]:
        return (self.body,)

    @property
    def states(self) -> int:
        """Number of states carried from slice to slice."""
        return len(self.body.inputs) - self.num_scan_inputs - self.captures

    def infer(self, inputs: Types) -> list[TensorType]:
        first = 1 if self.batched else 0
        if len(inputs) != first + len(self.body.inputs):
            raise ModelError(
                f"Scan: it has {len(inputs) - first - self.captures} states and tensors, its body "
                f"takes {len(self.body.inputs) - self.captures}."
            )
        self._check_counts()
        results = [common_type([v.type], inputs) for v in self.body.outputs]
        stacked = results[self.states :]
        axes = self.scan_output_axes or (0,) * len(stacked)
        types = [
            *results[: self.states],
            *(_stacked(t, axis) for t, axis in zip(stacked, axes, strict=True)),
        ]
        return [_stacked(t, 0) for t in types] if self.batched else types

    def _check_counts(self) -> None:
        """Checks the numbers of states, scanned inputs, axes and directions.

        Each attribute of axes or directions is empty or has one element per scanned input or stack.

        Raises:
            ModelError: A number does not fit.
        """
        if self.num_scan_inputs < 1 or not 0 <= self.states <= len(self.body.outputs):
            raise ModelError(
                f"Scan: num_scan_inputs is {self.num_scan_inputs}, its body has "
                f"{len(self.body.inputs) - self.captures} inputs, {len(self.body.outputs)} outputs."
            )
        stacked = len(self.body.outputs) - self.states
        for kind, count in (("input", self.num_scan_inputs), ("output", stacked)):
            for name in (f"scan_{kind}_axes", f"scan_{kind}_directions"):
                length = len(getattr(self, name))
                if length not in (0, count):
                    raise ModelError(f"Scan: {name} has {length} elements for {count} {kind}s.")

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        if not self.batched:
            return self._scan(inputs, host)
        lengths = inputs[0]
        tensors = [tensor(x) for x in inputs[1 : len(inputs) - self.captures]]
        captured = inputs[len(inputs) - self.captures :]
        batch, longest = tensors[0].shape[0], tensors[self.states].shape[1]
        rows = []
        for b in range(batch):
            parts = [take(x, 0, b, host) for x in tensors]
            if lengths is not None:
                end = int(host.read(lengths)[b])
                scanned = parts[self.states :]
                parts[self.states :] = [take(x, 0, range(end), host) for x in scanned]
            results = self._scan([*parts, *captured], host)
            stacks = [padded(tensor(x), longest, host) for x in results[self.states :]]
            rows.append([*results[: self.states], *stacks])
        return [join(column, 0, True, host) for column in zip(*rows, strict=True)]

    def _scan(self, inputs: Sequence[RuntimeValue], host: HostContext) -> Sequence[RuntimeValue]:
        """Runs a Scan without batch axis by the host; returns the final states, then the stacks.

        Args:
            inputs: Initial states, scanned tensors, captured values.
            host: Runs the iterations, or a graph of several.
        """
        end = self.states + self.num_scan_inputs
        states, captured = inputs[: self.states], inputs[end:]
        scanned = [tensor(x) for x in inputs[self.states : end]]
        axes = [
            normalize_axis(axis, len(x.shape), self)
            for axis, x in zip(self.scan_input_axes or (0,) * len(scanned), scanned, strict=True)
        ]
        lengths = {x.shape[axis] for axis, x in zip(axes, scanned, strict=True)}
        if len(lengths) > 1:
            raise ShapeError(
                f"Scan: its tensors have {sorted(lengths)} slices; expected equal numbers."
            )
        count = lengths.pop()
        reverse_inputs = self.scan_input_directions or (0,) * len(scanned)
        output_axes = self.scan_output_axes or (0,) * (len(self.body.outputs) - self.states)
        reverse_outputs = self.scan_output_directions or (0,) * len(output_axes)
        iterations = Iterations(self.name, count)
        scan_args = (self.states, inputs, axes, reverse_inputs, host)
        graph = loop_graph(self.body, *scan_args) if count >= _LOOP_SLICES else None
        if graph is not None:
            loop = Loop(graph, len(inputs) - self.states)
            results = loop.run_host_driven([np.asarray(count), None, *inputs], host)
            rows = zip(results[self.states :], output_axes, reverse_outputs, strict=True)
            return [*results[: self.states], *(moved_rows(x, a, back, host) for x, a, back in rows)]
        for iteration in range(count):
            indices = [count - 1 - iteration if back else iteration for back in reverse_inputs]
            slices = [
                take(x, axis, place, host)
                for x, axis, place in zip(scanned, axes, indices, strict=True)
            ]
            inner = [*states, *slices, *captured]
            states = iterations.run(self.body, inner, self.states, host)[: self.states]
        known = sizes(self.body, [*inputs[: self.states], *[None] * len(scanned), *captured])
        kinds = [v.type.bind(known) for v in self.body.outputs[self.states :]]
        columns = zip(*iterations.rows, strict=True) if iterations.rows else [()] * len(kinds)
        stacks = [
            _stack(column[::-1] if back else column, kind, axis, host)
            for column, kind, axis, back in zip(
                columns, kinds, output_axes, reverse_outputs, strict=True
            )
        ]
        return [*states, *stacks]


def counters(body: Graph, iteration: int) -> list[Array]:
    """Returns the first two inputs of a Loop's body: iteration number and condition (true).

    The arrays have the ranks that the body declares.
    """
    # Some exporters declare them with shape [1].
    numbers = np.asarray(iteration, np.int64), np.asarray(True)
    pairs = zip(numbers, body.inputs, strict=False)
    return [np.reshape(number, (1,) * len(formal.shape or ())) for number, formal in pairs]


def copy_all(graph: Graph, bindings: Bindings | None = None) -> Graph:
    """Returns a copy of a graph and of all nested subgraphs.

    Args:
        graph: Graph to copy.
        bindings: Dims by symbol, to replace symbols in the graph and in branches of an If. Bodies
            of Loop and Scan keep their symbols, because shapes may change between iterations. None
            to replace none.
    """
    copy = graph.copy(bindings)
    for node in copy.nodes:
        if isinstance(node.op, Op) and node.op.graphs:
            inner = bindings if isinstance(node.op, If) else None
            node.op = node.op.with_graphs(partial(copy_all, bindings=inner))
    return copy


def sink_constants(node: Node) -> tuple[Op, list[Value | None]] | None:
    """Returns an If, Loop or Scan op with its captured constants moved into its subgraphs.

    Returns:
        The new op and its remaining inputs; None for other ops, or if no captured value is a
        constant with known elements.
    """
    op = node.op
    if not isinstance(op, (If, Loop, Scan)):
        return None
    first = len(node.inputs) - op.captures
    captured = node.inputs[first:]
    variables = [v for v in captured if not _sinks(v)]
    if len(variables) == len(captured):
        return None
    sunk = replace(op, captures=len(variables)).with_graphs(lambda g: _with_constants(g, captured))
    return sunk, [*node.inputs[:first], *variables]


def _sinks(value: Value | None) -> bool:
    """Returns whether a value that a subgraph captures can move into it as a constant.

    True for constants with known elements; False for None.
    """
    return value is not None and value.is_constant and value.has_numbers


def _with_constants(graph: Graph, captured: Sequence[Value | None]) -> Graph:
    """Returns a copy of a subgraph in which constants replace the inputs that captured them.

    Args:
        graph: Subgraph; its last inputs are the captured values.
        captured: Captured values; only constants are inlined.
    """
    copy = graph.copy()
    inputs = copy.inputs[len(copy.inputs) - len(captured) :]
    copy.replace_inputs({v: c for v, c in zip(inputs, captured, strict=True) if _sinks(c)})
    return copy


def _any_shape(t: TensorType | None) -> TensorType | None:
    """Returns a tensor type with its shape made unknown; a container or None unchanged."""
    return t if t is None or isinstance(t, ContainerType) else TensorType(t.dtype, None)


def _stacked(t: TensorType, axis: int) -> TensorType:
    """Returns the type of stacked values of type `t`: a dim of unknown size is added at `axis`."""
    if t.shape is None:
        return TensorType(t.dtype, None)
    at = axis % (len(t.shape) + 1)
    return TensorType(t.dtype, (*t.shape[:at], fresh_dim(), *t.shape[at:]))


def _stack(
    parts: Sequence[RuntimeValue], type_: TensorType, axis: int, host: HostContext
) -> RuntimeValue:
    """Stacks values along a new axis.

    Args:
        parts: Values; may be empty.
        type_: Type of a value, for the empty result of no values.
        axis: Position of the new axis.
        host: Runs the graph that stacks them.
    """
    if parts:
        return join(parts, axis, True, host)
    dims = [d if isinstance(d, int) else 0 for d in type_.shape or ()]
    dims.insert(axis % (len(dims) + 1), 0)
    return np.zeros(dims, type_.dtype.numpy)


def _body(node: OnnxNode, name: str) -> Graph:
    """Returns the subgraph in attribute `name` of a node, with its outputs renamed to "0", "1", …

    Raises:
        ModelError: The node lacks this attribute.
    """
    graph = node.attrs.get(name)
    if not isinstance(graph, Graph):
        raise ModelError(f"{node.op_type}: it has no graph '{name}'.")
    return positional(graph)
