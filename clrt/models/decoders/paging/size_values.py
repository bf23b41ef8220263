"""Values of a decoder that follow from the sizes of a step, where others read them by token."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

import numpy as np

from clrt.ir.dims import Expr, product, provably_equal, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.models.decoders.io_names import PAST, TOKENS, DecoderNames
from clrt.models.decoders.paging.step_probe import STEPS, StepProbe
from clrt.ops.tensor.shape import Shape_

_INTEGERS = (DType.INT32, DType.INT64)
_PER_STEP = "'{}' depends on how many tokens came before, or on their order in a step"


@dataclass(frozen=True, eq=False)
class StepSizes:
    """What follows from sizes.

    Attributes:
        places: Values that are the places of the tokens of a step.
        odd: Those that are neither places nor the same number everywhere, and by-token nodes read
            them, with a reason: no graph over pages has them.
    """

    places: set[Value] = field(default_factory=set)
    odd: dict[Value, str] = field(default_factory=dict)


def read_sizes(
    graph: Graph, names: DecoderNames, attention: Set[Node], probe: StepProbe
) -> StepSizes:
    """Looks through a decoder that is given its past.

    Args:
        attention: Nodes that read masks and lengths, which are understood already.
    """
    found = StepSizes()
    data = names.data | {names.places}
    by_token = {v for v in graph.inputs if v.name in data}
    sized = {v for v in graph.inputs if v not in by_token}
    sized |= {v for v in graph.constants() if not v.has_numbers}
    for node in graph.nodes:
        read = [v for v in node.inputs if v is not None]
        if by_token.isdisjoint(read) or isinstance(node.op, Shape_):
            if sized.isdisjoint(read):
                continue
            for value in node.outputs:
                places = _counts_tokens(value) and _is_places(value, probe)
                (by_token if places else sized).add(value)
                if places:
                    found.places.add(value)
            continue
        by_token.update(node.outputs)
        if node in attention:
            continue
        for value in read:
            if value in sized and value not in found.odd and _is_odd(value, probe):
                found.odd[value] = _PER_STEP.format(value.name)
    return found


def _counts_tokens(value: Value) -> bool:
    """Whether a value may have a number for each token of a step."""
    shape = value.shape
    return (
        shape is not None
        and value.dtype in _INTEGERS
        and provably_equal(product(shape), symbol(TOKENS))
    )


def _is_places(value: Value, probe: StepProbe) -> bool:
    for past, new in STEPS:
        found = probe.at(value, past, new)
        if found is None or not np.array_equal(found.reshape(-1), np.arange(past, past + new)):
            return False
    return True


def _is_odd(value: Value, probe: StepProbe) -> bool:
    """Whether it is neither a shape without the past nor the same number everywhere."""
    if value.is_constant:
        elements = value.type.data
        return elements is None or any(
            isinstance(d, Expr) and PAST in d.symbols for d in elements.flat
        )
    seen = [probe.at(value, past, new) for past, new in STEPS]
    numbers = {n for array in seen if array is not None for n in np.unique(array).tolist()}
    return any(array is None for array in seen) or len(numbers) > 1
