"""Plan templates are made before runs need them, without delaying runs."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import clrt
from clrt.ir.op import Array
from clrt.plan.template import InstantiatedPlan
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.execution.likely_shapes import likely_shapes
from clrt.util.active_calls import ActiveCall
from clrt.util.background import BackgroundThread
from tests.harness import quick_device
from tests.models.fixtures import load_family
from tests.models.onnx_text import parsed

DEVICE = quick_device()
PRODUCT = "g (float[n, k] a, float[k, m] b) => (float[n, m] y) { y = MatMul(a, b) }"


def _until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _templates(model: clrt.Model) -> int:
    templates = model._runner.planner.templates
    return sum(len(templates.of(key)) for key, _ in templates.families())


def _feeds(model: clrt.Model, batch: int, sequence: int) -> dict[str, Array]:
    return {i.name: np.ones((batch, sequence), i.dtype.numpy) for i in model.inputs}


def _plan_kind(model: clrt.Model) -> type:
    latest = model._runner.planner.kept.latest
    assert latest is not None
    return type(latest[1].plan)


def test_second_shape_and_other_form_need_no_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    model = clrt.load(load_family("bert_dynamo18"), device=DEVICE.index)
    fresh = clrt.load(load_family("bert_dynamo18"), device=DEVICE.index)
    model.run(_feeds(model, 2, 16))
    _until(_is_idle)
    assert _templates(model) > 1
    shapes = [(2, 17), (1, 9), (8, 64)]
    expected = [fresh.run(_feeds(fresh, *shape)) for shape in shapes]
    for name in ("plan", "trace"):
        monkeypatch.setattr(model._runner.planner, name, lambda *args, **kwargs: pytest.fail())
    for shape, wanted in zip(shapes, expected, strict=True):
        found = model.run(_feeds(model, *shape))
        assert _plan_kind(model) is InstantiatedPlan
        assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


def _is_idle() -> bool:
    return not any(t.name == "clrt-background" for t in threading.enumerate())


def test_executable_holds_other_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_EXECUTABLES", "1")
    monkeypatch.setenv("CLRT_VERIFY", "0")
    path = tmp_path / "m.onnx"
    onnx.save(load_family("bert_dynamo18"), path)
    first = clrt.load(path, device=DEVICE.index, cache_dir=tmp_path)
    shapes = [(1, 9), (2, 16), (1, 64), (8, 3)]
    expected = [first.run(_feeds(first, *shape)) for shape in shapes[:1]]
    _until(_is_idle)
    first.save_programs()
    expected += [first.run(_feeds(first, *shape)) for shape in shapes[1:]]
    stored = clrt.load(path, device=DEVICE.index, cache_dir=tmp_path)
    for shape, wanted in zip(shapes, expected, strict=True):
        found = stored.run(_feeds(stored, *shape))
        assert all(np.array_equal(found[n], wanted[n]) for n in wanted)
    assert isinstance(stored._graph, StoredGraph)
    assert not stored._graph.is_open


def test_likely_shapes_fit_together() -> None:
    model = clrt.load(parsed(PRODUCT), device=DEVICE.index)
    shapes = {"a": (3, 8), "b": (8, 40)}
    guesses = list(likely_shapes(model.graph, {"n": 3, "k": 8, "m": 40}, shapes))
    assert guesses[0] == shapes
    assert len(guesses) == len({str(g) for g in guesses}) > 20
    assert all(g["a"][1] == g["b"][0] for g in guesses)
    assert {g["a"][0] for g in guesses} >= {1, 2, 3}
    assert max(d for g in guesses for shape in g.values() for d in shape) <= 4096


def test_jobs_wait_while_a_run_is_active() -> None:
    thread, slices = BackgroundThread(), list[float]()

    def job() -> None:
        for _ in range(2000):
            begin = time.perf_counter()
            while time.perf_counter() < begin + 2e-4:
                pass
            thread.yield_point()
            slices.append(time.perf_counter())

    def run() -> int:
        call = ActiveCall()
        thread.enter(call)
        time.sleep(0.1)
        begun = len(slices)
        time.sleep(0.1)
        thread.leave(call)
        call.end()
        return len(slices) - begun

    thread.submit(job)
    assert run() < 60  # all 0.1 s would do 500; one slice in 0.25 s is allowed
    _until(lambda: len(slices) == 2000)


def test_old_objects_are_collected_after_last_job() -> None:
    before = gc.get_threshold()
    thread, done = BackgroundThread(), threading.Event()
    thread.submit(done.set)
    assert done.wait(5)
    _until(_is_idle)
    assert gc.get_threshold() == before


def test_failed_job_leaves_next_one() -> None:
    thread, done = BackgroundThread(), threading.Event()
    thread.submit(lambda: 1 // 0)
    thread.submit(done.set)
    assert done.wait(5)
