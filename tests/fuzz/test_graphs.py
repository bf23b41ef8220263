"""Random graphs: optimized on the device, against the NumPy reference of the original graph."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clrt
from clrt.errors import HostFallbackWarning, InputError, UnsupportedError
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.onnx.export.exporter import export_model
from clrt.models.sources import Source
from clrt.ops.reference_interpreter import evaluate
from clrt.runtime.opencl.devices import DeviceInfo
from tests.fuzz.graphs import Case, graphs
from tests.fuzz.loops import in_a_loop
from tests.harness import SWEEP

# A result may be off by this share of the largest element of its tensor (or of 0.01, where all but
# cancels, as in the tail of Gelu), or by its dtype's epsilon. Graphs may be ill-conditioned: it may
# also be off by this many times what it changes by when the inputs change by _NUDGE of themselves,
# and what nodes compute by an epsilon.
_RELATIVE = 2e-5
_NUDGE = 1e-6
_SENSITIVITY = 30.0


def check(
    graph: Graph,
    feeds: Mapping[str, Array],
    device: DeviceInfo,
    source: Source | None = None,
) -> None:
    """Raises AssertionError if the device and the reference disagree.

    Args:
        source: Equivalent form of the graph, run on the device instead.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", (HostFallbackWarning, RuntimeWarning))
        with np.errstate(all="ignore"):
            try:
                expected = evaluate(graph, feeds)
            except InputError:
                return  # an index is out of range
            nudged = [_evaluate_nudged(graph, feeds, sign) for sign in (1, -1)]
        with clrt.load(graph if source is None else source, device=device.index) as model:
            found = model.run(dict(feeds))
    for name, wanted in expected.items():
        near = [run[name] for run in nudged]
        if any(a.shape != wanted.shape for a in near):
            continue  # how much comes out hangs by a hair
        _compare(found[name], wanted, near, name)


def _evaluate_nudged(graph: Graph, feeds: Mapping[str, Array], sign: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def nudge(array: Array) -> Array:
        return (array * (1 + sign * _NUDGE * rng.uniform(0.5, 1, array.shape))).astype(array.dtype)

    def round_off(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        largest = np.abs(array[np.isfinite(array)]).max(initial=0)
        error = sign * np.finfo(array.dtype).eps * largest * rng.uniform(0.5, 1, array.shape)
        return np.where(array == 0, array, array + error).astype(array.dtype)

    return evaluate(graph, {k: nudge(a) for k, a in feeds.items()}, round_off)


def _compare(found: Array, wanted: Array, near: list[Array], name: str) -> None:
    assert found.shape == wanted.shape, f"{name}: {found.shape}, expected {wanted.shape}"
    assert found.dtype == wanted.dtype, f"{name}: {found.dtype}, expected {wanted.dtype}"
    wide = wanted.astype(np.float64)
    with np.errstate(all="ignore"):
        moves = np.max([np.abs(a.astype(np.float64) - wide) for a in near], axis=0, initial=0.0)
        steady = np.isfinite(wide) & np.isfinite(moves)
        if wanted.dtype.kind != "f":
            same = (found == wanted) | (moves > 0)
            assert same.all(), f"{name}: {found[~same][:4]}, expected {wanted[~same][:4]}"
            return
        largest = np.abs(wide[steady]).max(initial=0.01)
        # One element that moves may move others through a sum or a maximum.
        allowed = max(_RELATIVE, np.finfo(wanted.dtype).eps) * largest + _SENSITIVITY * np.maximum(
            moves, moves[steady].max(initial=0)
        )
        wrong = steady & ~(np.abs(found.astype(np.float64) - wide) <= allowed)
    assert not wrong.any(), (
        f"{name}: {found[wrong][:4]}, expected {wide[wrong][:4]} within {allowed[wrong][:4]}"
    )


_EXAMPLES = int(os.environ.get("CLRT_FUZZ_GRAPHS", "60"))
_SETTINGS = settings(
    max_examples=_EXAMPLES,
    deadline=None,
    derandomize="CLRT_FUZZ_GRAPHS" not in os.environ,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


@pytest.mark.lengthy
@SWEEP
@given(case=graphs())
@_SETTINGS
def test_random_graph_matches_reference(case: Case, device: DeviceInfo) -> None:
    check(case.graph, case.feeds, device)


@SWEEP
@given(case=graphs(), cut=st.integers(0, 2**16))
@_SETTINGS
def test_random_loop_body_matches_reference(case: Case, cut: int, device: DeviceInfo) -> None:
    try:
        proto = export_model(case.graph)
    except UnsupportedError:  # ONNX does not have every form of an op that the IR has
        return
    model = in_a_loop(proto, cut % (len(proto.graph.node) + 1))
    check(case.graph, case.feeds, device, model)


def test_comparison_detects_wrong_result() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(AssertionError, match="y:"):
        _compare(x + 1e-3, x, [x, x], "y")
