"""Branches: graphs of a model, each specialised for inputs that decide conditions of If nodes.

The model's own graph is the first branch. A branch holds its graph, and the branches that
specialise it further, by the inputs that choose them (`BranchKey`). Planned models
(`clrt.runtime.execution.branch_specializer`) and stored plans (`StoredBranch`) use the same keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ir.runtime_values import RuntimeValue, shapes_of
from clrt.plan.stored_template import StoredTemplate
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.util.fast_dataclass import dataclass

BranchKey: TypeAlias = "tuple[tuple[str, tuple[int, ...], bytes | None], ...]"
"""Inputs that choose a branch: name, shape, and the elements, or None if only the shape counts."""


class Branch(Protocol):
    """A graph that may be specialised."""

    @property
    def graph(self) -> Graph:
        """The graph."""

    @property
    def choosing(self) -> Sequence[str]:
        """Names of the inputs whose elements decide conditions of If nodes."""

    @property
    def by_shape(self) -> bool:
        """Whether input shapes may decide conditions."""


B = TypeVar("B", bound=Branch)


def follow(
    branch: B, feeds: Mapping[str, RuntimeValue], child: Callable[[B, BranchKey], B]
) -> tuple[B, Mapping[str, RuntimeValue]]:
    """Returns the branch for the inputs of a run, and the inputs of its graph.

    These are `feeds` without the inputs that became constants. A branch is not specialised further
    if one of its `choosing` inputs is absent or on the device.

    Args:
        branch: Branch of the model's graph.
        feeds: Inputs of the model by name.
        child: Returns the branch that specialises its first argument for a key; the first argument
            itself if there is none.
    """
    while branch.choosing:
        values = [feeds.get(name) for name in branch.choosing]
        arrays = [x for x in values if isinstance(x, np.ndarray)]
        if len(arrays) < len(values):
            break
        pairs = zip(branch.choosing, arrays, strict=True)
        found = child(branch, tuple((name, x.shape, x.tobytes()) for name, x in pairs))
        if found is branch:
            break
        feeds = {n: f for n, f in feeds.items() if n not in branch.choosing}
        branch = found
    if branch.by_shape:
        shapes = sorted(shapes_of(feeds).items())
        branch = child(branch, tuple((name, shape, None) for name, shape in shapes))
    return branch, feeds


def inputs_of(graph: Graph, key: BranchKey) -> dict[str, Array]:
    """Returns feeds of a graph that choose the branch of `key`, by name of the input.

    Inputs of which only the shape counts are zeros.
    """
    dtypes = {value.name: value.dtype.numpy for value in graph.inputs}
    return {
        name: np.broadcast_to(np.zeros((), dtypes[name]), shape)
        if elements is None
        else np.frombuffer(elements, dtypes[name]).reshape(shape)
        for name, shape, elements in key
    }


class BranchPath(NamedTuple):
    """A branch, and the keys that lead to it.

    Attributes:
        keys: Key of each step from the model's graph down to the branch; () for the model's graph.
        branch: The branch.
    """

    keys: tuple[BranchKey, ...]
    branch: Branch


@dataclass(eq=False)
class StoredBranch:
    """A graph with its stored templates, and the stored branches that specialise it.

    Attributes:
        graph: The graph.
        choosing: Names of the inputs whose elements decide conditions of If nodes.
        by_shape: Whether input shapes may decide conditions.
        children: Branches that specialise this one, by key.
        templates: Plan templates of the graph.
    """

    graph: StoredGraph
    choosing: Sequence[str]
    by_shape: bool
    children: dict[BranchKey, StoredBranch] = field(default_factory=dict)
    templates: list[StoredTemplate] = field(default_factory=list)

    def chosen(
        self, feeds: Mapping[str, RuntimeValue]
    ) -> tuple[StoredGraph, Mapping[str, RuntimeValue]] | None:
        """Returns the graph for the inputs of a run, and that graph's inputs.

        None if there is no stored graph for these inputs.

        Args:
            feeds: Inputs of the model by name.
        """
        try:
            branch, feeds = follow(self, feeds, lambda branch, key: branch.children[key])
        except KeyError:
            return None
        return branch.graph, feeds

    def paths(self, keys: tuple[BranchKey, ...] = ()) -> Iterator[tuple[Any, StoredBranch]]:
        """Yields (keys that lead to it, branch) for this branch and all below it.

        Args:
            keys: Keys that lead to this branch.
        """
        yield keys, self
        for key, child in self.children.items():
            yield from child.paths((*keys, key))


def key_row(key: BranchKey) -> list[Any]:
    """Converts a key to JSON values."""
    return [[n, shape, None if data is None else data.hex()] for n, shape, data in key]


def key_of(row: Sequence[Any]) -> BranchKey:
    """Converts JSON values from `key_row` to the key."""
    return tuple(
        (name, tuple(map(int, shape)), None if data is None else bytes.fromhex(data))
        for name, shape, data in row
    )
