"""The operator contract.

A newcomer adds an op in one file: a frozen dataclass with `infer`, `reference` and `variants`,
under `@register`; where it adds no attributes to what it inherits, a plain class. Importer
coverage, op tests and the docs table derive from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from clrt.errors import ModelError, OutOfMemoryError, ShapeError
from clrt.ir.attributes import attribute_names
from clrt.ir.dims import Expr, UndecidableDim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, IrOp, TensorType, TracedConstant
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.parts import Subview
from clrt.kernels.variant import Variant
from clrt.util.host_limits import check_texts

Types = Sequence[TensorType | None]


class DeviceTensorLike(Protocol):
    """A tensor that lies on a device."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> DType: ...

    def numpy(self) -> Array:
        """A copy of the elements on the host."""


Tensor: TypeAlias = "Array | DeviceTensorLike"
# A value between stages of a run: a tensor, wherever it lies, a list of such (a sequence), a dict
# of Python scalars (a map), or None (an optional without a value).
RuntimeValue: TypeAlias = "Tensor | list[RuntimeValue] | dict[Any, Any] | None"


def tensor(value: RuntimeValue) -> Tensor:
    """A value of which types say that it is a tensor.

    Raises:
        ModelError: It is none.
    """
    if value is None or isinstance(value, (list, dict)):
        raise _unlike(value, "a tensor")
    return value


def sequence(value: RuntimeValue) -> list[RuntimeValue]:
    """A value of which types say that it is a sequence.

    Raises:
        ModelError: It is none.
    """
    if not isinstance(value, list):
        raise _unlike(value, "a sequence")
    return value


def mapping(value: RuntimeValue) -> dict[Any, Any]:
    """A value of which types say that it is a map.

    Raises:
        ModelError: It is none.
    """
    if not isinstance(value, dict):
        raise _unlike(value, "a map")
    return value


def shapes_of(values: Mapping[str, RuntimeValue]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors among values, by name."""
    others = (list, dict, type(None))
    return {
        n: x.shape if type(x) is np.ndarray else tuple(tensor(x).shape)
        for n, x in values.items()
        if not isinstance(x, others)
    }


def _unlike(value: RuntimeValue, wanted: str) -> ModelError:
    kinds = {list: "a sequence", dict: "a map", type(None): "an optional without a value"}
    return ModelError(f"It takes {wanted}; it was given {kinds.get(type(value), 'a tensor')}.")


class HostContext(Protocol):
    """What an op that the host drives may use."""

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """The outputs of a graph."""

    def read(self, value: RuntimeValue) -> Array:
        """The elements of a tensor."""

    def notes(self, graph: Graph) -> dict[Hashable, Any] | None:
        """What ops have noted of a graph, kept as long as it is; None where nothing is kept."""

    def optimise(self, graph: Graph) -> None:
        """Optimises a graph of few nodes in place, as that of the model was."""


class Accuracy(Enum):
    """How far a kernel may be from its reference; tests take their tolerance from here.

    The value is (relative to the largest element, in units of the dtype's epsilon).
    """

    EXACT = 0
    ELEMENTWISE = 8
    TRANSCENDENTAL = 32
    ACCUMULATED = 256


@dataclass
class OnnxNode:
    """A node as the file has it, for `Op.from_onnx`.

    Attributes:
        attrs: Python values (int, float, str, bytes, list, ndarray for tensors).
        inputs: Input names, "" where left out; `add_constant` makes new ones.
        constants: Elements of the inputs that are constants, by name.
        types: Types of the inputs, by name.
        captures: How many inputs at the end are those of its graphs, which an attribute each is.
    """

    op_type: str
    domain: str
    name: str
    opset: int
    attrs: dict[str, Any]
    inputs: list[str]
    outputs: list[str]
    constants: Mapping[str, Array]
    add_constant: Callable[[Array], str]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    captures: int = 0

    def set_input(self, index: int, array: Array) -> None:
        """Makes input `index` a new constant."""
        self.inputs += [""] * (index + 1 - len(self.inputs))
        self.inputs[index] = self.add_constant(array)


class Decompose(Exception):
    """Raised by `from_onnx`: the node runs as other ops, those of the op's decomposition.

    Where there is none, or that raises it too, they are those of the body in the ONNX schema.
    """


@dataclass(frozen=True)
class Op(IrOp):
    """Base of all ops: fields are the attributes of the newest opset, in ONNX's names.

    Class attributes:
        attribute_to_input: Attributes of older opsets that are inputs in the newest: name to
            (input index, dtype); they become constants at import.
        non_attribute_fields: Fields that say no more than the node's inputs and outputs do: they
            are no attributes in ONNX.
        since_version: From this opset on it means what it does, which schemas before do not tell.
        always_view: The single output is input 0 with another shape: no kernel runs.
        is_data_movement: Each element of the outputs is one of input 0, perhaps in another dtype.
        partially_read_input: An input of which a launch reads only some, no more bytes than it
            writes.
        partially_writes_output: A launch writes only some of the output, no more bytes than it
            reads.
        inplace_inputs: Inputs whose memory the first output may take over (same size, same index
            order).
        plan_time_inputs: Inputs whose elements must be known when a plan is made (shapes, axes).
        same_dtype_inputs: Groups of inputs that have one dtype each: kernels read them as that.
        index_inputs: Inputs whose elements kernels follow (indices, lengths): they are integers.
        required_inputs: Inputs that are never left out, though `infer` can do without them.
        evaluates_dims: The reference also works on object arrays of dims (shape arithmetic).
        accuracy: Tolerance class of the kernels.
        supported_storages: How the elements of its inputs and outputs may lie in memory
            (`DType.storage`) for its kernels; None where they take any dtype, since they only move
            elements.
        half_storage_inputs: Inputs that kernels read in float16 and bfloat16 as they lie, where
            input 0 is float32; outputs of such a dtype take over one of them.
        host_driven: The node runs between plans, driven by the host, which does no arithmetic on
            tensors in it: control flow, sequences and maps.
        host_driven_inputs: Those of its host inputs for which, where they are computed data, the
            host
            drives the node, too: the plan of what follows then serves all that give the same shape.
        has_slow_reference: The reference goes step by step in Python: of large inputs the device,
            or a run, computes it, and not the constant folder.
        loop_carried_offsets: The input of its graph, and the output, from which on each output
            becomes the input of the next turn, perhaps in another shape.
    """

    attribute_to_input: ClassVar[Mapping[str, tuple[int, Any]]] = {}
    non_attribute_fields: ClassVar[frozenset[str]] = frozenset()
    since_version: ClassVar[int] = 0
    always_view: ClassVar[bool] = False
    is_data_movement: ClassVar[bool] = False
    partially_read_input: ClassVar[int | None] = None
    partially_writes_output: ClassVar[bool] = False
    inplace_inputs: ClassVar[tuple[int, ...]] = ()
    plan_time_inputs: ClassVar[tuple[int, ...]] = ()
    same_dtype_inputs: ClassVar[tuple[tuple[int, ...], ...]] = ()
    index_inputs: ClassVar[tuple[int, ...]] = ()
    required_inputs: ClassVar[tuple[int, ...]] = ()
    evaluates_dims: ClassVar[bool] = False
    accuracy: ClassVar[Accuracy] = Accuracy.ACCUMULATED
    variants: ClassVar[tuple[Variant, ...]] = ()
    supported_storages: ClassVar[frozenset[str] | None] = frozenset({"plain", "half"})
    half_storage_inputs: ClassVar[tuple[int, ...]] = ()
    host_driven: ClassVar[bool] = False
    has_slow_reference: ClassVar[bool] = False
    host_driven_inputs: ClassVar[tuple[int, ...]] = ()
    loop_carried_offsets: ClassVar[tuple[int, int] | None] = None

    @classmethod
    def subgraph_input_types(cls, inputs: Types) -> list[TensorType | None]:
        """Types of the inputs of its graph, where the file need not declare them."""
        return []

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        """The outputs, where the host drives the node: a size in them depends on the data."""
        return self.run_reference(*(None if x is None else host.read(x) for x in inputs))

    def is_view(self, inputs: Types) -> bool:
        """Whether it is a view of inputs whose shapes are all numbers."""
        return self.always_view

    def subviews(self, node: Node) -> Sequence[Subview]:
        """The outputs that are rows of an input, or the inputs that are rows of the output.

        The node's launches copy those of them that do not lie where they belong
        (`Lowering.placed_of`). All shapes are numbers.
        """
        return ()

    def inplace_candidates(self, node: Node) -> Iterable[tuple[int, Sequence[int]]]:
        """Outputs by number, and the inputs whose memory each may take over."""
        return ((0, self.inplace_inputs),) if self.inplace_inputs else ()

    def in_donated(self) -> Op:
        """The op where the memory of input 0 is donated and its output may take it over."""
        return self

    def with_graphs(self, change: Callable[[Graph], Graph]) -> Op:
        """The op with other graphs in the place of those that it runs."""
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {n: change(g) for n, g in held.items() if isinstance(g, Graph)}
        return replace(self, **changed)

    @property
    def computes_on_host(self) -> bool:
        """Whether the host computes what `drive` gives, and does not just say what to run."""
        return type(self).run_host_driven is Op.run_host_driven

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        """The op of an ONNX node; may rewrite `node.inputs` to the newest opset's form.

        Raises:
            UnsupportedError: An attribute has a value clrt does not support.
        """
        attrs = dict(node.attrs)
        for name, (index, dtype) in cls.attribute_to_input.items():
            if name in attrs:
                node.set_input(index, np.asarray(attrs.pop(name), dtype))
        known = attribute_names(cls)
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items() if k in known}
        return cls(**values)

    def to_onnx(self) -> dict[str, Any]:
        """The fields as attributes of the newest opset: what `from_onnx` reads.

        Raises:
            UnsupportedError: ONNX's op does not have one of the values.
        """
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in self.non_attribute_fields
        }

    def onnx_inputs(self, inputs: Sequence[Value | None]) -> list[Value | None]:
        """The inputs in the places that ONNX has for them."""
        return list(inputs)

    def is_random(self, inputs: Types) -> bool:
        """Whether the outputs are random numbers."""
        return False

    def check_tables(self, inputs: Types) -> None:
        """Checks constants that kernels follow as clrt made them; asked where a file has them.

        Raises:
            ModelError: Such an input is no constant, or would lead a kernel out of bounds.
        """

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """The outputs, by NumPy with wide accumulation: oracle, folder and fallback in one."""
        raise NotImplementedError(self.name)

    def run_reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """`reference` on what NumPy can compute with.

        As the kernels, it takes wider floats. Its texts are of one width, so that all of a text
        fits where another one was.

        Raises:
            OutOfMemoryError: The host has no room for it.
        """
        if self.supported_storages is not None:
            inputs = tuple(
                None if a is None else _readable(a, self.supported_storages) for a in inputs
            )
        if any(_is_text(a) for a in inputs):
            if not self.host_driven:
                self._check_texts(inputs)
            inputs = tuple(_of_one_width(inputs))
        try:
            return self.reference(*inputs)
        except MemoryError as error:
            raise OutOfMemoryError(f"{self.name}: the host has no room for it: {error}.") from error

    def _check_texts(self, inputs: Sequence[Array | None]) -> None:
        """Refuses texts of one width, in the inputs or the outputs, that take too much memory."""
        types = [None if a is None else TensorType.of(a) for a in inputs]
        texts = [a for a in inputs if a is not None and _is_text(a)]
        width = max(a.itemsize for a in texts) // 4
        made = [t.static_shape or () for t in self.infer(types) if t.dtype is DType.STRING]
        for count in (*(a.size for a in texts), *map(math.prod, made)):
            check_texts(count, width)

    def check_inputs(self, inputs: Types) -> None:
        """Refuses inputs that kernels would take for something else, and nodes that lack some.

        Raises:
            ModelError: One that is needed is left out.
            ShapeError: Two that must have one dtype have not, or one to follow has no integers.
        """
        for index in self.required_inputs:
            if index >= len(inputs) or inputs[index] is None:
                raise ModelError(f"{self.name} lacks its input {index}; export the model again.")
        for group in self.same_dtype_inputs:
            given = [(i, t) for i in group if i < len(inputs) and (t := inputs[i]) is not None]
            for index, type_ in given[1:]:
                if type_.dtype is not given[0][1].dtype:
                    first, other = given[0]
                    raise ShapeError(
                        f"{self.name}: input {index} is {type_} and input {first} {other}; "
                        "expected one dtype."
                    )
        for index in self.index_inputs:
            found = inputs[index] if index < len(inputs) else None
            if found is not None and found.dtype not in _FOLLOWED:
                raise ShapeError(f"{self.name}: input {index} is {found}; expected int32 or int64.")

    def infer_with_data(self, inputs: Types) -> list[TensorType]:
        """`infer`, plus the elements of small integer results whose inputs are all known."""
        self.check_inputs(inputs)
        outputs = self.infer(inputs)
        if not self.evaluates_dims or any(map(_unknown, inputs)):
            return outputs
        if any(t.dtype not in _SHAPE_DTYPES or not _is_small(t) for t in outputs):
            return outputs
        try:
            arrays = self.reference(*(None if t is None else t.data for t in inputs))
            data = [_tidy(np.asarray(a), t.dtype) for t, a in zip(outputs, arrays, strict=True)]
        except (UndecidableDim, TypeError, ZeroDivisionError, OverflowError):
            return outputs
        return [TensorType(t.dtype, t.shape, a) for t, a in zip(outputs, data, strict=True)]


def _unknown(type_: TensorType | None) -> bool:
    """Whether the elements of an input are no numbers, nor dims, to compute shapes with."""
    return type_ is not None and (
        type_.known_elements is None or isinstance(type_.known_elements, TracedConstant)
    )


def _is_text(array: Array | None) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "U"


def _readable(array: Array, storages: frozenset[str]) -> Array:
    if array.dtype == object:
        return array
    dtype = DType.of(array.dtype)
    return array.astype(np.float32) if dtype.is_float and dtype.storage not in storages else array


def _of_one_width(inputs: Sequence[Array | None]) -> Sequence[Array | None]:
    """Texts as wide as the longest: NumPy cuts what is written into an array of shorter ones."""
    texts = {i: a for i, a in enumerate(inputs) if a is not None and _is_text(a)}
    width = np.result_type(*texts.values())
    return [texts[i].astype(width, copy=False) if i in texts else a for i, a in enumerate(inputs)]


# What an int64 holds, one to an element; decompositions follow small codes, too.
_FOLLOWED = frozenset(
    {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32, DType.INT64}
)
_SHAPE_DTYPES = {DType.INT64, DType.INT32, DType.BOOL}
_SMALL_ELEMS = 64


def _is_small(t: TensorType) -> bool:
    shape = t.static_shape
    if shape is None or any(map(is_traced, shape)):  # an array has one size
        return False
    return math.prod(shape) <= _SMALL_ELEMS


def _tidy(array: Array, dtype: DType) -> Array:
    """An object array without symbols becomes a plain one.

    Raises:
        OverflowError: A number among the symbols, or one that planning traces, does not fit.
    """
    if array.dtype != object or not any(isinstance(x, Expr) or is_traced(x) for x in array.flat):
        return array.astype(dtype.numpy)
    most = np.iinfo(np.int32 if dtype is DType.INT32 else np.int64).max
    if any(abs(x) > most for x in array.flat if not isinstance(x, Expr)):
        raise OverflowError
    return array


def all_graphs(graph: Graph) -> Iterator[Graph]:
    """A graph, and those that its nodes run."""
    yield graph
    for node in graph.nodes:
        if isinstance(node.op, Op):
            for inner in node.op.graphs:
                yield from all_graphs(inner)
