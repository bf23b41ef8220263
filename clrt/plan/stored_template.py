"""Converts plan templates to JSON values and back, so that later processes need not plan.

A template is a record of lists. Numbers that depend on sizes are written as a list of one integer,
the index of their formula in the trace; other numbers as they are. Constants are referred to by
index, and stored elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from clrt.ir.cl_code import Code
from clrt.ir.dims import Bindings
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ComputedElements, IrOp, TensorType, TracedConstant
from clrt.ir.stored_functions import function_of, text_of
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, StoredTrace, is_traced
from clrt.ir.text import print_op
from clrt.kernels.spec import (
    Arg,
    Buffer,
    BufferArg,
    Counter,
    KernelSpec,
    Launch,
    PackedWeight,
    Scalar,
    Scratch,
    StatusWord,
)
from clrt.plan.arena import Arena
from clrt.plan.arena_relayout import StackingOrder
from clrt.plan.device_io import DeviceIo
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, Placed
from clrt.plan.stored_checks import (
    DAMAGED,
    at_index,
    check_kernel,
    check_template,
    checked,
)
from clrt.plan.stored_derivations import Read, StoredDerivation
from clrt.plan.template import ArenaBuffers, InstantiatedPlan, PlanTemplate, varies
from clrt.util.cached_property import cached_property
from clrt.util.gc_control import gc_disabled

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
# A constant in the form that a kernel reads: a value, or its packed form.
Constant = Value | PackedWeight

# NumPy types of kernel arguments by the letter that stands for them in a record. f is a float,
# stored as its bits.
_NUMBERS: Mapping[str, Any] = {"i": np.int32, "u": np.uint32, "l": np.int64}
_LETTERS = {**{type_: letter for letter, type_ in _NUMBERS.items()}, np.float32: "f"}


class Unstorable(Exception):
    """A template has parts that a record cannot hold."""


class TemplateWriter:
    """Converts a template to a record.

    Args:
        template: The template.
        constant: Returns the index at which a constant is stored.
    """

    def __init__(self, template: PlanTemplate, constant: Callable[[Constant], int]) -> None:
        self._template, self._trace, self._plan = template, template.trace, template.plan
        self._constant = constant
        self._buffers: dict[Buffer, int] = {}
        self._rows: list[Any] = []
        self._kernels: dict[KernelSpec, int] = {}
        # By `id()` of the type, which the value keeps alive.
        self._known: dict[int, Value] = {}
        self._steps: dict[Any, int] = {}
        self._derived: list[Any] = []

    def record(self) -> dict[str, Any]:
        """Returns the record, a JSON object.

        Raises:
            Unstorable: A record cannot hold a part of the template.
        """
        plan, template, contract = self._plan, self._template, self._plan.device_io
        launches = [self._launch(launch) for launch in template.launches]
        also = [self._kernel(spec) for spec in plan.precompiled_kernels]
        io = [
            [self._buffer(v) for v in values] for values in (plan.graph.inputs, plan.graph.outputs)
        ]
        words = [self._buffer(word) for word in plan.status_words]
        owners = [self._buffer(owner) for owner in template.buffers.owners]
        external = [self._buffer(value) for value in plan.external]
        layout = template.buffers.layout
        record = {
            "contract": contract_row(contract),
            "graph": [plan.graph.name, plan.graph.output_names, *io],
            "launches": launches,
            "kernels": [_kernel_row(spec) for spec in self._kernels],
            "precompiled": also,
            "words": words,
            "external": external,
            "owners": owners,
            "spans": template.buffers.spans,
            "layout": [layout.order, layout.supports, layout.slabs],
            "waste": template.buffers.waste,
            "costs": list(template.costs or ()),
            "on_twin": plan.on_twin,
            "buffers": self._rows,
            "derived": self._derived,
        }
        # The last: conversions above may add constants to the trace.
        try:
            trace = self._trace.to_stored()
        except ValueError as error:
            raise Unstorable(str(error)) from error
        record["trace"] = [trace.symbols, trace.numbers, trace.steps, trace.guards, trace.texts]
        return record

    def _launch(self, launch: Launch) -> list[Any]:
        sizes = [self._number(n) for n in launch.global_size]
        arguments = [self._argument(arg) for arg in launch.args]
        local = launch.local_size
        flops = self._number(launch.flops)
        return [self._kernel(launch.kernel), sizes, local, flops, arguments]

    def _argument(self, argument: Arg) -> list[Any]:
        if isinstance(argument, BufferArg):
            return ["b", self._buffer(argument.buffer), self._number(argument.offset)]
        if is_traced(argument):
            return ["i", self._number(argument)]
        bits = argument.view(np.uint32) if isinstance(argument, np.float32) else argument
        return [_LETTERS[type(argument)], int(bits)]

    def _kernel(self, spec: KernelSpec) -> int:
        return self._kernels.setdefault(spec, len(self._kernels))

    def _buffer(self, buffer: Buffer) -> int:
        if buffer not in self._buffers:
            row = self._row(buffer)  # may add the root of the buffer first
            self._buffers[buffer] = len(self._rows)
            self._rows.append(row)
        return self._buffers[buffer]

    def _row(self, buffer: Buffer) -> list[Any]:
        if isinstance(buffer, PackedWeight):
            return ["constant", self._constant(buffer)]
        if isinstance(buffer, StatusWord):
            return self._word(buffer)
        if isinstance(buffer, Scratch):
            return ["scratch", str(buffer.dtype), self._number(buffer.elems)]
        root = self._plan.root(buffer)
        if buffer.is_constant:
            return self._constant_row(buffer)
        dims = [self._number(n) for n in buffer.dims]
        row = ["value", buffer.name, str(buffer.dtype), dims]
        return [*row, -1 if root is buffer else self._buffer(root)]

    def _constant_row(self, value: Value) -> list[Any]:
        if not varies(value):
            return ["constant", self._constant(value)]
        dims = [self._number(n) for n in value.dims]
        return ["computed", value.name, str(value.dtype), dims, self._elements(value.type)]

    def _elements(self, type_: TensorType) -> list[Any]:
        """Returns a row that says how to compute the known elements of a type at any sizes.

        The row is read by `_Reader._elements`: it refers to a constant, formulas, a function, or an
        output of a derivation.
        """
        known = type_.known_elements
        dtype = str(type_.dtype)
        if isinstance(known, TracedConstant):
            if isinstance(known.derive, ComputedElements):
                return _computed_row(known.derive)
            return ["step", *self._step(known.derive)]
        if isinstance(known, np.ndarray) and known.dtype == object:
            shape = [self._number(n) for n in known.shape]
            return ["numbers", dtype, shape, [self._number(n) for n in known.flat]]
        value = self._known.setdefault(id(type_), Value("", type_))
        return ["constant", self._constant(value)]

    def _step(self, output: Any) -> tuple[int, int]:
        """Returns (index of a derivation in the record, index of `output` among its outputs).

        Adds the derivation, a node that the host computes from known inputs, at the first call.

        Raises:
            Unstorable: The node has subgraphs.
        """
        derivation = output.derivation
        if derivation not in self._steps:
            node = derivation.node
            inputs = [None if t is None else self._elements(t) for t in derivation.inputs]
            if node.op.graphs:
                raise Unstorable(f"'{node.name}' has subgraphs")
            row = [print_op(node.op), inputs, [str(v.dtype) for v in node.outputs]]
            self._steps[derivation] = len(self._derived)
            self._derived.append(row)
        return self._steps[derivation], output.index

    def _word(self, word: StatusWord) -> list[Any]:
        node = word.node
        inputs = [None if v is None else v.name for v in node.inputs]
        title = [node.op.domain, node.op.name, node.name, inputs]
        if isinstance(word, Counter):
            return ["counter", title]
        allowed = [[self._number(n) for n in pair] for pair in word.allowed]
        return ["word", title, word.operand, word.what, allowed, word.of, word.real, word.rule]

    def _number(self, number: Any) -> Any:
        return [self._trace.formula(number)] if is_traced(number) else int(number)


def _computed_row(elements: ComputedElements) -> list[Any]:
    """Returns a row for elements that a function computes: its text, and formulas of its arguments.

    Raises:
        Unstorable: The function is not `storable`, or bound to arguments that a text cannot hold.
    """
    text = text_of(elements.make)
    if not text:
        raise Unstorable("a constant is computed by a local function")
    return ["function", text, *elements.formulas]


def contract_row(contract: DeviceIo) -> list[list[str]]:
    """Returns the inputs and outputs in device memory as a JSON value."""
    return [
        sorted(names)
        for names in (contract.device_inputs, contract.donated, contract.device_outputs)
    ]


def read_contract(row: Sequence[Sequence[str]]) -> DeviceIo:
    """Converts a value from `contract_row` back."""
    return DeviceIo(*(frozenset(names) for names in row))


def _kernel_row(spec: KernelSpec) -> list[Any]:
    return [spec.source, spec.entry, spec.defines, spec.opencl_c, spec.options]


class StoredTemplate:
    """A template as a record, converted to a `PlanTemplate` once sizes need it.

    The record is trusted: it holds code of kernels, and addresses that no kernel checks. A file of
    another user or a model must never get here.

    Attributes:
        device_io: Inputs and outputs that the plan has on the device.
    """

    def __init__(
        self,
        device_io: DeviceIo,
        read: Callable[[], Mapping[str, Any]],
        constants: Sequence[Constant],
        graph: Graph,
    ) -> None:
        """Creates a template whose record is not read yet.

        Args:
            device_io: Inputs and outputs that the plan has on the device.
            read: Returns a record from `TemplateWriter.record`.
            constants: The constants, by the indices in the record.
            graph: The graph whose plan it is.
        """
        self.device_io = device_io
        self._read, self._constants, self._graph = read, constants, graph
        self._template: PlanTemplate | None = None
        self._is_damaged = False

    @property
    def trace(self) -> ShapeTrace:
        """Formulas of the plan's numbers.

        Raises:
            ValueError, TypeError, KeyError, IndexError: The record is damaged.
        """
        return self._parts[1] if self._template is None else self._template.trace

    @property
    def on_twin(self) -> bool:
        """Whether the plan is for the device's twin; False if the record is damaged."""
        if self._template is not None:
            return self._template.plan.on_twin
        return bool(self._unless_damaged(lambda: self._parts[0]["on_twin"]))

    @property
    def kernels(self) -> list[KernelSpec]:
        """Kernels of the template's launches; empty if the record is damaged.

        Until the record is converted, the plan's `precompiled_kernels` are included.
        """
        if self._template is not None:
            return [x.kernel for x in self._template.launches]
        return self._unless_damaged(lambda: [_kernel(*r) for r in self._parts[0]["kernels"]]) or []

    @cached_property
    def _parts(self) -> tuple[Mapping[str, Any], ShapeTrace]:
        record = self._read()
        return record, ShapeTrace.from_stored(StoredTrace(*record["trace"]))

    def holds(self, bindings: Bindings) -> bool:
        """Returns whether the plan's formulas hold at other sizes; False for a damaged record."""
        return bool(self._unless_damaged(self._holds, bindings))

    def instantiate(self, bindings: Bindings, max_slab_bytes: int) -> InstantiatedPlan | None:
        """Evaluates the plan at other sizes, as `PlanTemplate.instantiate`.

        Returns:
            The plan; None if the template does not hold at these sizes, or the record is damaged.
        """
        return self._unless_damaged(self._instantiate, bindings, max_slab_bytes)

    def _unless_damaged(self, function: Callable[..., _T], *args: Any) -> _T | None:
        """Calls a function that reads the record; returns None if the record is damaged.

        The template is then regarded as damaged from now on.
        """
        try:
            return None if self._is_damaged else function(*args)
        except DAMAGED:
            _LOG.debug("a stored template is damaged", exc_info=True)
            self._is_damaged = True
            return None

    def _holds(self, bindings: Bindings) -> bool:
        return self.trace.evaluate(bindings) is not None

    def _instantiate(self, bindings: Bindings, max_slab_bytes: int) -> InstantiatedPlan | None:
        if self._template is None:
            if not self._holds(bindings):
                return None
            template = _read(*self._parts, self._constants, self.device_io)
            check_template(template, self._graph)
            self._template = template
            del self._parts
        return self._template.instantiate(bindings, max_slab_bytes)


@gc_disabled
def _read(
    record: Mapping[str, Any],
    trace: ShapeTrace,
    constants: Sequence[Constant],
    device_io: DeviceIo,
) -> PlanTemplate:
    return _Reader(record, trace, constants).template(device_io)


class _Reader:
    """Converts a record to a template.

    Args:
        record: A record from `TemplateWriter.record`.
        trace: The trace in the record.
        constants: The constants, by the indices in the record.
    """

    def __init__(
        self, record: Mapping[str, Any], trace: ShapeTrace, constants: Sequence[Constant]
    ) -> None:
        self._record, self._trace, self._constants = record, trace, constants
        self._roots: dict[Value, Value] = {}
        self._kernels = [_kernel(*row) for row in record["kernels"]]
        self._derivations: list[StoredDerivation] = []
        for row in record["derived"]:  # an input comes before what is derived from it
            self._derivations.append(self._derivation(*row))
        self._buffers: list[Buffer] = []
        for row in record["buffers"]:  # a root comes before the values that share its memory
            self._buffers.append(self._buffer(*row))

    def template(self, device_io: DeviceIo) -> PlanTemplate:
        record = self._record
        name, output_names, inputs, outputs = record["graph"]
        graph = Graph(name, [self._value(i) for i in inputs], [self._value(i) for i in outputs], [])
        graph.output_names = list(output_names)
        launches = tuple(self._launch(*row) for row in record["launches"])
        order, supports, slabs = record["layout"]
        layout = StackingOrder(tuple(order), tuple(map(tuple, supports)), tuple(slabs))
        owners = tuple(cast(Placed, at_index(self._buffers, i)) for i in record["owners"])
        spans = tuple((first, last) for first, last in record["spans"])
        external = tuple(self._value(i) for i in record["external"])
        words = tuple(cast(StatusWord, at_index(self._buffers, i)) for i in record["words"])
        also = tuple(at_index(self._kernels, i) for i in record["precompiled"])
        plan = Plan(
            graph,
            (DeviceStep((), "stored", launches),),
            Arena(),
            {},
            self._roots,
            0,
            external,
            device_io,
            words,
            precompiled_kernels=also,
            on_twin=bool(record["on_twin"]),
        )
        buffers = ArenaBuffers(owners, spans, layout, float(record["waste"]))
        template = PlanTemplate(self._trace, plan, buffers)
        template.costs = tuple(map(int, record["costs"]))
        return template

    def _launch(
        self, kernel: int, sizes: Sequence[Any], local: Sequence[int] | None, flops: Any, args: Any
    ) -> Launch:
        global_size = tuple(map(self._number, sizes))
        local_size = None if local is None else tuple(map(int, local))
        arguments = tuple(self._argument(*arg) for arg in args)
        return Launch(
            at_index(self._kernels, kernel), global_size, local_size, arguments, self._number(flops)
        )

    def _argument(self, letter: str, value: Any, offset: Any = 0) -> Arg:
        if letter == "b":
            return BufferArg(at_index(self._buffers, value), self._number(offset))
        if isinstance(value, list):
            return cast(np.int32, self._number(value))
        if letter == "f":
            return np.uint32(value).view(np.float32)
        number: Scalar = _NUMBERS[letter](value)
        return number

    def _buffer(self, kind: str, *row: Any) -> Buffer:
        if kind == "constant":
            constant: Buffer = at_index(self._constants, row[0])
            return constant
        if kind == "scratch":
            return Scratch(self._number(row[1]), DType(row[0]))
        if kind == "counter":
            return Counter(_node(*row[0]))
        if kind == "word":
            title, operand, what, allowed, of, real, rule = row
            pairs = tuple((self._number(low), self._number(high)) for low, high in allowed)
            return StatusWord(_node(*title), operand, what, pairs, of, real, rule)
        name, dtype, dims, last = row
        shape = tuple(map(self._number, dims))
        if kind == "computed":
            read = checked(self._elements(*last), [self._trace.formula(n) for n in shape])
            known = TracedConstant(np.zeros(0), self._trace, read)
            return Value(name, TensorType(DType(dtype), shape, known))
        if kind != "value":
            raise ValueError(f"no kind of buffer: {kind[:100]!r}")
        value = Value(name, TensorType(DType(dtype), shape))
        if last >= 0:
            self._roots[value] = self._value(last)
        return value

    def _elements(self, kind: str, *row: Any) -> Read:
        """Returns a function that computes elements from an evaluation of the trace.

        Args:
            kind: First item of a row from `TemplateWriter._elements`.
            row: Other items of the row.
        """
        if kind == "step":
            output: Read = at_index(self._derivations, row[0]).output(row[1])
            return output
        if kind == "constant":
            constant = at_index(self._constants, row[0])
            elements = constant.numbers if isinstance(constant, Value) else None
            if elements is None:
                raise TypeError("a packed constant is no input of a derivation")
            found = elements
            return lambda _: found
        if kind == "function":
            return ComputedElements(function_of(row[0]), row[1:])
        if kind != "numbers":
            raise ValueError(f"no kind of elements: {kind[:100]!r}")
        dtype, dims, numbers = row
        formulas = [self._trace.formula(self._number(n)) for n in numbers]
        shape = tuple(map(int, dims))
        target = DType(dtype).numpy

        def read(at: Evaluation) -> Array:
            return np.array([at.numbers[i] for i in formulas], target).reshape(shape)

        return read

    def _derivation(
        self, op: str, inputs: Sequence[Any], dtypes: Sequence[str]
    ) -> StoredDerivation:
        readers = [None if row is None else self._elements(*row) for row in inputs]
        return StoredDerivation(op, readers, [DType(d).numpy for d in dtypes])

    def _value(self, index: int) -> Value:
        buffer = at_index(self._buffers, index)
        if not isinstance(buffer, Value):
            raise TypeError(f"buffer {index} is no value")
        return buffer

    def _number(self, number: Any) -> int:
        return self._trace.number(number[0]) if isinstance(number, list) else int(number)


def _kernel(
    source: str,
    entry: str,
    defines: Sequence[tuple[str, str]],
    opencl_c: tuple[int, int],
    options: Sequence[str],
) -> KernelSpec:
    major, minor = opencl_c
    pairs = tuple((name, Code(value)) for name, value in defines)
    codes = tuple(Code(option) for option in options)
    kernel = KernelSpec(source, entry, pairs, (major, minor), codes)
    check_kernel(kernel)
    return kernel


def _node(domain: str, op: str, name: str, inputs: Sequence[str | None]) -> Node:
    """Returns a node for error messages, with the names of the planned node and of its inputs."""
    kind = type(op, (IrOp,), {"name": op, "domain": domain})
    values = [None if v is None else Value(v, TensorType(DType.FLOAT32, None)) for v in inputs]
    return Node(name, kind(), values, [])
