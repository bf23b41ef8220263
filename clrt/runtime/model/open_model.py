"""Reads the graph of a model and optimises it for a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clrt.device.caps import DeviceCaps
from clrt.formats.safetensors import SafetensorsHeader
from clrt.ir.graph import Graph
from clrt.models.compiled import read_compiled
from clrt.models.sources import Source, is_compiled, read_graph
from clrt.passes.device_pipeline import optimize_for, prepare
from clrt.passes.driver import PassReport


@dataclass(frozen=True)
class OpenedModel:
    """A model whose graph is optimised for a device.

    Attributes:
        graph: The optimised graph.
        report: Matches and misses of the graph passes; None for a compiled model.
        shapes: Sets of input shapes that a compiled model was made for; () for other models.
        check: Completes the check of a compiled model's bytes; raises ModelError if they are
            damaged. None if nothing is left to check.
    """

    graph: Graph
    report: PassReport | None = None
    shapes: Sequence[Mapping[str, Sequence[int]]] = ()
    check: Callable[[], None] | None = None


def open_model(source: Source | SafetensorsHeader, caps: DeviceCaps, level: int) -> OpenedModel:
    """Reads a model and optimises its graph; arguments and errors are those of `clrt.load`.

    Args:
        caps: Capabilities of the device.
        level: Which graph passes run, `optimize_level` of `clrt.load`.
    """
    if isinstance(source, SafetensorsHeader) or is_compiled(source):
        compiled = read_compiled(source if isinstance(source, SafetensorsHeader) else Path(source))
        prepare(compiled.graph, caps)
        return OpenedModel(compiled.graph, None, compiled.shapes, compiled.check)
    graph = read_graph(source)
    return OpenedModel(graph, optimize_for(graph, caps, level))
