"""Models as pickles and copies: what they are loaded from, not what they have on a device."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from clrt.errors import DeviceError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, TensorType
from clrt.ir.parse import parse_graph
from clrt.ir.text import print_graph
from clrt.ops import REGISTRY
from clrt.ops.base import all_graphs
from clrt.runtime.opencl.devices import DeviceInfo, devices
from clrt.util.files import expanded

Loads = TypeVar("Loads", bound=Callable[..., Any])


@dataclass(frozen=True)
class DeviceName:
    """A device as another process finds it, where indices may be others.

    Attributes:
        ordinal: Its place among devices of the same name.
    """

    platform: str
    name: str
    ordinal: int

    @classmethod
    def of(cls, device: DeviceInfo) -> DeviceName:
        """The name of a device."""
        found = cls(device.platform, device.name, 0)
        before = sum(d.index < device.index for d in found._alike())
        return cls(device.platform, device.name, before)

    def index(self) -> int:
        """The index of the device here.

        Raises:
            DeviceError: There is none of that name.
        """
        alike = self._alike()
        if not alike:
            listing = ", ".join(map(str, devices())) or "none"
            raise DeviceError(
                f"The model was on {self.name} ({self.platform}), which is not here; load it anew "
                f"for a device of this machine: {listing}."
            )
        return alike[min(self.ordinal, len(alike) - 1)].index

    def _alike(self) -> list[DeviceInfo]:
        return [d for d in devices() if (d.platform, d.name) == (self.platform, self.name)]


@dataclass(frozen=True)
class PortableGraph:
    """A graph as text and arrays, which pickle takes.

    Attributes:
        arrays: Elements of constants, by the keys in the text.
        origins: By graph and node, the ONNX nodes it stands for, and the pass that made it.
    """

    text: str
    arrays: Mapping[str, Array]
    origins: list[dict[str, tuple[tuple[str, ...], str]]]

    @classmethod
    def of(cls, graph: Graph) -> PortableGraph:
        """The form of a graph."""
        kept: dict[Value, str] = {}

        def store(value: Value) -> str | None:
            if not value.has_numbers or value.dtype is DType.STRING:
                return None
            return kept.setdefault(value, f"{len(kept)}/{value.name}")

        text = print_graph(graph, store)
        arrays = {key: array for v, key in kept.items() if (array := v.numbers) is not None}
        origins = [{n.name: (n.origins, n.made_by) for n in g.nodes} for g in all_graphs(graph)]
        return cls(text, arrays, origins)

    def graph(self) -> Graph:
        """The graph.

        Raises:
            ModelError: The text is not the IR's form.
        """

        def fetch(key: str, type_: TensorType) -> Array:
            return self.arrays[key]

        made = parse_graph(self.text, REGISTRY, fetch)
        for inner, origins in zip(all_graphs(made), self.origins, strict=True):
            for node in inner.nodes:
                node.origins, node.made_by = origins[node.name]
        return made


@dataclass(frozen=True)
class LoadRecipe:
    """How a model was loaded.

    Attributes:
        load: What loaded it.
        path: The file or folder, absolute; None for a model from memory.
        options: Keyword arguments of `load`.
    """

    load: Callable[..., Any]
    path: str | None
    options: Mapping[str, Any]


def recording(load: Loads) -> Loads:
    """Decorator: records source and options of a call on the `PicklesBySource` that it returns."""

    @functools.wraps(load)
    def recorded(source: Any, **options: Any) -> Any:
        made = load(source, **options)
        is_path = isinstance(source, (str, Path))
        path = os.path.abspath(expanded(source)) if is_path else None
        made._recipe = LoadRecipe(recorded, path, options)
        return made

    return cast(Loads, recorded)


class PicklesBySource:
    """A model that pickles and copies.

    One from a file pickles as its path, any other one as its graph; both with their options and the
    name of their device. A copy is a second model on the same device, of the same graph.
    """

    device: DeviceInfo
    _graph: Graph
    _recipe: LoadRecipe

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = self._recipe
        options, source = dict(recipe.options), recipe.path or PortableGraph.of(self._graph)
        if recipe.path is None:
            options["optimize_level"] = 0  # the graph has all passes behind it
        return _reload, (recipe.load, source, options, DeviceName.of(self.device))

    def __copy__(self) -> Any:
        recipe = self._recipe
        options = {**recipe.options, "optimize_level": 0, "device": self.device.index}
        again = recipe.load(self._graph, **options)
        kept = {k: v for k, v in vars(self).items() if k in ("report", "shapes", "_recipe")}
        vars(again).update(kept)
        return again

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.__copy__()


def _reload(
    load: Callable[..., Any],
    source: str | PortableGraph,
    options: Mapping[str, Any],
    device: DeviceName,
) -> Any:
    """The model of a pickle.

    Raises:
        ModelError, DeviceError: Its file, or its device, is not there.
    """
    whole = source if isinstance(source, str) else source.graph()
    return load(whole, **{**options, "device": device.index()})


# Names of the argument that says where a model lies.
_PATHS = ("path", "model_name", "model_name_or_path")


class PicklesByArguments:
    """What pickles and copies as the arguments that it was made with, the path or name first.

    It has the device of its `model`.
    """

    model: Any
    _made_of: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        made = super().__new__(cls)
        named = {k: _absolute(v) if k in _PATHS else v for k, v in options.items()}
        made._made_of = (*map(_absolute, args[:1]), *args[1:]), named
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        args, options = self._made_of
        return _rebuild, (type(self), args, options, DeviceName.of(self.model.device))


def _absolute(path: Any) -> Any:
    """A path, where it is one and no name, as other folders see it."""
    is_path = isinstance(path, (str, Path)) and os.path.exists(expanded(path))
    return os.path.abspath(expanded(path)) if is_path else path


def _rebuild(
    made: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    device: DeviceName,
) -> Any:
    return made(*args, **{**options, "device": device.index()})
