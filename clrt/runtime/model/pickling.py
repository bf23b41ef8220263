"""Pickling and copying of models: by their source and options, without device state."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from clrt.errors import DeviceError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value, all_graphs
from clrt.ir.op import Array, TensorType
from clrt.runtime.opencl.devices import DeviceInfo, devices
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import expanded

Loads = TypeVar("Loads", bound=Callable[..., Any])


@dataclass(frozen=True)
class DeviceName:
    """Identifies a device for another process, in which its index may differ.

    Attributes:
        platform: Name of the device's OpenCL platform.
        name: Name of the device.
        ordinal: Index among the devices of the same platform and name.
    """

    platform: str
    name: str
    ordinal: int

    @classmethod
    def of(cls, device: DeviceInfo) -> DeviceName:
        """Returns the `DeviceName` of a device of this process."""
        first = cls(device.platform, device.name, 0)
        ordinal = sum(d.index < device.index for d in first._matches())
        return cls(device.platform, device.name, ordinal)

    def index(self) -> int:
        """Returns the index of the device in this process.

        If `ordinal` is too large here, returns the last device of the same platform and name.

        Raises:
            DeviceError: There is no device of this platform and name.
        """
        matches = self._matches()
        if not matches:
            listing = ", ".join(map(str, devices())) or "none"
            raise DeviceError(
                f"The model was on {self.name} ({self.platform}), which this machine does not "
                f"have; load it again for one of its devices: {listing}."
            )
        return matches[min(self.ordinal, len(matches) - 1)].index

    def _matches(self) -> list[DeviceInfo]:
        return [d for d in devices() if (d.platform, d.name) == (self.platform, self.name)]


@dataclass(frozen=True)
class PortableGraph:
    """Picklable form of a graph: its text, and the arrays of its constants.

    Attributes:
        text: IR text of the graph, which refers to constants by keys.
        arrays: Elements of the constants, by the keys in `text`.
        origins: One dict per graph, subgraphs included: by node name, the ONNX nodes that the node
            stands for, and the pass that created the node ("" for none).
    """

    text: str
    arrays: Mapping[str, Array]
    origins: list[dict[str, tuple[tuple[str, ...], str]]]

    @classmethod
    def of(cls, graph: Graph) -> PortableGraph:
        """Converts a graph to its picklable form."""
        from clrt.ir.text import print_graph  # imported late, as in `graph`

        keys: dict[Value, str] = {}

        def store(value: Value) -> str | None:
            if not value.has_numbers or value.dtype is DType.STRING:
                return None
            return keys.setdefault(value, f"{len(keys)}/{value.name}")

        text = print_graph(graph, store)
        arrays = {key: array for v, key in keys.items() if (array := v.numbers) is not None}
        origins = [{n.name: (n.origins, n.made_by) for n in g.nodes} for g in all_graphs(graph)]
        return cls(text, arrays, origins)

    def graph(self) -> Graph:
        """Returns the graph that was converted.

        Raises:
            ModelError: The text is not valid IR.
        """

        from clrt.ir.parse import parse_graph
        from clrt.ops import REGISTRY

        def fetch(key: str, type_: TensorType) -> Array:
            return self.arrays[key]

        graph = parse_graph(self.text, REGISTRY, fetch)
        for inner, origins in zip(all_graphs(graph), self.origins, strict=True):
            for node in inner.nodes:
                node.origins, node.made_by = origins[node.name]
        return graph


@dataclass(frozen=True)
class LoadRecipe:
    """The call that loaded a model, for pickles and copies.

    Attributes:
        load: Function that loaded the model.
        path: Absolute path of the file or folder; None for a model from memory.
        options: Keyword arguments of the call.
    """

    load: Callable[..., Any]
    path: str | None
    options: Mapping[str, Any]


def recording(load: Loads) -> Loads:
    """Decorator for a function that loads a model: records the call in the model's `_recipe`.

    The function must return a `PicklesBySource`, and take the source as its first argument.
    """

    @functools.wraps(load)
    def recorded(source: Any, **options: Any) -> Any:
        model = load(source, **options)
        is_path = isinstance(source, (str, Path))
        path = os.path.abspath(expanded(source)) if is_path else None
        # Copies and other processes cannot report to the caller.
        kept = {name: value for name, value in options.items() if name != "on_progress"}
        model._recipe = LoadRecipe(recorded, path, kept)
        return model

    return cast(Loads, recorded)


class PicklesBySource:
    """Base of models that can be pickled and copied.

    The pickle has the path of a model from a file, and the graph of any other model, with the
    options of loading and the name of the device. A copy is a second model of the same graph on the
    same device.
    """

    device: DeviceInfo
    _graph: Graph
    _recipe: LoadRecipe

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = self._recipe
        options, source = dict(recipe.options), recipe.path or PortableGraph.of(self._graph)
        if recipe.path is None:
            options["optimize_level"] = 0  # the graph is already optimised
        return _reload, (recipe.load, source, options, DeviceName.of(self.device))

    def __copy__(self) -> Any:
        recipe = self._recipe
        options = {**recipe.options, "optimize_level": 0, "device": self.device.index}
        copy = recipe.load(self._graph, **options)
        shared = {k: v for k, v in vars(self).items() if k in ("_report", "shapes", "_recipe")}
        vars(copy).update(shared)
        return copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()


def _reload(
    load: Callable[..., Any],
    source: str | PortableGraph,
    options: Mapping[str, Any],
    device: DeviceName,
) -> Any:
    """Loads the model that a pickle describes.

    Args:
        load: Function that loaded the pickled model.
        source: Path of the model, or its graph.
        options: Keyword arguments of `load` besides the device.
        device: Device of the pickled model.

    Raises:
        ModelError: The file is absent or invalid.
        DeviceError: The device is absent.
    """
    path_or_graph = source if isinstance(source, str) else source.graph()
    return load(path_or_graph, **{**options, "device": device.index()})


# Names of the parameters that are a model's path or name.
_PATHS = ("path", "model_name", "model_name_or_path")


class PicklesByArguments:
    """Base of classes whose objects pickle and copy as their constructor's arguments.

    The first argument is a model's path or name. The pickle also names the device of the attribute
    `model`; unpickling passes that device as the constructor's `device`.
    """

    model: Any
    _made_of: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        instance = super().__new__(cls)
        named = {k: _absolute(v) if k in _PATHS else v for k, v in options.items()}
        instance._made_of = (*map(_absolute, args[:1]), *args[1:]), named
        return instance

    def __reduce__(self) -> tuple[Any, ...]:
        args, options = self._made_of
        return _rebuild, (type(self), args, options, DeviceName.of(self.model.device))


def _absolute(path: Any) -> Any:
    """Returns an existing path in absolute form, and other values (model names) unchanged."""
    is_path = isinstance(path, (str, Path)) and os.path.exists(expanded(path))
    return os.path.abspath(expanded(path)) if is_path else path


def _rebuild(
    create: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    device: DeviceName,
) -> Any:
    return create(*args, **{**options, "device": device.index()})
