"""Operators and tensor types of the IR: the interface that `clrt.ops` implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.attributes import attribute_names, coerce_attributes
from clrt.ir.dims import Dim, Shape, Substitutes, provably_different, substitute
from clrt.ir.dtypes import DType
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, is_traced, trace_of, untraced
from clrt.util.cached_property import cached_property
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.ir.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class PackedConstant:
    """Elements in the packed layout of a kernel, as compiled models store weights.

    Attributes:
        array: The packed elements.
        layout: Name of the layout (`clrt.kernels.spec.PackedWeight.layout`).
        restore: Unpacks an array in this layout to row-major order.
    """

    array: Array
    layout: str
    restore: Callable[[Array], Array] = field(repr=False)

    @property
    def elements(self) -> Array:
        """A copy of the elements, unpacked to row-major order."""
        return self.restore(self.array)


@dataclass(frozen=True, eq=False)
class ConcatenatedRows:
    """The vertical concatenation of matrices, without a concatenated copy.

    `elements` and `rows` copy elements only when they are read, so that weights of a file do not
    stay in memory twice.

    Attributes:
        parts: The matrices, of equal width.
        dtype: Dtype of the concatenation.
    """

    parts: tuple[Array, ...]
    dtype: np.dtype[Any]

    @property
    def elements(self) -> Array:
        """All elements, as one matrix; a copy unless there is a single part of the same dtype."""
        return self.rows(0, self.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the concatenated matrix."""
        return (sum(map(len, self.parts)), *self.parts[0].shape[1:])

    def rows(self, first: int, end: int) -> Array:
        """Returns rows `first` to `end` (exclusive) of the concatenated matrix.

        The result is a view if the rows are in one matrix of the same dtype, else a copy.
        """
        slices, start = [], 0
        for part in self.parts:
            rows = part[max(first - start, 0) : max(end - start, 0)]
            if len(rows):
                slices.append(rows.astype(self.dtype, copy=False))
            start += len(part)
        return slices[0] if len(slices) == 1 else np.concatenate(slices)


@dataclass(frozen=True, eq=False)
class TracedConstant:
    """Constant elements that depend on traced sizes, computed on the host.

    Attributes:
        array: The elements at the traced sizes.
        trace: Shape trace of the sizes. If planning reads the elements, the trace is restricted to
            the current sizes.
        derive: Computes the elements at other sizes, from an evaluation of the trace.
    """

    array: Array
    trace: ShapeTrace
    derive: Callable[[Evaluation], Array] = field(repr=False)

    @property
    def elements(self) -> Array:
        """The elements at the traced sizes; reading them restricts the trace to these sizes."""
        self.trace.pin_all()
        return self.array


def dims_array(dims: Sequence[Dim]) -> Array:
    """Returns dims as an int64 array [n]; of dtype object if a dim is symbolic or traced.

    Raises:
        ShapeError: A number does not fit into 64 bits.
    """
    if all(isinstance(d, int) and not is_traced(d) for d in dims):
        try:
            return np.array(dims, np.int64)
        except OverflowError as error:
            raise ShapeError(
                "A size inside the model exceeds 64 bits; use smaller inputs."
            ) from error
    array: Array = np.empty(len(dims), object)
    array[:] = dims
    return array


@dataclass(frozen=True, eq=False)
class ComputedElements:
    """Computes the elements of a constant from sizes, at an evaluation of their trace.

    Attributes:
        make: Computes the elements from the sizes.
        formulas: Index of the formula of each size.
    """

    make: Callable[..., Array]
    formulas: Sequence[int]

    def __call__(self, evaluation: Evaluation) -> Array:
        return self.make(*[evaluation.numbers[i] for i in self.formulas])


@dataclass(frozen=True)
class TensorType:
    """Static type of a tensor: dtype, shape and, if known, its elements.

    Attributes:
        dtype: Element type.
        shape: One dim per axis, which may be symbolic; None if the rank is unknown.
        known_elements: The elements, or an object array of symbolic dims (for dtypes int64 and
            int32); None if they are unknown.
    """

    dtype: DType
    shape: Shape | None
    known_elements: Array | PackedConstant | ConcatenatedRows | TracedConstant | None = None

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dim is a number."""
        return self.static_shape is not None

    @cached_property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if every dim is a number, else None."""
        shape = self.shape
        if shape is None:
            return None
        for dim in shape:
            if not isinstance(dim, int):
                return None
        return cast("tuple[int, ...]", shape)

    @property
    def data(self) -> Array | None:
        """The elements in row-major order, which may be symbolic; None if they are unknown."""
        if self.known_elements is None or isinstance(self.known_elements, np.ndarray):
            return self.known_elements
        return self.known_elements.elements

    @property
    def has_numbers(self) -> bool:
        """Whether the elements are known and none of them is symbolic."""
        known = self.known_elements
        if not isinstance(known, np.ndarray):
            return known is not None
        return known.dtype != object or all(isinstance(x, int) for x in known.flat)

    @property
    def numbers(self) -> Array | None:
        """The known elements if none of them is symbolic, else None."""
        return self.data if self.known_elements is not None and self.has_numbers else None

    def is_compatible(self, other: TensorType) -> bool:
        """Returns whether a value can have both types: equal dtypes, no provably unequal dims."""
        if self.dtype is not other.dtype or isinstance(other, ContainerType):
            return False
        if self.shape is None or other.shape is None:
            return True
        return len(self.shape) == len(other.shape) and not any(
            map(provably_different, self.shape, other.shape)
        )

    def bind(self, bindings: Substitutes) -> TensorType:
        """Returns this type with symbols substituted in the shape and in the elements.

        Args:
            bindings: Number or dim by symbol.
        """
        shape, known = self.shape, self.known_elements
        if shape is not None and not self.is_static:
            shape = tuple(substitute(d, bindings) for d in shape)
        if isinstance(known, np.ndarray) and known.dtype == object:
            bound = [substitute(d, bindings) for d in known.flat]
            known = dims_array(bound).reshape(known.shape)
            if known.dtype != object:
                known = known.astype(self.dtype.numpy)
        return TensorType(self.dtype, shape, known)

    def intersect(self, newer: TensorType) -> TensorType:
        """Combines two types of one tensor: its dims, and its elements if either type knows them.

        A dim that is a number replaces a symbolic one. If both types have a number, the one of
        `newer` is used; if both have a symbol, the one of `self`. The dtype is that of `newer`.
        Returns `self` if `newer` adds no information.
        """
        if isinstance(newer, ContainerType):
            return newer
        shape, known = self.shape, self.known_elements
        if shape is None:
            shape = newer.shape
        elif newer.shape is not None and len(newer.shape) == len(shape):
            pairs = [(o, n) for o, n in zip(shape, newer.shape, strict=True) if o is not n]
            if any(isinstance(n, int) and not (isinstance(o, int) and o == n) for o, n in pairs):
                both = zip(shape, newer.shape, strict=True)
                shape = tuple(n if isinstance(n, int) else o for o, n in both)
        if newer.known_elements is not None and (
            known is None or (newer.has_numbers and not self.has_numbers)
        ):
            known = newer.data
        if newer.dtype is self.dtype and shape is self.shape and known is self.known_elements:
            return self
        return TensorType(newer.dtype, shape, known)

    @classmethod
    def of(cls, array: Array | ConcatenatedRows) -> TensorType:
        """Returns the type of a constant with the elements of `array`, which may be a scalar."""
        if isinstance(array, ConcatenatedRows):
            return cls(DType.of(array.dtype), array.shape, array)
        array = np.asarray(array)
        return cls(DType.of(array.dtype), array.shape, array)

    @classmethod
    def of_dims(cls, dims: Sequence[Dim]) -> TensorType:
        """Returns the type of an int64 constant `[n]` that holds n dims, which may be symbolic."""
        return cls(DType.INT64, (len(dims),), dims_array(dims))

    @classmethod
    def derived(
        cls, dtype: DType, shape: Shape, sizes: Sequence[int], make: Callable[..., Array]
    ) -> TensorType:
        """Returns the type of a constant that the host computes from sizes, which may be traced.

        Args:
            dtype: Dtype of the constant.
            shape: Shape of the constant.
            sizes: The sizes, which are the arguments of `make`.
            make: Computes the elements from the sizes, as an array of `dtype` in C order.
        """
        array, trace = make(*map(untraced, sizes)), trace_of(sizes)
        if trace is None:
            return cls(dtype, shape, array)
        formulas = [trace.formula(n) for n in sizes]
        return cls(dtype, shape, TracedConstant(array, trace, ComputedElements(make, formulas)))

    @property
    def on_host(self) -> bool:
        """Whether values of this type are kept on the host and never on the device."""
        return self.dtype is DType.STRING

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ",".join(map(str, self.shape))
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True)
class ContainerType(TensorType):
    """Type of a host-side container: a sequence, an optional or a map.

    `dtype` is the dtype of the tensors inside; `shape` is None.

    Attributes:
        kind: "sequence" (a list), "optional" (a value or None) or "map" (a dict of scalars).
        element: Type of the contained values; of a map, of its values.
        key: Dtype of a map's keys, an integer or string; None for other containers.
    """

    kind: str = "sequence"
    element: TensorType = TensorType(DType.FLOAT32, None)
    key: DType | None = None

    @classmethod
    def sequence(cls, element: TensorType) -> ContainerType:
        """Returns the type of a sequence, which is a list of values of type `element`."""
        return cls(element.dtype, None, None, "sequence", element)

    @classmethod
    def optional(cls, element: TensorType) -> ContainerType:
        """Returns the type of an optional, which is a value of type `element` or None."""
        return cls(element.dtype, None, None, "optional", element)

    @classmethod
    def map(cls, key: DType, value: DType) -> ContainerType:
        """Returns the type of a map: a dict of scalars.

        Args:
            key: Dtype of the keys.
            value: Dtype of the values.
        """
        return cls(value, None, None, "map", TensorType(value, ()), key)

    @property
    def on_host(self) -> bool:
        return True

    def is_compatible(self, other: TensorType) -> bool:
        return (
            isinstance(other, ContainerType)
            and (self.kind, self.key) == (other.kind, other.key)
            and self.element.is_compatible(other.element)
        )

    def bind(self, bindings: Substitutes) -> ContainerType:
        return replace(self, element=self.element.bind(bindings))

    def __str__(self) -> str:
        key = "" if self.key is None else f"{self.key}, "
        return f"{self.kind}({key}{self.element})"


@dataclass(frozen=True)
class IrOp:
    """Base class of all operators: a frozen dataclass whose fields are the ONNX attributes.

    Two ops are equal if all attributes are identical. Floats are compared by their bits: 0 and -0
    differ, and NaN equals NaN.

    Attributes:
        name: ONNX op name.
        domain: ONNX domain; "" for ai.onnx, "clrt" for clrt's own ops.

    Raises:
        ModelError: At construction: an attribute does not have the type that its field declares.
    """

    name: ClassVar[str] = ""
    domain: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # Dataclasses would generate their own methods, which compare floats by value.
        cls.__eq__ = IrOp.__eq__  # type: ignore[method-assign]
        cls.__hash__ = IrOp.__hash__  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        coerce_attributes(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IrOp) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        """Returns the class and attribute values, by which ops are compared and hashed."""
        # Cached without the lock of `cached_property`: each node of a graph creates an op.
        identity = self.__dict__.get("_cached_identity")
        if identity is None:
            values = (_identity(getattr(self, name)) for name in attribute_names(type(self)))
            identity = self.__dict__["_cached_identity"] = (type(self), *values)
        return cast("tuple[object, ...]", identity)

    def infer(self, inputs: Sequence[TensorType | None]) -> list[TensorType]:
        """Infers the types of the outputs.

        Args:
            inputs: Types of the inputs; None for an absent optional input.

        Raises:
            ShapeError: The inputs do not fit; the message says which axis and why.
        """
        raise NotImplementedError(self.name)

    def infer_with_data(self, inputs: Sequence[TensorType | None]) -> list[TensorType]:
        """Infers the types of outputs, and the elements that follow from elements of inputs.

        Args:
            inputs: Types of the inputs; None for an absent optional input.

        Raises:
            ShapeError: The inputs do not fit; the message says which axis and why.
        """
        return self.infer(inputs)

    def flops(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType | None]
    ) -> int:
        """Returns the number of floating-point operations of a node with static shapes.

        Args:
            inputs: Types of the inputs; None for an absent optional input.
            outputs: Types of the outputs; None for an absent one.
        """
        return 0

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The op's subgraphs: all attributes that are graphs."""
        return ()

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of the op that differ from their defaults, by name."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if _identity(getattr(self, f.name)) != _identity(f.default)
        }


def _identity(attribute: object) -> object:
    """Returns a hashable key of an attribute's value, which compares floats by their bits."""
    if isinstance(attribute, float):
        return attribute.hex()
    return tuple(map(_identity, attribute)) if isinstance(attribute, tuple) else attribute


@dataclass(frozen=True)
class ElementwiseInstruction:
    """One operation of a fused elementwise program.

    Attributes:
        op: The operation.
        args: Operands of the operation, as indices: 0 to k - 1 are the k inputs of the program,
            k + i is the result of its operation i.
    """

    op: IrOp
    args: tuple[int, ...]

    def __post_init__(self) -> None:
        coerce_attributes(self)
