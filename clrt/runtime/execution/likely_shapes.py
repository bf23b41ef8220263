"""Guesses the input shapes of later runs, for which plan templates are made ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from clrt.ir.dims import substitute
from clrt.ir.graph import Graph
from clrt.plan.memory import Shapes, batch_symbols

# Guessed batch sizes, and factors by which all other sizes are multiplied; most likely ones first.
# Kernels differ for one row and several, for few rows and many, and for reductions over few
# elements and many.
_BATCHES = (1, 2, 8, 32)
_FACTORS = (1, 2, 0.5, 4, 8, 0.25, 16, 32, 0.125, 0.0625)
# Maximum guessed size; does not limit sizes that a run had.
_MAX_SIZE = 4096


def likely_shapes(graph: Graph, bindings: Mapping[str, int], shapes: Shapes) -> Iterator[Shapes]:
    """Yields input shapes that runs may have, most likely ones first; `shapes` comes first.

    In each guess, all batch symbols have one size, and all other sizes change by one factor.

    Args:
        graph: Graph of the model.
        bindings: Size of each symbol of the inputs at `shapes`.
        shapes: Shape of each input in a run, by name.
    """
    yield shapes
    batch = batch_symbols(graph.inputs, bindings)
    extents = [s for s in bindings if s not in batch]
    batches = tuple(dict.fromkeys([*(bindings[s] for s in batch[:1]), *_BATCHES]))
    factors = _FACTORS if extents else (1,)
    guesses = product(enumerate(batches if batch else (0,)), enumerate(factors))
    seen = {tuple(bindings.values())}
    for (_, size), (_, factor) in sorted(guesses, key=lambda g: g[0][0] + g[1][0]):
        sizes = {s: size if s in batch else int(bindings[s] * factor) for s in bindings}
        values = tuple(sizes.values())
        grows = any(sizes[s] > max(_MAX_SIZE, bindings[s]) for s in bindings)
        if values not in seen and all(values) and not grows:
            seen.add(values)
            yield {
                v.name: shapes[v.name]
                if v.shape is None
                else tuple(int(substitute(d, sizes)) for d in v.shape)
                for v in graph.inputs
            }
