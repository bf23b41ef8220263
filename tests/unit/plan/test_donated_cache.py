"""KV caches: donated memory is updated in place; others need a plan for each length."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.ir.parse import parse_graph
from clrt.ops import REGISTRY
from clrt.plan.device_io import DeviceIo
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise_to_break

CPU = DeviceCaps("p", "n", "v", "1", "cpu")
INPUTS = "%rows: float32[2,3,1,4], %at: int64[2], %total: int64[1]"
UPDATE = """%next: float32[2,3,T,4] = clrt.UpdateCache(%old, %rows, %at, %total) @"up"
  return %next as "next"
}
"""
DIRECT = f"""graph "g" (%old: float32[2,3,P,4], {INPUTS}) {{
  {UPDATE}"""
VIEW = f"""graph "g" (%cache: float32[6,P,4], {INPUTS}) {{
  const %shape: int64[4] = [2, 3, -1, 4]
  %old: float32[2,3,P,4] = Reshape{{allowzero=0}}(%cache, %shape) @"view"
  {UPDATE}"""


def _graph(text: str) -> Graph:
    return parse_graph(text, REGISTRY)


@pytest.mark.parametrize(("text", "name"), [(DIRECT, "old"), (VIEW, "cache")])
def test_donated_cache_is_updated_in_place_without_graph_break(text: str, name: str) -> None:
    first, graph_break = specialise_to_break(_graph(text), {"P": 8}, {}, {}, {name})
    assert graph_break is None
    names = frozenset({name})
    plan = make_plan(first, CPU, lambda _: {}, DeviceIo(names, names, frozenset({"next"})))
    (next_,) = plan.graph.outputs
    assert plan.launches == 1
    assert next_.dims == (2, 3, 8, 4) and plan.root(next_).name == name
    assert "total" not in {v.name for n in first.nodes for v in n.inputs if v is not None}


def test_undonated_cache_grows_after_host_read() -> None:
    first, graph_break = specialise_to_break(_graph(DIRECT), {"P": 8}, {}, {}, {"rows"})
    assert graph_break is not None and graph_break.known == ("total",) and not first.nodes
    for total, size in ((5, 8), (11, 11)):
        known = {"total": np.array([total])}
        grown, more = specialise_to_break(_graph(DIRECT), {"P": 8}, {}, known)
        assert more is None and grown.outputs[0].dims == (2, 3, size, 4)
