"""The operator contract: the base class `Op` and the types that its methods use.

To add an op, write one file with a frozen dataclass that has `infer`, `reference` and `variants`
and is decorated with `@register` (a plain class if it adds no attributes to its base). Then run
`python tools/op_index.py`, which adds the file to the index of modules. Importer coverage, op tests
and the table of ops in the docs are derived from the registered classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from clrt.errors import ModelError, OutOfMemoryError, ShapeError
from clrt.ir.attributes import attribute_names
from clrt.ir.dims import Expr, UndecidableDim
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, IrOp, TensorType, TracedConstant
from clrt.ir.runtime_values import RuntimeValue
from clrt.ir.symbolic_trace import is_traced
from clrt.kernels.subview import Subview
from clrt.kernels.variant import Variant
from clrt.ops.traits import HostTraits, InputTraits, MemoryTraits, OnnxTraits
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import check_texts

if TYPE_CHECKING:
    from clrt.ops.op_builder import OpBuilder

Types = Sequence[TensorType | None]


class HostContext(Protocol):
    """Services of the runtime for host-driven ops (control flow, sequences, maps)."""

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> list[RuntimeValue]:
        """Runs a graph on `inputs`, one per graph input, and returns its outputs in order."""

    def read(self, value: RuntimeValue) -> Array:
        """Returns the elements of `value`, a tensor on host or device, as a host array."""

    def notes(self, graph: Graph) -> dict[Hashable, Any] | None:
        """Returns a dict in which ops cache data as long as `graph` lives; None if not to cache."""

    def optimise(self, graph: Graph) -> None:
        """Optimises a small graph in place, by the same passes as the model's graph."""


class Accuracy(Enum):
    """Maximum error of a kernel against the reference; tests use it as their tolerance.

    The value is the error relative to the largest element, in multiples of the dtype's epsilon.
    """

    EXACT = 0
    ELEMENTWISE = 8
    TRANSCENDENTAL = 32
    ACCUMULATED = 256


@dataclass
class OnnxNode:
    """A node of an ONNX file, the argument of `Op.from_onnx`.

    Attributes:
        op_type: Name of the op, such as "Conv".
        domain: Domain of the op; "" for ai.onnx.
        name: Name of the node.
        opset: Opset of the domain that the file imports.
        attrs: Attributes as Python values (int, float, str, bytes, list, ndarray for tensors).
        inputs: Input names, "" for an omitted one.
        outputs: Output names, "" for an omitted one.
        constants: Elements of the constant inputs, by name.
        add_constant: Adds a constant to the graph and returns its name.
        types: Types of the inputs, by name.
        captures: Number of trailing inputs that are outer values read by the node's subgraphs.
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
        """Sets input `index` to a new constant `array`; missing inputs before it become ""."""
        self.inputs += [""] * (index + 1 - len(self.inputs))
        self.inputs[index] = self.add_constant(array)


class Decompose(Exception):
    """Raised by `Op.from_onnx` to replace the ONNX node by the op's import decomposition.

    If the op has no import decomposition, or it raises `Decompose` too, the node is replaced by the
    function body in the ONNX schema.
    """


@dataclass(frozen=True)
class Op(IrOp):
    """Base class of all ops. Fields are the attributes of the newest opset, with ONNX's names.

    Class attributes:
        onnx_traits: How the op relates to its ONNX schema.
        input_traits: What the op expects of its inputs.
        memory_traits: How the op reads and writes memory.
        host_traits: What the host does for the op.
        accuracy: Tolerance class of the kernels.
        variants: Ways to run the op on a device; planning chooses one of them.
        supported_storages: Element storages (`DType.storage`) that the kernels read and write;
            None if they accept any dtype because they only move elements.
    """

    onnx_traits: ClassVar[OnnxTraits] = OnnxTraits()
    input_traits: ClassVar[InputTraits] = InputTraits()
    memory_traits: ClassVar[MemoryTraits] = MemoryTraits()
    host_traits: ClassVar[HostTraits] = HostTraits()
    accuracy: ClassVar[Accuracy] = Accuracy.ACCUMULATED
    variants: ClassVar[tuple[Variant, ...]] = ()
    supported_storages: ClassVar[frozenset[str] | None] = frozenset({"plain", "half"})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in tuple(vars(cls).items()):
            if not (name.startswith("_") or name.isupper() or _is_declared(cls, name, value)):
                raise TypeError(
                    f"{cls.__name__}.{name} is no trait or attribute of an op; declare it as a "
                    f"ClassVar, or set the trait by {', '.join(_TRAIT_GROUPS)} (clrt.ops.traits)."
                )

    @classmethod
    def subgraph_input_types(cls, inputs: Types) -> list[TensorType | None]:
        """Returns the types that ONNX prescribes for the leading inputs of the op's subgraphs.

        An example is the iteration number of Loop. None means no prescribed type; [] is the
        default.

        Args:
            inputs: Types of the node's inputs.
        """
        return []

    def run_host_driven(
        self, inputs: Sequence[RuntimeValue], host: HostContext
    ) -> Sequence[RuntimeValue]:
        """Runs a host-driven node and returns its outputs.

        The default, for ops whose output sizes depend on data, reads the inputs to the host and
        runs the reference.

        Args:
            inputs: Values of the node's inputs; None for an omitted one.
            host: Services of the runtime.
        """
        return self.run_reference(*(None if x is None else host.read(x) for x in inputs))

    def is_view(self, inputs: Types) -> bool:
        """Returns whether the output is a view of input 0 for inputs of these static types."""
        return self.memory_traits.always_view

    def subviews(self, node: Node) -> Sequence[Subview]:
        """Returns the outputs (as of Split) or inputs (as of Concat) of a node that are subviews.

        An output is a subview of an input, an input a subview of the output. () if there are no
        subviews. The node's launches copy a subview unless it aliases its parent
        (`Lowering.aliased_subviews_of`).

        Args:
            node: Node of this op, with static shapes.
        """
        return ()

    def inplace_candidates(self, node: Node) -> Iterable[tuple[int, Sequence[int]]]:
        """Returns pairs: index of an output, indices of the inputs whose memory it may reuse."""
        inputs = self.memory_traits.inplace_inputs
        return ((0, inputs),) if inputs else ()

    def in_donated(self) -> Op:
        """Returns the op to run if input 0 is donated: the run may overwrite the input's memory."""
        return self

    def with_graphs(self, change: Callable[[Graph], Graph]) -> Op:
        """Returns a copy of the op whose subgraphs are replaced by `change(subgraph)`."""
        attributes = {f.name: getattr(self, f.name) for f in fields(self)}
        changed = {n: change(g) for n, g in attributes.items() if isinstance(g, Graph)}
        return replace(self, **changed)

    @property
    def computes_on_host(self) -> bool:
        """Whether `run_host_driven` is the default, which computes the outputs on the host."""
        return type(self).run_host_driven is Op.run_host_driven

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        """Creates the op of an ONNX node; may change `node.inputs` to those of the newest opset.

        Raises:
            UnsupportedError: An attribute has a value that clrt does not support.
            Decompose: The node must be replaced by its decomposition.
        """
        attrs = dict(node.attrs)
        for name, (index, dtype) in cls.onnx_traits.attribute_to_input.items():
            if name in attrs:
                node.set_input(index, np.asarray(attrs.pop(name), dtype))
        known = attribute_names(cls)
        values = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items() if k in known}
        return cls(**values)

    def to_onnx(self) -> dict[str, Any]:
        """Returns the attributes of the op in ONNX's newest opset by name, as Python values.

        Raises:
            UnsupportedError: The ONNX op does not allow the value of a field.
        """
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in self.onnx_traits.non_attribute_fields
        }

    def onnx_inputs(self, inputs: Sequence[Value | None]) -> list[Value | None]:
        """Returns a node's inputs in the order of the ONNX schema; None for an omitted one."""
        return list(inputs)

    @classmethod
    def has_gradient(cls) -> bool:
        """Returns whether `vjp` has a rule; else the op's decomposition is differentiated.

        It is derived from the methods that a class has, so that no class can state it wrongly.
        """
        return cls.vjp is not Op.vjp

    def vjp(
        self, b: OpBuilder, node: Node, cotangents: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        """Adds the nodes of the vector-Jacobian product: the op's rule of reverse differentiation.

        A cotangent of a value is the derivative of the differentiated scalar with respect to the
        value; it has the value's shape and dtype.

        Args:
            b: Adds the nodes.
            node: Node of this op; the rule may read its inputs and outputs.
            cotangents: A cotangent per output; None for zeros. One at least is not None.

        Returns:
            A cotangent per input; None for zeros, and for inputs that are not floating point.
            Trailing ones may be left out.

        Raises:
            UnsupportedError: The rule does not cover the node's form.
        """
        raise NotImplementedError(self.name)

    def is_random(self, inputs: Types) -> bool:
        """Returns whether the outputs are random numbers for inputs of these types."""
        return False

    def check_tables(self, inputs: Types) -> None:
        """Validates index tables that only clrt generates; called when a compiled model is loaded.

        Raises:
            ModelError: A table is not constant, or its indices would lead a kernel out of bounds.
        """

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Computes the outputs from the inputs by NumPy, with wide (usually float64) accumulators.

        The method serves as test oracle, constant folder and host fallback.

        Args:
            inputs: Arrays; None for an omitted input.
        """
        raise NotImplementedError(self.name)

    def run_reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        """Runs `reference` on inputs that are first converted to dtypes that NumPy supports.

        Floats whose storage the kernels do not support are widened to float32, as for kernels.
        String arrays get a common item size, so that NumPy does not truncate assigned strings.

        Raises:
            OutOfMemoryError: The host memory does not suffice.
        """
        if self.supported_storages is not None:
            inputs = tuple(
                None if a is None else _readable(a, self.supported_storages) for a in inputs
            )
        if any(_is_text(a) for a in inputs):
            if not self.host_traits.host_driven:
                self._check_texts(inputs)
            inputs = tuple(_of_one_width(inputs))
        try:
            return self.reference(*inputs)
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{self.name}: the host has not enough memory for it: {error}."
            ) from error

    def _check_texts(self, inputs: Sequence[Array | None]) -> None:
        """Checks that string inputs and outputs fit the host memory.

        All string arrays get the item size of the longest string.

        Raises:
            OutOfMemoryError: The string arrays do not fit.
        """
        types = [None if a is None else TensorType.of(a) for a in inputs]
        texts = [a for a in inputs if a is not None and _is_text(a)]
        width = max(a.itemsize for a in texts) // 4
        out_shapes = [t.static_shape or () for t in self.infer(types) if t.dtype is DType.STRING]
        for count in (*(a.size for a in texts), *map(math.prod, out_shapes)):
            check_texts(count, width)

    def check_inputs(self, inputs: Types) -> None:
        """Checks the inputs that `input_traits` names: `required`, `same_dtype` and `index`.

        Raises:
            ModelError: A required input is omitted.
            ShapeError: Inputs of one group of `same_dtype` differ in dtype, or an input of indices
                is not of an integer dtype of 8 bits or more (uint64 is not allowed either).
        """
        for index in self.input_traits.required:
            if index >= len(inputs) or inputs[index] is None:
                raise ModelError(f"{self.name} lacks its input {index}; export the model again.")
        for group in self.input_traits.same_dtype:
            present = [(i, t) for i in group if i < len(inputs) and (t := inputs[i]) is not None]
            for index, type_ in present[1:]:
                if type_.dtype is not present[0][1].dtype:
                    first, other = present[0]
                    raise ShapeError(
                        f"{self.name}: input {index} is {type_} and input {first} {other}; "
                        "expected one dtype."
                    )
        for index in self.input_traits.index:
            indices = inputs[index] if index < len(inputs) else None
            if indices is not None and indices.dtype not in _INDEX_DTYPES:
                raise ShapeError(
                    f"{self.name}: input {index} is {indices}; expected int32 or int64."
                )

    def infer_with_data(self, inputs: Types) -> list[TensorType]:
        """Checks the types of the inputs (`check_inputs`) and infers the types of the outputs.

        If `HostTraits.evaluates_dims` is set and all inputs are known, outputs of at most
        `_MAX_DATA_ELEMS` integers or bools also get their elements, perhaps symbolic.
        """
        self.check_inputs(inputs)
        outputs = self.infer(inputs)
        if not self.host_traits.evaluates_dims:
            return outputs
        for type_ in inputs:
            if _unknown(type_):
                return outputs
        if any(t.dtype not in _SHAPE_DTYPES or not _is_small(t) for t in outputs):
            return outputs
        try:
            arrays = self.reference(*(None if t is None else t.data for t in inputs))
            data = [_tidy(np.asarray(a), t.dtype) for t, a in zip(outputs, arrays, strict=True)]
        except (UndecidableDim, TypeError, ZeroDivisionError, OverflowError):
            return outputs
        return [TensorType(t.dtype, t.shape, a) for t, a in zip(outputs, data, strict=True)]


_TRAIT_GROUPS = ("onnx_traits", "input_traits", "memory_traits", "host_traits")


def _is_declared(cls: type[Op], name: str, value: object) -> bool:
    """Returns whether a class attribute is a method, or is declared in the class or in a base.

    Any other attribute is rejected as a misspelt trait.

    Args:
        cls: Class of an op.
        name: Name of the attribute.
        value: Value of the attribute.
    """
    if callable(value) or hasattr(value, "__get__"):
        return True
    if any(hasattr(base, name) for base in cls.__bases__):
        return True
    return any(name in getattr(base, "__annotations__", ()) for base in cls.__mro__)


def _unknown(type_: TensorType | None) -> bool:
    """Returns whether an input has no elements that are usable in shape arithmetic.

    Usable elements are numbers and dims. An omitted input (None) is not unknown.
    """
    return type_ is not None and (
        type_.known_elements is None or isinstance(type_.known_elements, TracedConstant)
    )


def _is_text(array: Array | None) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "U"


def _readable(array: Array, storages: frozenset[str]) -> Array:
    """Returns floats as float32 if `storages` lacks the storage of their dtype; else the array."""
    if array.dtype == object:
        return array
    dtype = DType.of(array.dtype)
    return array.astype(np.float32) if dtype.is_float and dtype.storage not in storages else array


def _of_one_width(inputs: Sequence[Array | None]) -> Sequence[Array | None]:
    """Casts the string arrays in `inputs` to the item size of the widest one.

    NumPy truncates strings that are assigned to an array of a smaller item size. Other arrays are
    returned unchanged.
    """
    texts = {i: a for i, a in enumerate(inputs) if a is not None and _is_text(a)}
    width = np.result_type(*texts.values())
    return [texts[i].astype(width, copy=False) if i in texts else a for i, a in enumerate(inputs)]


# Dtypes of index inputs: those that int64 represents; decompositions also index by small codes.
_INDEX_DTYPES = frozenset(
    {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32, DType.INT64}
)
_SHAPE_DTYPES = {DType.INT64, DType.INT32, DType.BOOL}
# Maximum number of elements that a type keeps as data; shapes and axes are shorter.
_MAX_DATA_ELEMS = 64


def _is_small(t: TensorType) -> bool:
    shape = t.static_shape
    if shape is None or any(map(is_traced, shape)):  # a traced size is not a size of an array
        return False
    return math.prod(shape) <= _MAX_DATA_ELEMS


def _tidy(array: Array, dtype: DType) -> Array:
    """Casts the elements of shape arithmetic to `dtype`, unless they are symbolic or traced.

    An object array with symbols or traced numbers is returned unchanged.

    Raises:
        OverflowError: A number in an array with symbols exceeds int32 (for int32) or int64.
    """
    if array.dtype != object or not any(isinstance(x, Expr) or is_traced(x) for x in array.flat):
        return array.astype(dtype.numpy)
    limit = np.iinfo(np.int32 if dtype is DType.INT32 else np.int64).max
    if any(abs(x) > limit for x in array.flat if not isinstance(x, Expr)):
        raise OverflowError
    return array
