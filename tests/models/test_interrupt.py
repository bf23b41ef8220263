"""Ctrl-C, and `close` from another thread, end a run between two launches."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import clrt
from clrt.runtime.execution import bound_plan, execution, launch_throttle
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import DRIVERS
from tests.models.onnx_text import parsed

SIZE, STEPS = 256, 200


def chain() -> bytes:
    """Returns a model of many launches: alternating products and Softmax."""
    lines, x = [], "x"
    for k in range(STEPS):
        lines.append(f"g{k} = MatMul({x}, w)\nh{k} = Softmax(g{k})")
        x = f"h{k}"
    body = "\n".join(lines)
    return parsed(
        f"g (float[n, {SIZE}] x, float[{SIZE}, {SIZE}] w) => (float[n, {SIZE}] y)"
        f"{{ {body}\n y = Relu({x}) }}"
    )


def feeds(rows: int) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(0)
    draw = noise.standard_normal
    return {
        "x": draw((rows, SIZE)).astype(np.float32),
        "w": draw((SIZE, SIZE)).astype(np.float32),
    }


class Launches:
    """Counts enqueued launches, and calls a function at a given count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at, self.action = 0, -1, lambda: None
        real = execution.cl.enqueue_nd_range_kernel

        def enqueue(*args: object, **options: object) -> object:
            self.count += 1
            if self.count == self.at:
                self.action()
            return real(*args, **options)

        monkeypatch.setattr(execution.cl, "enqueue_nd_range_kernel", enqueue)

    def reset(self, at: int, action: Callable[[], None]) -> None:
        self.count, self.at, self.action = 0, at, action


class RunInThread:
    """A run in its own thread, and the errors that end it."""

    def __init__(self, model: clrt.Model, feed: dict[str, np.ndarray]) -> None:
        self.errors: list[clrt.ClrtError] = []
        self._thread = threading.Thread(target=self._run, args=(model, feed))
        self._thread.start()

    def _run(self, model: clrt.Model, feed: dict[str, np.ndarray]) -> None:
        try:
            model.run(feed)
        except clrt.ClrtError as error:
            self.errors.append(error)

    def join(self) -> None:
        self._thread.join(100)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    # Every run is a long one, and each launch a part of its own, on a fast machine, too.
    monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
    monkeypatch.setattr(launch_throttle, "_PART_S", 0.0)
    return Launches(monkeypatch)


@DRIVERS
def test_paced_run_matches_unpaced_run(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = feeds(5)
        model.run(feed)
        monkeypatch.setattr(bound_plan, "LONG_S", 1e9)
        wanted = model.run(feed)["y"]
        monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
        for part_s in (0.0, 1e-3, 1e3):
            monkeypatch.setattr(launch_throttle, "_PART_S", part_s)
            np.testing.assert_array_equal(model.run(feed)["y"], wanted)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Raises KeyboardInterrupt on SIGINT, which background processes of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@DRIVERS
@pytest.mark.parametrize("first", [True, False], ids=["first_run", "later_run"])
def test_keyboard_interrupt_stops_between_launches(
    device: DeviceInfo, first: bool, launches: Launches, interruptible: None
) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = feeds(5)
        wanted = clrt.load(chain(), device=device.index).run(feed)["y"]
        if not first:
            model.run(feed)
        launches.reset(20, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            model.run(feed)
        assert launches.count <= 22
        np.testing.assert_array_equal(model.run(feed)["y"], wanted)


@DRIVERS
def test_long_run_queues_at_most_two_launches(
    device: DeviceInfo, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    real = execution.cl.Event.wait

    def wait(event: execution.cl.Event) -> None:
        waits.append(launches.count)
        real(event)

    monkeypatch.setattr(execution.cl.Event, "wait", wait)
    with clrt.load(chain(), device=device.index) as model:
        model.run(feeds(5))
    gaps = np.diff([0, *waits, launches.count])
    assert launches.count > STEPS and max(gaps) <= 2


@DRIVERS
def test_close_ends_run_in_other_thread(device: DeviceInfo, launches: Launches) -> None:
    model = clrt.load(chain(), device=device.index)
    feed = feeds(5)
    model.run(feed)
    reached = threading.Event()

    def pause() -> None:
        reached.set()
        while not model._runner.stop.requested:
            time.sleep(0.001)

    launches.reset(20, pause)
    run = RunInThread(model, feed)
    assert reached.wait(100)
    model.close()
    run.join()
    assert launches.count <= 22
    (error,) = run.errors
    assert "closed during the run" in str(error)
    assert model._runner.room.weights.nbytes == 0
    assert not any(tiers.programs for tiers in model._all_tiers)
    with pytest.raises(clrt.InputError, match="closed"):
        model.run(feed)


@DRIVERS
def test_close_returns_before_run_that_then_frees_memory(
    device: DeviceInfo, launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clrt.runtime.execution.runner._CLOSE_S", 0.01)
    model = clrt.load(chain(), device=device.index)
    feed = feeds(5)
    model.run(feed)
    reached, goes_on = threading.Event(), threading.Event()

    def pause() -> None:
        reached.set()
        goes_on.wait(100)

    launches.reset(20, pause)
    run = RunInThread(model, feed)
    assert reached.wait(100)
    model.close()
    assert len(model._runner.planner.kept) == 1
    goes_on.set()
    run.join()
    assert len(run.errors) == 1 and len(model._runner.planner.kept) == 0


@DRIVERS
def test_close_during_run_of_same_thread_ends_run(device: DeviceInfo, launches: Launches) -> None:
    """The run of the same thread still uses memory that close would free."""
    model = clrt.load(chain(), device=device.index)
    feed = feeds(5)
    model.run(feed)
    launches.reset(20, model.close)
    with pytest.raises(clrt.ClrtError, match="closed during the run"):
        model.run(feed)
    assert len(model._runner.planner.kept) == 0
