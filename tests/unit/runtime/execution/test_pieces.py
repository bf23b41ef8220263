"""Long launches split into pieces at global offsets, and throttling of the queue."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.kernels.kernel_source import splittable_axes
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.pointwise.table import Add
from clrt.runtime.execution import bound_plan
from clrt.runtime.execution.argument_patcher import BoundLaunch
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.launch_throttle import NEVER, LaunchThrottle
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import cl
from tests.harness import plan_graph, run_plan
from tests.models.onnx_text import DEVICES, normal


def product() -> Graph:
    """Returns y = p + p with p = x [2, 70, 50] times w [50, 90]."""
    x, w, p = (
        Value(n, TensorType(DType.FLOAT32, s))
        for n, s in (("x", (2, 70, 50)), ("w", (50, 90)), ("p", (2, 70, 90)))
    )
    y = Value("y", TensorType(DType.FLOAT32, (2, 70, 90)))
    nodes = [Node("m", MatMul(), [x, w], [p]), Node("a", Add(), [p, p], [y])]
    return Graph("g", [x, w], [y], nodes)


@DEVICES
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_split_launches_match_whole_launch(
    device: DeviceInfo, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"T_RM": 1, "T_RN": 2, "T_TK": 4} if kind == "gpu" else None  # PoCL unrolls its tile
    plan = plan_graph(product(), replace(device.caps, kind=kind), small)
    feeds = {"x": normal(1, 2, 70, 50), "w": normal(2, 50, 90)}
    launches: list[tuple[int, ...]] = []
    real = cl.enqueue_nd_range_kernel

    def enqueue(*args: Any, **options: Any) -> cl.Event:
        launches.append(args[2])
        return real(*args, **options)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", enqueue)
    monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
    whole = run_plan(plan, feeds, device)["y"]
    count = len(launches)
    np.testing.assert_allclose(whole, 2 * feeds["x"] @ feeds["w"], rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(BoundPlan, "most_launch_s", 1e-9)
    pieces = run_plan(plan, feeds, device)["y"]
    np.testing.assert_array_equal(pieces, whole)
    # Its tiles are a group each; a product on a CPU is walked by whoever is there.
    assert len(launches) - count >= (2 * count if kind == "gpu" else count)


def test_kernels_reading_group_ids_are_not_split() -> None:
    assert splittable_axes("matmul/gemm_gpu.cl") == (0, 1, 2)
    assert 0 not in splittable_axes("matmul/gemm_cpu.cl")
    assert splittable_axes("attention/fused_attention.cl") == ()


def test_launch_pieces_cover_range_in_whole_work_groups() -> None:
    step = BoundLaunch("k", None, (64, 30, 4), (16, 3, 1), (1, 2))
    assert step.pieces(1) == [((0, 0, 0), (64, 30, 4))]
    assert step.pieces(3) == [
        ((0, 0, 0), (64, 12, 4)),
        ((0, 12, 0), (64, 12, 4)),
        ((0, 24, 0), (64, 6, 4)),
    ]
    assert [size for _, size in step.pieces(1000)] == [(64, 3, 4)] * 10
    assert step._replace(axes=()).pieces(5) == step.pieces(1)


def test_piece_count_follows_predicted_time() -> None:
    lane = cast(Any, SimpleNamespace(background=False))
    pace = LaunchThrottle(lane, NEVER, lambda seconds: False, rate=1e-3)
    assert [pace.pieces(cost, 0.5) for cost in (0, 499, 501, 5000)] == [1, 1, 2, 10]
    assert pace.pieces(10**9, math.inf) == 1


@pytest.mark.parametrize("background", [False, True])
def test_queued_time_stays_within_limit(background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 20 ms, 10 ms in the background, or a single longer launch."""
    waiting: list[int] = []
    now = [0.0]

    def wait(event: int) -> None:
        while waiting and waiting[0] <= event:
            now[0] += 1e-3 * costs[waiting.pop(0)]

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    queue = SimpleNamespace(flush=lambda: None)
    lane = cast(Any, SimpleNamespace(background=background, queue=queue, wait=wait))
    gave: list[float] = []

    def give_way(most_s: float) -> bool:
        gave.append(most_s)
        return False

    pace = LaunchThrottle(lane, NEVER, give_way, rate=1e-3)
    costs = [1, 2, 3, 17, 17, 40, 1, 1, 1, 9, 9, 9, 3, 3, 3, 3, 3, 3, 60, 1, 60, 5, 5, 5] * 3
    for number, cost in enumerate(costs):
        pace.make_room(cost)
        waiting.append(number)
        pace.launched(number, cost)
        most = 10 if background else 20
        assert len(waiting) == 1 or sum(costs[n] for n in waiting) <= most
    assert len(gave) > 30
    pace.idle()
    before = len(gave)
    pace.make_room(1000)
    assert len(gave) == before
