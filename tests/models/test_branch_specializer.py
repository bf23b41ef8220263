"""Specialized graphs and plans for each value of an input that selects If branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import clrt
from clrt.errors import ModelError
from clrt.ir.graph import Graph
from clrt.runtime.execution.branch_specializer import Branches
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, agree, normal, parsed

# As voice detectors have it: a sampling rate chooses the net, in whose midst a cache is chosen.
_RATES = """
    g (float[b, n] x, int64 rate, bool[1] cached, float[b, n] past) => (float[b, n] y, int64 r) {
      low = Constant<value = int64 {8000}>()
      is_low = Equal(rate, low)
      y = If (is_low) <
        then_branch = a () => (float[b, n] u) {
          old = If (cached) <
            then_branch = c () => (float[b, n] p) { p = Identity(past) },
            else_branch = d () => (float[b, n] z) {
              shape = Shape(x)
              z = ConstantOfShape<value = float[1] {0.5}>(shape)
            }
          >
          twice = Add(old, old)
          total = CumSum(twice, axis)
          u = Tanh(total)
        },
        else_branch = e () => (float[b, n] v) {
          width = Constant<value = float {3.0}>()
          by = Mul(x, width)
          v = CumSum(by, axis)
        }
      >
      r = Add(rate, low)
    }
"""


def _rates() -> bytes:
    model = onnx.load_from_string(parsed(_RATES))
    axis = onnx.numpy_helper.from_array(np.array(1, np.int64), "axis")
    model.graph.initializer.append(axis)
    return bytes(model.SerializeToString())


def _at(rate: int, cached: bool) -> dict[str, Any]:
    x, past = normal(1, 2, 5), normal(2, 2, 5)
    return {"x": x, "rate": np.array(rate), "cached": np.array([cached]), "past": past}


@DEVICES
def test_if_on_input_gets_one_plan_per_value_without_graph_break(
    device: DeviceInfo,
) -> None:
    every = [_at(rate, cached) for rate in (8000, 16000) for cached in (True, False)]
    ours = agree(_rates(), device, *every, *every)
    stages = list(ours._runner.planner.kept.values())
    # At 16,000 nothing asks for the cache.
    assert len(stages) == 3 and all(s.graph_break is None for s in stages)
    feeds = _at(8000, True)
    wanted = ours.run(feeds)
    # On the device nobody reads it before the plan is made.
    on_device = {**feeds, "rate": clrt.tensor(feeds["rate"], device=device.index)}
    for name, array in ours.run(on_device).items():
        np.testing.assert_array_equal(array, wanted[name])
    np.testing.assert_array_equal(ours.submit(feeds).wait()["y"], wanted["y"])


@DEVICES
def test_specialized_graph_count_is_limited(device: DeviceInfo) -> None:
    ours = agree(_rates(), device, *(_at(rate, True) for rate in range(7990, 8015)))
    assert ours._runner._branches._count == 16


def test_failed_specialization_falls_back_to_original_graph() -> None:
    """Shapes declared in a branch may be valid at other sizes only."""
    calls = []

    def refuse(graph: Graph) -> None:
        calls.append(graph)
        raise ModelError("It does not fit.")

    graph, feeds = clrt.load(_rates())._graph, _at(8000, True)
    branches = Branches(graph, refuse, lambda _: None)
    for _ in range(3):
        found, left = branches.chosen(feeds)
        assert found is graph and left is feeds
    assert len(calls) == 1


@pytest.mark.parametrize("level", [0, 1])
def test_branch_specialization_follows_optimize_level(level: int) -> None:
    ours = clrt.load(_rates(), optimize_level=level)
    session = onnxruntime.InferenceSession(_rates())
    for cached in (True, False):
        feeds = _at(8000, cached)
        wanted = session.run(None, feeds)
        for found, array in zip(ours.run(feeds).values(), wanted, strict=True):
            np.testing.assert_allclose(found, array, rtol=0, atol=1e-6)
    breaks = [s.graph_break is not None for s in ours._runner.planner.kept.values()]
    assert any(breaks) == (level == 0)
