"""Converts ONNX types to `TensorType` and back, with named, computed, unnamed and missing dims."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dim_operations import parse_dim
from clrt.ir.dims import UNKNOWN, Dim, Expr, Shape, is_symbol, is_unknown, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names
from clrt.ir.op import ContainerType, TensorType
from clrt.models.onnx.tensors import dtype_of
from clrt.ops.control.host_driven import common_type
from clrt.ops.movement.common import fresh_dim

# Maximum length of a dim's name or expression in a file, in characters.
_MAX_DIM_CHARS = 200


class DimNames:
    """The symbols of a model's input dims.

    A dim_param that is an identifier becomes a symbol of this name, or of a similar name if clrt
    does not accept it. A dim_param such as "past + sequence" becomes an expression, if each symbol
    in it is also a dim by itself: only such symbols are bound by input shapes. Any other text ("?",
    as Paddle's exporter writes, or "batch-size") becomes an independent dim.

    Args:
        inputs: The inputs of the main graph.
    """

    def __init__(self, inputs: Iterable[onnx.ValueInfoProto]) -> None:
        texts = [
            d.dim_param.strip()
            for i in inputs
            if i.type.WhichOneof("value") == "tensor_type"
            for d in i.type.tensor_type.shape.dim
            if d.WhichOneof("value") == "dim_param"
        ]
        plain = dict.fromkeys(t for t in texts if _is_plain(t))
        self._plain = frozenset(plain)
        self._dims: dict[str, Dim] = {t: symbol(t) for t in plain}
        self._names = Names(plain)
        for text in texts:
            if text and text not in self._dims:
                dim = self.fresh(text) if text.isidentifier() else self._expression(text)
                if dim is not None:
                    self._dims[text] = dim

    def fresh(self, hint: str) -> Expr:
        """Returns a new symbol whose name is like `hint`."""
        return symbol(self._names.unique(_sanitise(hint), "_"))

    def input_shape(self, info: onnx.ValueInfoProto) -> Shape | None:
        """Returns the shape of a graph input; None if the file declares none.

        Dims without a known number or symbol become new symbols.
        """
        tensor = info.type.tensor_type
        if not tensor.HasField("shape"):
            return None
        dims: list[Dim] = []
        for axis, proto in enumerate(tensor.shape.dim):
            dim = self.known(proto)
            is_named = re.search(r"\w", proto.dim_param[:_MAX_DIM_CHARS]) is not None
            hint = proto.dim_param if is_named else f"{info.name}_{axis}"
            dims.append(self.fresh(hint) if dim is None else dim)
        return tuple(dims)

    def known(self, proto: onnx.TensorShapeProto.Dimension) -> Dim | None:
        """Returns a dim as a number or as an expression of input symbols; None if neither."""
        kind = proto.WhichOneof("value")
        if kind == "dim_value":
            # Some exporters write -1 for "any".
            return int(proto.dim_value) if proto.dim_value >= 0 else None
        if kind == "dim_param":
            text = proto.dim_param.strip()
            return self._dims[text] if text in self._dims else self._expression(text)
        return None

    def _expression(self, text: str) -> Dim | None:
        """Parses a dim such as "2*batch"; None if it is invalid or has a symbol that is no dim."""
        if not text or len(text) > _MAX_DIM_CHARS:
            return None
        try:
            dim = parse_dim(text)
        except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
            return None
        if isinstance(dim, int):
            return dim if dim >= 0 and not isinstance(dim, bool) else None
        return dim if dim.symbols <= self._plain else None


def tensor_type(info: onnx.ValueInfoProto, names: DimNames) -> TensorType:
    """Returns the type of an input of the main graph.

    Args:
        info: The input as the file declares it.
        names: Symbols of the inputs' dims.

    Raises:
        UnsupportedError: The input is a sparse tensor, a map of containers, or of an unsupported
            dtype.
        ModelError: The declared type is not valid.
    """
    type_ = value_type(info.type, f"input '{info.name}'")
    if isinstance(type_, ContainerType):
        return type_
    return replace(type_, shape=names.input_shape(info))


def formal_type(info: onnx.ValueInfoProto, given: TensorType | None) -> TensorType:
    """Returns the type of a subgraph's input, with unknown dims for symbolic ones.

    Args:
        info: The input as the file declares it.
        given: Type to use if the file declares none; None if unknown.

    Raises:
        UnsupportedError: The input is a sparse tensor, a map of containers, or of an unsupported
            dtype.
        ModelError: The file declares no valid type, and `given` is None.
    """
    if is_typed(info.type) or given is None:
        return value_type(info.type, f"input '{info.name}'")
    return given


def is_typed(proto: onnx.TypeProto) -> bool:
    """Returns whether a type states its element type; some exporters omit it in subgraphs."""
    kind = proto.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        inner: onnx.TypeProto = getattr(proto, kind).elem_type
        return is_typed(inner)
    if kind == "tensor_type":
        return bool(proto.tensor_type.elem_type != onnx.TensorProto.UNDEFINED)
    return kind is not None


def captured_type(type_: TensorType, sizes: dict[str, Dim]) -> TensorType:
    """Returns the type that a value of an enclosing graph has inside a subgraph.

    A dim that is an expression becomes a symbol of the subgraph, because the subgraph does not know
    the symbols in the expression.

    Args:
        type_: Type of the value in the enclosing graph.
        sizes: Symbol in the subgraph by the text of the outer expression; new ones are added.
    """
    if isinstance(type_, ContainerType) or type_.has_numbers or type_.shape is None:
        return type_

    def inside(dim: Dim) -> Dim:
        plain = isinstance(dim, int) or is_symbol(dim)
        return dim if plain else sizes.setdefault(str(dim), fresh_dim())

    return TensorType(type_.dtype, tuple(map(inside, type_.shape)))


def value_type(proto: onnx.TypeProto, where: str) -> TensorType:
    """Converts an ONNX type; dims that are not numbers become unknown dims.

    Args:
        where: Name of the value, for messages.

    Raises:
        UnsupportedError: The type is a sparse tensor, a map of containers, or has an unsupported
            dtype.
        ModelError: The type is not valid.
    """
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return ContainerType.sequence(value_type(proto.sequence_type.elem_type, where))
    if kind == "optional_type":
        return ContainerType.optional(value_type(proto.optional_type.elem_type, where))
    if kind == "map_type":
        return _map_type(proto.map_type, where)
    if kind not in ("tensor_type", None):
        raise UnsupportedError(f"{where} is a {kind.removesuffix('_type').replace('_', ' ')}")
    tensor = proto.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return TensorType(dtype, None)
    dims = [
        int(d.dim_value) if d.WhichOneof("value") == "dim_value" and d.dim_value >= 0 else None
        for d in tensor.shape.dim
    ]
    return TensorType(dtype, tuple(fresh_dim() if d is None else d for d in dims))


def _map_type(proto: onnx.TypeProto.Map, where: str) -> ContainerType:
    key, value = dtype_of(proto.key_type, where), value_type(proto.value_type, where)
    if key is not DType.STRING and not key.is_int:
        raise ModelError(f"{where} is a map from {key}; its keys must be integers or text.")
    if isinstance(value, ContainerType):
        raise UnsupportedError(f"{where} is a map to a {value.kind}")
    # Values of ONNX Runtime's maps are scalars, whatever shape a file declares.
    return ContainerType.map(key, value.dtype)


def refine(inferred: TensorType, info: onnx.ValueInfoProto | None, names: DimNames) -> TensorType:
    """Returns an inferred type, with an unknown rank or unknown dims filled in from the file.

    Args:
        inferred: Type inferred by the op.
        info: Type that the file declares; ignored if it has another rank. None for no type.
        names: Symbols of the inputs' dims.
    """
    declared_kind = None if info is None else info.type.WhichOneof("value")
    if info is None or declared_kind != "tensor_type" or isinstance(inferred, ContainerType):
        return inferred
    if not info.type.tensor_type.HasField("shape") or inferred.is_static:
        return inferred
    declared = [names.known(d) for d in info.type.tensor_type.shape.dim]
    if inferred.shape is None:
        shape = tuple(fresh_dim() if d is None else d for d in declared)
        return TensorType(inferred.dtype, shape, inferred.data)
    if len(declared) != len(inferred.shape):
        return inferred
    pairs = zip(inferred.shape, declared, strict=True)
    shape = tuple(d if d is not None and is_symbol(o) and is_unknown(o) else o for o, d in pairs)
    return TensorType(inferred.dtype, shape, inferred.data)


def varying_types(
    graph: Graph, carries: tuple[int, int], given: Sequence[TensorType | None]
) -> dict[int, TensorType]:
    """Finds loop-carried inputs whose rank, or a dim that is a number, varies between iterations.

    Args:
        graph: Subgraph of a Loop or Scan.
        carries: Indices of the first loop-carried input and output of the subgraph.
        given: Types of the node's inputs, which the first iteration reads; None for unknown ones.

    Returns:
        For inputs that vary, by index, the type that holds in all iterations.
    """
    first, result = carries
    varying = {}
    ends = zip(graph.inputs[first:], graph.outputs[result:], given[first:], strict=False)
    for index, (start, end, initial) in enumerate(ends, first):
        types = [start.type, end.type]
        if initial is not None and not initial.is_compatible(start.type):
            types.append(initial)
        joint = common_type(types, [start.type])
        if start.shape is not None and _loses_static_dims(start.shape, joint.shape):
            varying[index] = joint
    return varying


def _loses_static_dims(before: Shape | None, after: Shape | None) -> bool:
    """Returns whether `after` has no known rank, or a symbol where `before` has a number."""
    pairs = zip(before or (), after or (), strict=False)
    return after is None or any(isinstance(b, int) and not isinstance(a, int) for b, a in pairs)


def type_proto(type_: TensorType | None, named: bool = True) -> onnx.TypeProto:
    """Returns the ONNX form of a type; an empty TypeProto for None.

    Args:
        type_: The type; None for unknown.
        named: Whether symbolic dims keep their text; if not, they are unnamed.
    """
    if type_ is None:
        return onnx.TypeProto()
    if isinstance(type_, ContainerType):
        element = type_proto(type_.element, named)
        if type_.key is not None:
            return onnx.helper.make_map_type_proto(type_.key.onnx, element)
        if type_.kind == "sequence":
            return onnx.helper.make_sequence_type_proto(element)
        return onnx.helper.make_optional_type_proto(element)
    shape = None if type_.shape is None else [_dim_text(d, named) for d in type_.shape]
    return onnx.helper.make_tensor_type_proto(type_.dtype.onnx, shape)


def _dim_text(dim: Dim, named: bool) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return str(dim) if named and not is_unknown(dim) else None


def _is_plain(text: str) -> bool:
    # Names that start with "unknown_" are reserved: `fresh_dim` generates them.
    return (
        text.isidentifier()
        and text.isascii()
        and len(text) <= _MAX_DIM_CHARS
        and not keyword.iskeyword(text)
        and not text.startswith(UNKNOWN)
    )


def _sanitise(text: str) -> str:
    name = re.sub(r"\W+", "_", text[:_MAX_DIM_CHARS], flags=re.ASCII).strip("_")
    return name if _is_plain(name) else f"dim_{name}"
