"""Inputs and outputs of a model: names, dtypes and shapes; checks and converts a call's inputs."""

from __future__ import annotations

import difflib
import operator
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from clrt.errors import DeviceError, InputError, ShapeError, counted
from clrt.ir.dims import Dim, Expr, is_symbol, substitute
from clrt.ir.dtypes import DType, converts_safely
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, ContainerType, TensorType
from clrt.ir.runtime_values import RuntimeValue
from clrt.runtime.execution.external_buffers import Feed
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.fast_dataclass import dataclass
from clrt.util.host_limits import text_array


@dataclass(frozen=True)
class TensorSpec:
    """Description of an input or output of a model.

    Attributes:
        name: Name of the input or output.
        dtype: Dtype of the tensor, of the elements of a sequence or optional, or of the values of
            a map.
        shape: For each axis its size, or a symbolic dim such as "batch"; None if the rank is
            unknown.
        kind: "tensor", "sequence" (a list), "optional" (a value or None) or "map" (a dict).
        key: Dtype of the keys of a map, or of the maps in a container; None if there is no map.
    """

    name: str
    dtype: DType
    shape: tuple[int | str, ...] | None
    kind: str = "tensor"
    key: DType | None = None

    def __str__(self) -> str:
        if self.kind == "tensor":
            dims = "?" if self.shape is None else ", ".join(map(str, self.shape))
            return f"{self.name}: {self.dtype}[{dims}]"
        inside = f"{self.dtype}" if self.key is None else f"map from {self.key} to {self.dtype}"
        return f"{self.name}: " + (inside if self.kind == "map" else f"{self.kind} of {inside}")


def symbol_places(graph: Graph) -> dict[str, list[str]]:
    """Returns the input axes that have each symbol as dim, each formatted as "input_ids axis 0"."""
    places: dict[str, list[str]] = {}
    for value in graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if is_symbol(dim):
                places.setdefault(str(dim), []).append(f"{value.name} axis {axis}")
    return places


def listed_symbols(places: Mapping[str, Sequence[str]]) -> str:
    """Formats symbols with their input axes for messages, as in "s18 (input_ids axis 1)".

    Args:
        places: Axes by symbol, as `symbol_places` returns them.
    """
    return ", ".join(f"{symbol} ({', '.join(where)})" for symbol, where in places.items())


class Signature:
    """The inputs and outputs of a model on a device; checks and converts inputs of calls.

    Attributes:
        inputs: Description of each input, in order.
        outputs: Description of each output, in order.
        held: Names of the outputs that are sequences, optionals or maps.
    """

    def __init__(self, graph: Graph, session: DeviceSession) -> None:
        self.inputs = tuple(_spec(v.name, v) for v in graph.inputs)
        pairs = zip(graph.output_names, graph.outputs, strict=True)
        self.outputs = tuple(_spec(name, v) for name, v in pairs)
        self.held = frozenset(s.name for s in self.outputs if s.kind != "tensor")
        # Per input: name, type, description, and the dtype of arrays that need no conversion.
        self._types = [
            (v.name, v.type, spec, None if v.type.on_host else v.dtype.numpy)
            for v, spec in zip(graph.inputs, self.inputs, strict=True)
        ]
        self._names = dict.fromkeys(v.name for v in graph.inputs).keys()
        self._outputs = [s.name for s in self.outputs]
        self._session = session

    def wanted(self, outputs: Sequence[str] | None) -> list[str]:
        """Checks requested output names and returns them as a list.

        Args:
            outputs: Names of outputs, or a single name; None for all.

        Raises:
            InputError: `outputs` is not iterable, or has a name that no output of the model has.
        """
        names = self._outputs
        if outputs is None:
            return names
        if not isinstance(outputs, Iterable):
            raise InputError(f"outputs is {outputs!r}; expected a list of: {', '.join(names)}.")
        wanted = [outputs] if isinstance(outputs, str) else list(outputs)
        for name in wanted:
            if name not in names:
                raise InputError(f"The model has no output '{name}'.{_near(name, names)}")
        return wanted

    def feeds(self, inputs: Mapping[str, Any] | Any) -> dict[str, RuntimeValue]:
        """Checks the inputs of a call and converts them to the model's dtypes.

        Args:
            inputs: Inputs by name; or the only input itself.

        Returns:
            A contiguous array, a device tensor, list, dict or None for each input.

        Raises:
            InputError: An input is missing, unknown, or of the wrong kind or dtype.
            DeviceError: A tensor is on another device.
        """
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            if len(self.inputs) != 1:
                raise InputError(
                    f"The model takes {counted(len(self.inputs), 'input')}; pass a dict by name: "
                    f"{', '.join(s.name for s in self.inputs)}."
                )
            inputs = {self.inputs[0].name: inputs}
        self.check_names(inputs)
        feeds: dict[str, RuntimeValue] = {}
        for name, type_, spec, dtype in self._types:
            given = inputs[name]
            is_fit = type(given) is np.ndarray and dtype is not None and given.dtype == dtype
            if is_fit and given.flags.c_contiguous:
                feeds[name] = given
            else:
                feeds[name] = self._feed(spec, type_, given)
        return feeds

    def on_device(self, name: str, given: Any) -> DeviceTensor:
        """Creates a device tensor for an input of the model.

        Args:
            name: Name of the input.
            given: An array, or a shape (tuple or list) for a tensor of zeros.

        Raises:
            InputError: The model has no tensor input of this name, or `given` does not match it.
            DeviceError: `given` is a tensor on another device, or the driver fails.
        """
        spec = next((s for s in self.inputs if s.name == name), None)
        if spec is None or spec.kind != "tensor":
            names = [s.name for s in self.inputs if s.kind == "tensor"]
            raise InputError(f"The model has no tensor input '{name}'.{_near(name, names)}")
        if isinstance(given, (tuple, list)):
            given = np.zeros(shape_of(name, given), spec.dtype.numpy)
        feed = self._tensor(spec, given)
        array = feed.numpy() if isinstance(feed, DeviceTensor) else feed
        return self._session.tensor_of(array, spec.dtype)

    def donated(self, feeds: Mapping[str, RuntimeValue], names: Collection[str]) -> frozenset[str]:
        """Checks the names of donated inputs and returns them as a set.

        Args:
            feeds: Converted inputs by name, as `Signature.feeds` returns them.
            names: Names of the donated inputs, or a single name.

        Raises:
            InputError: A donated input is not a live `DeviceTensor`, or its tensor is fed to two
                inputs.
        """
        names = [names] if isinstance(names, str) else list(names)
        for name in names:
            tensor = feeds.get(name)
            if not isinstance(tensor, DeviceTensor):
                raise InputError(
                    f"'{name}' cannot be donated: it is not an input fed by a DeviceTensor, such "
                    "as a result of run(..., device_outputs=True)."
                )
            twice = [n for n, feed in feeds.items() if feed is tensor]
            if len(twice) > 1:
                raise InputError(
                    f"'{name}' cannot be donated: it is also fed to '{twice[1]}'; copy it."
                )
            tensor.held()
        return frozenset(names)

    def check_names(self, given: Mapping[str, Any]) -> None:
        """Checks that a call names exactly the model's inputs.

        Args:
            given: Inputs of the call by name; only the names are checked.

        Raises:
            InputError: An input is missing or unknown.
        """
        names = self._names
        if given.keys() == names:
            return
        unknown = [n for n in given if n not in names]
        missing = [n for n in names if n not in given]
        if unknown:
            raise InputError(
                f"The model has no input '{unknown[0]}'.{_near(unknown[0], missing or [*names])} "
                f"It takes: {', '.join(map(str, self.inputs))}."
            )
        if missing:
            specs = ", ".join(str(s) for s in self.inputs if s.name in missing)
            raise InputError(f"Missing input {specs}.")

    def _feed(self, spec: TensorSpec, type_: TensorType, given: Any) -> RuntimeValue:
        """Converts a given input to the type that the graph declares."""
        if isinstance(type_, ContainerType):
            if type_.kind == "optional":
                return None if given is None else self._feed(spec, type_.element, given)
            if type_.kind == "map":
                return self._map(spec, type_, given)
            if not isinstance(given, (list, tuple)):
                inside = "dicts" if spec.key else "arrays"
                raise InputError(f"Input '{spec.name}' is a sequence; pass a list of {inside}.")
            return [self._feed(spec, type_.element, item) for item in given]
        return self._tensor(spec, given)

    def _map(self, spec: TensorSpec, type_: ContainerType, given: Any) -> RuntimeValue:
        """Converts a given dict to a map of the declared key and value dtypes."""
        assert type_.key is not None
        title = f"Input '{spec.name}' is a map from {type_.key} to {type_.dtype}"
        if not isinstance(given, Mapping):
            raise InputError(f"{title}; pass a dict.")
        columns = []
        for role, items, dtype in (
            ("keys", list(given), type_.key),
            ("values", list(given.values()), type_.dtype),
        ):
            array = None
            with suppress(InputError):
                array = self._tensor(replace(spec, dtype=dtype), items)
            if array is None or array.shape != (len(items),):
                shown = reprlib.repr(items)
                raise InputError(f"{title}; its {role} {shown} are not {dtype} without loss.")
            columns.append(np.asarray(array).tolist())
        return dict(zip(*columns, strict=True))

    def _tensor(self, spec: TensorSpec, given: Any) -> Feed:
        """Converts a given tensor to the declared dtype, without loss; device tensors are kept."""
        if isinstance(given, DeviceTensor):
            if given.session.context != self._session.context:
                raise DeviceError(
                    f"Input '{spec.name}' is on {given.session.device} but the model on "
                    f"{self._session.device}; pass its .numpy()."
                )
            if given.dtype is not spec.dtype:
                raise InputError(f"Input '{spec.name}' must be {spec.dtype}; it is {given.dtype}.")
            return given
        if given is None:
            raise InputError(f"Input {spec} is None, but it is not optional.")
        try:
            # Without `object`, NumPy would convert numbers in a list of text to text.
            as_objects = isinstance(given, (list, tuple)) and spec.dtype is DType.STRING
            array = np.asarray(given, object if as_objects else None)
            is_list = not isinstance(given, np.ndarray)
            target = spec.dtype.numpy
            if spec.dtype is DType.STRING:
                return _strings(array, spec)
            if array.dtype != target:
                exact = is_list and _holds(array, spec.dtype)
                if not (converts_safely(array.dtype, target) or exact):
                    raise InputError(
                        f"Input '{spec.name}' must be {spec.dtype}; {array.dtype} cannot be "
                        f"converted without loss. Convert it with .astype('{spec.dtype}')."
                    )
            return np.asarray(array, target, order="C")
        except InputError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises RuntimeError
            reason = str(error).rstrip(".")
            raise InputError(f"Input '{spec.name}' is not an array: {reason}.") from error


def _holds(array: Array, dtype: DType) -> bool:
    """Returns whether a dtype can represent the numbers of a Python list.

    Rounding of floats is allowed, since Python floats are always 64-bit; overflow is not.

    Args:
        array: The list as a NumPy array.
        dtype: Dtype to convert to.
    """
    if array.dtype.kind in "SU":
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype.numpy)
        if array.dtype.kind == "f" and dtype.is_float:
            return np.array_equal(np.isfinite(cast), np.isfinite(array))
        return np.array_equal(cast.astype(array.dtype), array)


def _strings(array: Array, spec: TensorSpec) -> Array:
    """Converts an array of str or UTF-8 bytes to the string array that host ops compute with.

    Args:
        spec: Input of the model that the array is for, for the error's message.

    Raises:
        InputError: An element is neither str nor bytes.
    """
    if array.dtype.kind == "S" or any(isinstance(x, bytes) for x in array.flat):
        array = np.vectorize(lambda x: x.decode() if isinstance(x, bytes) else x, "O")(array)
    wrong = [x for x in array.flat if not isinstance(x, str)]
    if wrong:
        reason = f"it has {wrong[0]!r} in it" if array.dtype == object else f"it is {array.dtype}"
        raise InputError(f"Input '{spec.name}' must be {spec.dtype}; {reason}.")
    return text_array(array.reshape(-1).tolist(), array.shape)


def shape_of(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Converts a shape passed by a user to a tuple of ints.

    Args:
        name: Name of the input that the shape is for, for the error's message.

    Raises:
        InputError: A size is negative or not an integer.
    """
    try:
        dims = tuple(operator.index(d) for d in shape)
    except TypeError:
        dims = (-1,)
    if any(d < 0 for d in dims):
        raise InputError(
            f"The shape of input '{name}' must be sizes, as in (8, 128); it is "
            f"{reprlib.repr(shape)}."
        )
    return dims


def bind_dims(inputs: Sequence[Value], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Returns the size of each symbol in a graph's input shapes, by the symbol's name.

    Args:
        inputs: Inputs of the graph, whose shapes may have symbols.
        shapes: Actual shape of each input by name.

    Raises:
        ShapeError: A rank or dim differs from the model's, or two inputs disagree on a symbol.
    """
    bindings: dict[str, int] = {}
    origin: dict[str, str] = {}
    pending: list[tuple[Value, int, Expr, int]] = []
    for value in inputs:
        if value.shape is None:
            continue
        actual = shapes[value.name]
        if len(actual) != len(value.shape):
            raise ShapeError(
                f"Input '{value.name}' has rank {len(actual)}, shape {list(actual)}; the model "
                f"expects rank {len(value.shape)} ({value.name}: {value.type})."
            )
        for axis, (dim, size) in enumerate(zip(value.shape, actual, strict=True)):
            if isinstance(dim, int):
                _expect(value, axis, dim, size)
            elif is_symbol(dim):
                (name,) = dim.symbols
                if bindings.setdefault(name, size) != size:
                    raise ShapeError(
                        f"Input '{value.name}' has {name}={size} (axis {axis}), but input "
                        f"'{origin[name]}' has {name}={bindings[name]}."
                    )
                origin.setdefault(name, value.name)
            else:
                pending.append((value, axis, dim, size))
    for value, axis, expr, size in pending:
        expected = substitute(expr, bindings)
        if isinstance(expected, int):
            _expect(value, axis, expected, size)
    return bindings


def _expect(value: Value, axis: int, dim: int, size: int) -> None:
    """Checks the size of an axis of an input.

    Args:
        dim: Size that the model expects.
        size: Actual size.

    Raises:
        ShapeError: The sizes differ.
    """
    if dim != size:
        raise ShapeError(
            f"Input '{value.name}' has {size} at axis {axis}; the model expects {dim} "
            f"({value.name}: {value.type})."
        )


def _spec(name: str, value: Value) -> TensorSpec:
    """Returns the public description of a graph input or output."""

    def text(dim: Dim) -> int | str:
        return dim if isinstance(dim, int) else str(dim)

    shape = None if value.shape is None else tuple(text(d) for d in value.shape)
    kind = value.type.kind if isinstance(value.type, ContainerType) else "tensor"
    inside = value.type
    while isinstance(inside, ContainerType) and inside.kind != "map":
        inside = inside.element
    key = inside.key if isinstance(inside, ContainerType) else None
    return TensorSpec(name, value.dtype, shape, kind, key)


def _near(name: object, names: Sequence[str]) -> str:
    """Returns a hint to the most similar name; "" if none is similar."""
    matches = difflib.get_close_matches(str(name), names, 1)
    return f" Did you mean '{matches[0]}'?" if matches else ""
