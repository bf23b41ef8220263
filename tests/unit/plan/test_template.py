"""Plan templates give the plans of planning, or no template exists."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clrt.plan.arena import align, assign_offsets
from clrt.plan.make_plan import arena_buffers, make_plan
from clrt.plan.plan_equivalence import plans_equivalent
from clrt.plan.template import PlanTemplate
from clrt.plan.trace_plan import trace_plan
from tests.fuzz.graphs import SIZES, Case, graphs
from tests.passes.helpers import graph_of
from tests.plans import CPU, check_arena, count_alike, plan

X = "%x: float32[B,S]"
# A causal mask of the sizes, as exporters make it.
MASKED = """
  const %zero: int64[] = 0
  const %one: int64[] = 1
  const %axes: int64[1] = [1]
  %shape: int64[2] = Shape(%x)
  %s: int64[] = Gather(%shape, %one)
  %k: int64[S] = Range(%zero, %s, %one)
  %q: int64[S,1] = Unsqueeze(%k, %axes)
  %below: bool[S,S] = LessOrEqual(%k, %q)
  const %low: float32[] = -1.0
  const %high: float32[] = 0.5
  %mask: float32[S,S] = Where(%below, %high, %low)
  %xt: float32[S,B] = Transpose{perm=[1, 0]}(%x)
  %p: float32[S,S] = MatMul(%xt, %x)
  %m: float32[S,S] = Mul(%p, %mask)
  %y: float32[S,S] = Softmax{axis=-1}(%m)
"""
# Buffers that grow by either size: which is larger depends on the sizes.
SKEWED = """
  %t: float32[S,B] = Transpose{perm=[1, 0]}(%x)
  %bb: float32[B,B] = MatMul(%x, %t)
  %ss: float32[S,S] = MatMul(%t, %x)
  %bs: float32[B,S] = MatMul(%bb, %x)
  %sb: float32[S,B] = MatMul(%ss, %t)
  %u: float32[S,B] = Transpose{perm=[1, 0]}(%bs)
  %y: float32[S,B] = Softmax{axis=0}(%u)
  %z: float32[S,B] = Softmax{axis=0}(%sb)
"""


def template_of(body: str, b: int, s: int, outputs: str = "%y") -> PlanTemplate:
    graph = graph_of(body, X, outputs)
    found = trace_plan(graph, {"B": b, "S": s}, {}, {}, plan)
    assert found is not None
    return found


@given(case=graphs(), n=st.integers(1, 9), m=st.integers(1, 40))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_graph_templates_match_planning(case: Case, n: int, m: int) -> None:
    count_alike(case.graph, [SIZES, {"n": n, "m": m}, {"n": SIZES["n"] + 1, "m": SIZES["m"] + n}])


def test_template_derives_size_dependent_constants() -> None:
    graph = graph_of(MASKED, X)
    sizes = [{"B": 3, "S": s} for s in (20, 21, 40, 60)]
    assert count_alike(graph, sizes) == len(sizes)
    assert template_of(MASKED, 3, 20).derived


RESIZED = """
  const %half: float32[2] = [1.0, 0.5]
  const %two: int64[1] = [2]
  const %axes: int64[1] = [1]
  const %zero: int64[1] = [0]
  %small: float32[B,P] = Resize{mode="linear", antialias=1}(%x, _, %half)
  %shape: int64[2] = Shape(%x)
  %large: int64[2] = Mul(%shape, %two)
  %wide: float32[Q,R] = Resize{mode="cubic"}(%small, _, _, %large)
  %s: int64[1] = Gather(%shape, %axes)
  %end: int64[1] = Sub(%s, %two)
  %y: float32[Q,T] = Slice(%wide, %zero, %end, %axes)
"""


def test_template_derives_resize_tables_and_slice_bounds() -> None:
    graph = graph_of(RESIZED, X)
    sizes = [{"B": 3, "S": s} for s in (20, 22, 41, 60)]
    assert count_alike(graph, sizes) == len(sizes)
    assert len(template_of(RESIZED, 3, 20).derived) > 4


def test_template_arena_stays_near_optimal_size() -> None:
    template = template_of(SKEWED, 40, 600, "%y, %z")
    for b, s in ((40, 600), (500, 20), (300, 300), (64, 6000), (500, 20)):
        sized = template.instantiate({"B": b, "S": s}, CPU.max_alloc_bytes)
        assert sized is not None
        check_arena(sized)
        best = assign_offsets([i for _, i in arena_buffers(sized)], CPU.max_alloc_bytes)
        assert sized.arena.nbytes <= 1.1 * best.nbytes


def test_template_slabs_respect_max_allocation() -> None:
    template = template_of(SKEWED, 40, 600, "%y, %z")
    whole = template.instantiate({"B": 300, "S": 300}, CPU.max_alloc_bytes)
    assert whole is not None
    largest = max(align(i.nbytes) for _, i in arena_buffers(whole))
    sized = template.instantiate({"B": 300, "S": 300}, largest)
    assert sized is not None
    assert max(sized.arena.slab_bytes) <= largest
    assert len(sized.arena.slab_bytes) > 1
    check_arena(sized)
    assert template.instantiate({"B": 300, "S": 300}, largest - 1) is None


def test_template_rejects_sizes_outside_guards() -> None:
    template = template_of(MASKED, 3, 20)
    assert template.instantiate({"B": 3, "S": 1}, CPU.max_alloc_bytes) is None
    assert template.instantiate({"B": 3, "S": 1 << 20}, CPU.max_alloc_bytes) is None


NO_TEMPLATE = {
    "break": "%i: int64[2,N] = NonZero(%x)\n%y: float32[2,N] = Cast{to=float32}(%i)",
    "host": "%d: float64[B,S] = Cast{to=float64}(%x)\n%y: float64[B,S] = Sin(%d)",
    "packed": MASKED.replace("Mul(%p, %mask)", "MatMul(%p, %mask)"),
}


@pytest.mark.parametrize("body", NO_TEMPLATE.values(), ids=NO_TEMPLATE)
def test_graph_break_host_step_or_packing_has_no_template(
    body: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "clrt"):
        assert trace_plan(graph_of(body, X), {"B": 3, "S": 20}, {}, {}, plan) is None
    assert not caplog.records


def test_failed_planning_gives_no_template(caplog: pytest.LogCaptureFixture) -> None:
    small = replace(CPU, max_alloc_bytes=128)
    graph = graph_of(MASKED, X)
    with caplog.at_level(logging.DEBUG, "clrt"):
        found = trace_plan(
            graph, {"B": 3, "S": 20}, {}, {}, lambda g: make_plan(g, small, lambda _: {})
        )
    assert found is None
    assert "OutOfMemoryError" in caplog.text


def test_template_of_graph_without_symbols_is_its_plan() -> None:
    graph = graph_of("%y: float32[2,3] = Neg(%x)", "%x: float32[2,3]")
    template = trace_plan(graph, {}, {}, {}, plan)
    assert template is not None
    made = template.instantiate({}, 1 << 30)
    assert made is not None and plans_equivalent(made, plan(graph))
