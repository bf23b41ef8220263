"""`GraphRecipe`: a graph that clrt builds itself, unless its plans are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from clrt.formats.checksum import digest_of, text_digest
from clrt.ir.dims import Substitutes
from clrt.ir.graph import Graph

if TYPE_CHECKING:
    from clrt.runtime.executables.executable import Executable
    from clrt.runtime.model.executable_store import ExecutableKey


class GraphRecipe(Graph):
    """A graph that clrt builds when it is copied, as `clrt.load` does if it finds no executable.

    Attributes:
        function: Function that builds the graph, as "module:name".
        arguments: Arguments of the function.
        key: Text that is the same only for arguments that lead to the same graph, apart from the
            content of `files`.
        files: Files that the graph is built from, with weights to map.
        texts: Returns texts to store beside the plans, by name.
        lookup: Key and executable that `stored_texts` found, for the next `load`; None before.
    """

    def __init__(
        self,
        function: str,
        arguments: tuple[Any, ...],
        key: str,
        files: Sequence[Path] = (),
    ) -> None:
        super().__init__(function, [], [])
        self.function, self.arguments, self.key = function, arguments, key
        self.files = tuple(files)
        self.texts: Callable[[], Mapping[str, str]] = dict
        self.lookup: tuple[ExecutableKey | None, Executable | None] | None = None
        self._built: Graph | None = None

    def digest(self) -> str:
        """Returns a digest of the function, the arguments, and the content of the files."""
        return text_digest([self.function, self.key, digest_of(self.files)])

    def provide(self, graph: Graph) -> None:
        """Lets the next `copy` return a graph that was built already.

        Args:
            graph: Result of the function; nobody else may change or read it later.
        """
        self._built = graph

    def copy(self, bindings: Substitutes | None = None) -> Graph:
        graph, self._built = self._built, None
        if graph is None:
            module, _, name = self.function.partition(":")
            graph = cast(Graph, getattr(import_module(module), name)(*self.arguments))
        return graph.copy(bindings) if bindings else graph
