"""What the graph knows of an operator: the contract that `clrt.ops` implements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from clrt.errors import ShapeError
from clrt.ir.attributes import attribute_names, coerce_attributes
from clrt.ir.dims import Dim, Shape, Substitutes, provably_different, substitute
from clrt.ir.dtypes import DType
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, is_traced, trace_of, untraced

if TYPE_CHECKING:
    from clrt.ir.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class PackedConstant:
    """Elements that lie in the layout of a kernel, as a compiled model keeps its weights.

    Attributes:
        array: The elements in that layout.
        layout: Names it, as `clrt.kernels.spec.PackedWeight` does.
        restore: Makes the elements in the order of the shape.
    """

    array: Array
    layout: str
    restore: Callable[[Array], Array] = field(repr=False)

    @property
    def elements(self) -> Array:
        """A copy of the elements in the order of the shape."""
        return self.restore(self.array)


@dataclass(frozen=True, eq=False)
class ConcatenatedRows:
    """The rows of matrices that lie apart, one matrix below the other.

    They lie together only as long as somebody looks at them: weights of a file are never there
    twice.

    Attributes:
        parts: The matrices, of one width.
        dtype: Of the elements.
    """

    parts: tuple[Array, ...]
    dtype: np.dtype[Any]

    @property
    def elements(self) -> Array:
        """A copy of the elements."""
        return self.rows(0, self.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all rows together."""
        return (sum(map(len, self.parts)), *self.parts[0].shape[1:])

    def rows(self, first: int, end: int) -> Array:
        """Some rows: of one part they are a view where the dtype is that of the part."""
        found, start = [], 0
        for part in self.parts:
            piece = part[max(first - start, 0) : max(end - start, 0)]
            if len(piece):
                found.append(piece.astype(self.dtype, copy=False))
            start += len(part)
        return found[0] if len(found) == 1 else np.concatenate(found)


@dataclass(frozen=True, eq=False)
class TracedConstant:
    """Elements that the host computes of sizes, while planning traces these.

    Attributes:
        array: The elements at the traced sizes.
        trace: What notes it where planning looks at them.
        derive: Makes them of the numbers of an evaluation of the trace.
    """

    array: Array
    trace: ShapeTrace
    derive: Callable[[Evaluation], Array] = field(repr=False)

    @property
    def elements(self) -> Array:
        """The elements, which the trace then holds for."""
        self.trace.pin_all()
        return self.array


def dims_array(dims: Sequence[Dim]) -> Array:
    """Dims as int64, or as objects where one is symbolic.

    Raises:
        ShapeError: A number does not fit into 64 bits.
    """
    if all(isinstance(d, int) and not is_traced(d) for d in dims):
        try:
            return np.array(dims, np.int64)
        except OverflowError as error:
            raise ShapeError(
                "A size inside the model does not fit into 64 bits; use smaller inputs."
            ) from error
    array: Array = np.empty(len(dims), object)
    array[:] = dims
    return array


@dataclass(frozen=True)
class TensorType:
    """What is known of a tensor before it is computed.

    Attributes:
        dtype: Element type.
        shape: One dim per axis, symbolic where unknown; None where the rank is unknown.
        known_elements: The elements, where they are known: numbers, or an object array of symbolic
            dims (then of dtype int64 or int32).
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

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape where every dim is a number."""
        shape = self.shape
        if shape is None:
            return None
        for dim in shape:
            if not isinstance(dim, int):
                return None
        return cast("tuple[int, ...]", shape)

    @property
    def data(self) -> Array | None:
        """The elements in the order of the shape, where they are known."""
        if self.known_elements is None or isinstance(self.known_elements, np.ndarray):
            return self.known_elements
        return self.known_elements.elements

    @property
    def has_numbers(self) -> bool:
        """Whether the elements are known as numbers."""
        known = self.known_elements
        if not isinstance(known, np.ndarray):
            return known is not None
        return known.dtype != object or all(isinstance(x, int) for x in known.flat)

    @property
    def numbers(self) -> Array | None:
        """`data` where it has no symbolic element."""
        return self.data if self.known_elements is not None and self.has_numbers else None

    def is_compatible(self, other: TensorType) -> bool:
        """Whether both may be of one value: one dtype, and no dims that are known to differ."""
        if self.dtype is not other.dtype or isinstance(other, ContainerType):
            return False
        if self.shape is None or other.shape is None:
            return True
        return len(self.shape) == len(other.shape) and not any(
            map(provably_different, self.shape, other.shape)
        )

    def bind(self, bindings: Substitutes) -> TensorType:
        """The type with symbols replaced by numbers, in the shape and in the elements."""
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
        """What two descriptions of one tensor say together: numbers win over symbols.

        The type itself where the other one, of a tensor, tells no more.
        """
        if isinstance(newer, ContainerType):
            return newer
        shape, known = self.shape, self.known_elements
        if shape is None:
            shape = newer.shape
        elif newer.shape is not None and len(newer.shape) == len(shape):
            pairs = zip(shape, newer.shape, strict=True)
            if any(isinstance(n, int) and not (isinstance(o, int) and o == n) for o, n in pairs):
                pairs = zip(shape, newer.shape, strict=True)
                shape = tuple(n if isinstance(n, int) else o for o, n in pairs)
        if newer.known_elements is not None and (
            known is None or (newer.has_numbers and not self.has_numbers)
        ):
            known = newer.data
        if newer.dtype is self.dtype and shape is self.shape and known is self.known_elements:
            return self
        return TensorType(newer.dtype, shape, known)

    @classmethod
    def of(cls, array: Array | ConcatenatedRows) -> TensorType:
        """The type of a constant with these elements; NumPy's scalars are arrays without axes."""
        if isinstance(array, ConcatenatedRows):
            return cls(DType.of(array.dtype), array.shape, array)
        array = np.asarray(array)
        return cls(DType.of(array.dtype), array.shape, array)

    @classmethod
    def of_dims(cls, dims: Sequence[Dim]) -> TensorType:
        """The type of an int64 [rank] constant that holds dims."""
        return cls(DType.INT64, (len(dims),), dims_array(dims))

    @classmethod
    def derived(
        cls, dtype: DType, shape: Shape, sizes: Sequence[int], make: Callable[..., Array]
    ) -> TensorType:
        """The type of a constant that the host computes of sizes, which may be traced.

        Args:
            make: Gives the elements of the sizes, in `dtype` and C order.
        """
        array, trace = make(*map(untraced, sizes)), trace_of(sizes)
        if trace is None:
            return cls(dtype, shape, array)
        formulas = [trace.formula(n) for n in sizes]

        def derive(evaluation: Evaluation) -> Array:
            return make(*[evaluation.numbers[i] for i in formulas])

        return cls(dtype, shape, TracedConstant(array, trace, derive))

    @property
    def on_host(self) -> bool:
        """Whether the value never lies on the device."""
        return self.dtype is DType.STRING

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ",".join(map(str, self.shape))
        return f"{self.dtype}[{dims}]"


@dataclass(frozen=True)
class ContainerType(TensorType):
    """A sequence of values of one type, a value that may be absent, or a map. It stays on the host.

    `dtype` is that of the tensors inside; there is no shape.

    Attributes:
        kind: "sequence" (a list), "optional" (the value or None) or "map" (a dict of scalars).
        element: What is inside; the values of a map.
        key: Of a map: integers or text.
    """

    kind: str = "sequence"
    element: TensorType = TensorType(DType.FLOAT32, None)
    key: DType | None = None

    @classmethod
    def sequence(cls, element: TensorType) -> ContainerType:
        """A list of values of one type."""
        return cls(element.dtype, None, None, "sequence", element)

    @classmethod
    def optional(cls, element: TensorType) -> ContainerType:
        """A value or None."""
        return cls(element.dtype, None, None, "optional", element)

    @classmethod
    def map(cls, key: DType, value: DType) -> ContainerType:
        """A dict of scalars."""
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
    """Base of all operators: a frozen dataclass whose fields are the ONNX attributes.

    `name` is the ONNX op name, and `domain` its domain ("clrt" for the fused ones). Two are equal
    where all attributes are the same: among floats 0 and -0 are not, and NaN is.

    Raises:
        ModelError: At construction: an attribute is not of the type that its field declares.
    """

    name: ClassVar[str] = ""
    domain: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        # Else each dataclass gets methods of its own, which compare floats as numbers.
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
        # Kept without the lock of `cached_property`: a graph makes an op for each node.
        found = self.__dict__.get("_kept_identity")
        if found is None:
            values = (_identity(getattr(self, name)) for name in attribute_names(type(self)))
            found = self.__dict__["_kept_identity"] = (type(self), *values)
        return cast("tuple[object, ...]", found)

    def infer(self, inputs: Sequence[TensorType | None]) -> list[TensorType]:
        """Types of the outputs from those of the inputs (None: an optional input left out).

        Raises:
            ShapeError: The inputs do not fit; the message says which axis and why.
        """
        raise NotImplementedError(self.name)

    def infer_with_data(self, inputs: Sequence[TensorType | None]) -> list[TensorType]:
        """`infer`, plus the elements of outputs where those of the inputs tell them."""
        return self.infer(inputs)

    def flops(
        self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType | None]
    ) -> int:
        """Floating-point operations at static shapes."""
        return 0

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graphs among the attributes."""
        return ()

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that differ from their defaults."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if _identity(getattr(self, f.name)) != _identity(f.default)
        }


def _identity(attribute: object) -> object:
    """What equals that of the same attribute only."""
    if isinstance(attribute, float):
        return attribute.hex()
    return tuple(map(_identity, attribute)) if isinstance(attribute, tuple) else attribute


@dataclass(frozen=True)
class ElementwiseStep:
    """One operation of a fused elementwise program.

    Attributes:
        args: Operands: 0..k-1 are the program's k inputs, k+i is the result of step i.
    """

    op: IrOp
    args: tuple[int, ...]

    def __post_init__(self) -> None:
        coerce_attributes(self)
