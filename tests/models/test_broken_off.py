"""Exceptions at any line of a call, as from Ctrl-C, leave shared state consistent.

`CLRT_INTERRUPTS=1000` sets the interruptions per call (`make test-interrupts`).
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.background import BACKGROUND
from clrt.util.env_vars import cache_dir
from tests.harness import DRIVER_ROWS, DRIVERS
from tests.interrupting import TIMES, interrupted, lines_of, sampled
from tests.models.onnx_text import parsed

# Weights, constants of the plan (Range), several launches, shapes that all take one template.
SOURCE = """
    g (float[b, n] x, float[16, 16] w) => (float[b, n] y, float[b, n] z)
    {
      h = MatMul(x, w)
      i = Softmax(h)
      two = Constant<value = float {2}>()
      y = Mul(i, two)
      t = ReduceMean<keepdims = 1>(y)
      z = Sub(x, t)
    }
"""


def feeds(rows: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(rows).standard_normal
    return {"x": draw((rows, 16), np.float32), "w": draw((16, 16), np.float32)}


def settled(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds; fails after 100 s."""
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Checked:
    """A model with its results and memory use without interruptions.

    Its session is not shared with other tests, whose models may be freed at any time.
    """

    def __init__(self, device: DeviceInfo, folder: Path) -> None:
        """Loads the model.

        Args:
            folder: Empty folder, for a link to the cache: each path has a session of its own.
        """
        self.source = parsed(SOURCE)
        cache = folder / "cache"
        cache.symlink_to(cache_dir(), target_is_directory=True)
        self.load = partial(clrt.load, self.source, device=device.index, cache_dir=cache)
        self.model = self.load()
        self.session = self.model._session
        self.wanted = {rows: self.model.run(feeds(rows)) for rows in range(1, 8)}
        self.allocated = self.settled_bytes()

    def check(self, rows: int) -> None:
        """Asserts that the results for `rows` rows are unchanged."""
        found = self.model.run(feeds(rows))
        for name, array in self.wanted[rows].items():
            np.testing.assert_array_equal(found[name], array)

    def settled_bytes(self) -> int:
        """Returns the allocated bytes after two fixed runs."""
        self.model.trim()
        for rows in (2, 3):
            self.model.run(feeds(rows))
        gc.collect()
        return self.session.allocated_bytes

    def check_rest(self) -> None:
        """Asserts that interrupted calls leave no memory or runs behind."""
        runner, connection = self.model._runner, self.session.connection
        runner.room.await_detached()  # runs that were on their way alone
        # Interrupted waits leave runs to worker threads, which may not even have begun them.
        if runner._workers is not None:
            runner._workers.shutdown()
            runner._workers = None
        settled(lambda: not runner._calls)
        assert not runner.room._in_use
        assert not connection.in_flight and not connection.undrained_queues
        # Background work changes the collector's threshold during each of its slices.
        settled(lambda: not BACKGROUND._is_running)
        assert gc.isenabled() and gc.get_threshold()[2] < 1 << 30
        assert self.settled_bytes() == self.allocated

    def calls(self) -> dict[str, Callable[[], object]]:
        """Returns the calls to interrupt, by name."""

        def anew() -> None:
            self.model.trim()
            for rows in (1, 2, 3):
                self.model.run(feeds(rows))

        def load() -> None:
            with self.load() as model:
                model.run(feeds(2))

        def stay() -> None:
            made = self.model.run(feeds(2), device_outputs=True)
            self.model.run({"x": made["y"], "w": feeds(2)["w"]}, donate=["x"])

        def wait() -> None:
            runs = [self.model.submit(feeds(rows)) for rows in (2, 3)]
            for run in runs:
                run.wait()

        run = partial(self.model.run, feeds(2))
        return {"run": run, "anew": anew, "load": load, "stay": stay, "wait": wait}


@pytest.fixture(scope="module", params=DRIVER_ROWS)
def checked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Checked]:
    made = Checked(request.param, tmp_path_factory.mktemp("link"))
    yield made
    made.model.close()


@pytest.mark.parametrize("name", ["run", "anew", "load", "stay", "wait"])
def test_exception_at_any_line_keeps_model_usable(checked: Checked, name: str) -> None:
    call = checked.calls()[name]
    call()
    for number, line in enumerate(sampled(lines_of(call), TIMES, seed=1)):
        lines_of(call, stop_at=line)
        checked.check(2)
        checked.check(1 + number % 7)
    checked.check_rest()


@pytest.mark.parametrize("name", ["run", "anew", "load", "stay", "wait"])
def test_signal_at_any_time_keeps_model_usable(checked: Checked, name: str) -> None:
    """Signals also arrive inside the standard library and within lines."""
    call, draw = checked.calls()[name], Random(2)
    call()
    for number in range(TIMES):
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        interrupted(call, draw.random() * took)
        checked.check(2)
        checked.check(1 + number % 7)
    checked.check_rest()


def test_signal_does_not_disturb_other_threads(checked: Checked) -> None:
    """Other threads keep running and get correct results."""
    call, draw, ended = checked.calls()["anew"], Random(3), threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        count = number
        while not ended.is_set():
            count += 1
            try:
                checked.check(1 + count % 7)
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(TIMES):
        interrupted(call, draw.random() * 0.02)
        checked.check(2)
    ended.set()
    for thread in threads:
        thread.join(60)
    assert not errors and not any(thread.is_alive() for thread in threads)
    checked.check_rest()


def test_interrupted_run_returns_state_to_caller(checked: Checked) -> None:
    model = checked.model
    given = {"x": feeds(2)["x"]}
    line, total = 1, None

    def step(state: Any) -> None:
        model.run({"w": feeds(2)["w"]}, state=state)

    state = model.new_state({"x": "z"}, given)
    step(state)
    total = lines_of(partial(step, state))
    for line in sampled(total, TIMES, seed=4):
        state = model.new_state({"x": "z"}, given)
        lines_of(partial(step, state), stop_at=line)
        assert np.isfinite(state["x"].numpy()).all()
        step(state)


@DRIVERS
def test_interrupted_wait_does_not_end_submitted_run(device: DeviceInfo) -> None:
    with clrt.load(parsed(SOURCE), device=device.index) as model:
        wanted = model.run(feeds(3))["y"]
        run = model.submit(feeds(3))
        for line in sampled(lines_of(model.submit(feeds(3)).wait), 10, seed=5):
            lines_of(run.wait, stop_at=line)
        np.testing.assert_array_equal(run.wait()["y"], wanted)
