"""Plan cache of a model: eviction, byte accounting, and release of programs."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import clrt
from clrt.runtime.execution import planner as plans_module
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.programs import _MAX_RECENT_PROGRAMS
from clrt.runtime.opencl.session import session_for
from tests.conftest import let_go
from tests.harness import all_devices
from tests.models.onnx_text import parsed

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


@DEVICES
def test_plans_without_steps_are_evicted(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans_module, "MAX_PLANS", 70)
    model = clrt.load(
        parsed("g (float[n, m] x) => (int64[2] y) { y = Shape(x) }"), device=device.index
    )
    for n in range(100):
        assert model.run(np.zeros((1, n), np.float32))["y"].tolist() == [1, n]
    assert len(model._runner.planner.kept) == 70
    assert model._runner.planner.kept.host_bytes == 70 * plans_module._PLAN_BYTES


@DEVICES
def test_plan_cache_tracks_bytes_incrementally(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = parsed(
        """
        g (float[n] x) => (float[n] y)
        {
          s = Shape(x)
          zero = Constant<value = int64[1] {0}>()
          count = Squeeze(s, zero)
          first = Constant<value = int64 {0}>()
          one = Constant<value = int64 {1}>()
          r = Range(first, count, one)
          f = Cast<to = 1>(r)
          h = Sin(f)
          y = Mul(x, h)
        }
        """
    )
    model = clrt.load(source, device=device.index)
    plans = model._runner.planner.kept

    def run(n: int) -> None:
        model.run(np.ones(n, np.float32))

    def own() -> int:
        return sum(b.own_bytes for s in plans.values() for b in s.bound.values())

    for n in (1000, 2000, 1000, 4000):
        run(n)
    assert plans.own_bytes == own() >= 4 * 7000
    asked: list[object] = []
    real = plans_module.BoundPlan.own_bytes.fget
    assert real is not None
    monkeypatch.setattr(
        plans_module.BoundPlan, "own_bytes", property(lambda b: asked.append(b) or real(b))
    )
    run(500)
    assert len(set(asked)) == 1
    monkeypatch.undo()
    # What the first run of a plan makes counts, too.
    monkeypatch.setattr(plans_module, "MIN_CACHED_PLANS", 1)
    monkeypatch.setattr(plans_module, "MAX_PLAN_BYTES", 200_000)
    for n in range(5000, 5010):
        run(n)
        assert plans.kept_bytes <= 200_000 or len(plans) == 1
    assert plans.own_bytes == own()
    model._runner.room.release()
    assert plans.own_bytes == plans.host_bytes == len(plans) == 0


@DEVICES
@pytest.mark.parametrize("closes", [True, False], ids=["closed", "collected"])
def test_programs_are_freed_with_their_model(device: DeviceInfo, closes: bool) -> None:
    ops = ("Exp", "Abs", "Neg", "Sqrt")
    names = [(a, b, c) for a in ops for b in ops for c in ops][: _MAX_RECENT_PROGRAMS + 3]
    caches = session_for(device).caches
    let_go()  # else what other tests compiled is written, too
    before = None
    for names_of_one in names:
        steps = "\n".join(
            f"v{k + 1} = {op}(v{k})" for k, op in enumerate((*names_of_one, "Identity"))
        )
        model = clrt.load(
            parsed(f"g (float[n] v0) => (float[n] v4) {{ {steps} }}"), device=device.index
        )
        model.run(np.ones(3, np.float32))
        if before is None:
            compiled = [tiers.programs for tiers in model._all_tiers]
            (before,) = (weakref.ref(p) for programs in compiled for p in programs.values())
            del compiled
        if closes:
            model.close()
        del model
    for cache in caches:
        cache.save()
    gc.collect()
    assert before is not None and before() is None
