"""Command queues per model: independent runs, donation between models, priorities and cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.runtime.execution import bound_plan, launch_throttle
from clrt.runtime.execution.execution import Execution
from clrt.runtime.execution.graph_run import GraphRun
from clrt.runtime.opencl.device_context import DeviceContext
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import cl
from tests.harness import DRIVERS
from tests.models.onnx_text import parsed
from tests.models.test_interrupt import chain
from tests.models.test_interrupt import feeds as chain_feeds
from tests.models.test_runs import cache_model, rows


@contextmanager
def held(model: clrt.Model) -> Iterator[None]:
    """Delays launches enqueued for a model inside the context until its end."""
    room = model._runner.room
    gate = cl.UserEvent(room.lane.connection.context)
    cl.enqueue_barrier(room.lane.queue, wait_for=[gate])
    goes_on, real = threading.Event(), cl.enqueue_nd_range_kernel

    def enqueue(queue: cl.CommandQueue, *args: Any) -> cl.Event:
        if queue == room._twin_lane.queue:
            assert goes_on.wait(100)
        return real(queue, *args)

    with pytest.MonkeyPatch.context() as patch:
        if room.session.device.twin is not None:
            patch.setattr(cl, "enqueue_nd_range_kernel", enqueue)
        try:
            yield
        finally:
            gate.set_status(cl.command_execution_status.COMPLETE)
            goes_on.set()


def small(device: DeviceInfo) -> clrt.Model:
    return clrt.load(parsed("g (float[n] x) => (float[n] y) { y = Exp(x) }"), device=device.index)


@DRIVERS
def test_run_does_not_wait_for_other_model(device: DeviceInfo) -> None:
    with small(device) as first, small(device) as second:
        x = np.arange(4, dtype=np.float32)
        expected = first.run(x)["y"]
        second.run(x)
        with held(first):
            waits = first.submit(x)
            np.testing.assert_array_equal(second.run(x)["y"], expected)
            kept = second.run(x, device_outputs=True)["y"]
            np.testing.assert_array_equal(kept.numpy(), expected)
            assert not waits.done
        np.testing.assert_array_equal(waits.wait()["y"], expected)


@DRIVERS
def test_donated_tensor_is_read_before_overwrite(device: DeviceInfo) -> None:
    reader = clrt.load(
        parsed("g (float[b, n, 4] x) => (float[b, n, 4] y) { y = Neg(x) }"), device=device.index
    )
    with reader, cache_model(device) as writer:
        start = {"cache": np.zeros((1, 8, 4), np.float32), **rows(1.0, 2)}
        tensor = writer.run(start, ["next"], device_outputs=True)["next"]
        for _ in range(2):  # what takes long runs in a thread of its own: the first, if at all
            reader.run(tensor)
        writer.run({"cache": tensor, **rows(1.0, 2)}, ["next"], True)
        wanted = -tensor.numpy()
        results: list[clrt.DeviceTensor] = []

        def write() -> None:
            feeds = {"cache": tensor, **rows(5.0, 3)}
            results.append(writer.run(feeds, ["next"], True, donate=["cache"])["next"])

        with held(reader):
            reading = reader.submit(tensor)
            thread = threading.Thread(target=write)
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
        thread.join(100)
        np.testing.assert_array_equal(reading.wait()["y"], wanted)
        (written,) = results
        assert written.numpy()[0, 3].tolist() == [5.0] * 4
        with pytest.raises(clrt.InputError, match="was donated"):
            reader.run(tensor)


@DRIVERS
@pytest.mark.parametrize("submits", [False, True])
def test_donation_waits_for_reader_in_other_thread(
    device: DeviceInfo, submits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run goes to a thread, and may not have read its inputs when `submit` returns."""
    begins, goes_on = threading.Event(), threading.Event()

    def late(self: GraphRun, *args: Any) -> Any:
        begins.set()
        assert goes_on.wait(100)
        return real(self, *args)

    with cache_model(device) as reader, cache_model(device) as writer:
        start = {"cache": np.zeros((1, 8, 4), np.float32), **rows(1.0, 2)}
        tensor = writer.run(start, ["next"], device_outputs=True)["next"]
        real = GraphRun.outputs
        with monkeypatch.context() as patch:
            patch.setattr(GraphRun, "outputs", late)
            reading = reader.submit({"cache": tensor, **rows(2.0, 1)}, ["next"])
            assert begins.wait(100)
        threading.Timer(0.1, goes_on.set).start()
        feeds = {"cache": tensor, **rows(5.0, 3)}
        if submits:
            run = writer.submit(feeds, ["next"], True, donate=["cache"])
            assert not run.done
            written = run.wait()["next"]
        else:
            written = writer.run(feeds, ["next"], True, donate=["cache"])["next"]
        assert reading.done
        assert reading.wait()["next"][0, :4, 0].tolist() == [0.0, 2.0, 1.0, 0.0]
        assert written.numpy()[0, :4, 0].tolist() == [0.0, 0.0, 1.0, 5.0]
        assert not tensor.readers


@DRIVERS
def test_donation_inside_interrupted_reader_is_refused(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler donates a tensor that the interrupted run reads."""
    monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
    with cache_model(device) as reader, cache_model(device) as writer:
        start = {"cache": np.zeros((1, 8, 4), np.float32), **rows(1.0, 2)}
        tensor = writer.run(start, ["next"], device_outputs=True)["next"]
        real, seen = Execution._run_paced, []

        def interrupt(self: Execution) -> None:
            if self.bound.weights is reader._runner.room.weights and not seen:
                with pytest.raises(clrt.InputError, match="this one interrupted"):
                    feeds = {"cache": tensor, **rows(5.0, 3)}
                    writer.run(feeds, ["next"], True, donate=["cache"])
                seen.append(self)
            real(self)

        monkeypatch.setattr(Execution, "_run_paced", interrupt)
        reader.run({"cache": tensor, **rows(2.0, 1)})
        assert seen
        assert tensor.numpy()[0, 2].tolist() == [1.0] * 4


@DRIVERS
def test_long_run_yields_to_short_run(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a short run of another model waits, a long run enqueues parts at intervals."""
    monkeypatch.setattr(launch_throttle, "_PART_S", 0.0)
    with clrt.load(chain(), device=device.index) as long, small(device) as short:
        feed, x = chain_feeds(4), np.ones(4, np.float32)
        expected = long.run(feed)["y"]
        short.run(x)
        monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
        gave: list[bool] = []
        real = DeviceContext.give_way

        def give_way(self: DeviceContext, *args: object) -> bool:
            gave.append(real(self, *args))  # type: ignore[arg-type]
            return gave[-1]

        monkeypatch.setattr(DeviceContext, "give_way", give_way)
        with held(short):
            with monkeypatch.context() as patch:
                patch.setattr(bound_plan, "LONG_S", 1e9)
                waits = short.submit(x)
            start = time.perf_counter()
            run = long.submit(feed)
            time.sleep(0.2)
            assert not waits.done and not run.done
            counted, took = len(gave), time.perf_counter() - start
            assert counted < took / launch_throttle._GIVE_WAY_S + 5 and all(gave)
        np.testing.assert_allclose(waits.wait()["y"], np.exp(x), rtol=1e-6)
        np.testing.assert_array_equal(run.wait()["y"], expected)
        assert not gave[-1]


@DRIVERS
def test_queue_wait_does_not_mark_run_long(device: DeviceInfo) -> None:
    with small(device) as model, small(device) as other:
        x = np.ones(4, np.float32)
        for _ in range(2):
            model.run(x)
            other.run(x)
        (stage,) = model._runner.planner.kept.values()
        (bound,) = stage.bound.values()
        with held(other):
            waits = other.submit(x)
            with held(model):
                run = threading.Thread(target=model.run, args=(x,))
                run.start()
                run.join(0.1)
                assert run.is_alive()
            run.join(100)
        waits.wait()
        assert bound.seconds_a_run is not None and bound.seconds_a_run < 0.1
        assert not bound.takes_long


@DRIVERS
def test_background_model_queues_one_part_at_a_time(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_throttle, "_PART_S", 0.0)
    source = chain()
    with clrt.load(source, device=device.index) as model:
        expected = model.run(chain_feeds(4))["y"]
    with (
        clrt.load(source, device=device.index, priority="background") as model,
        small(device) as other,
    ):
        np.testing.assert_array_equal(model.run(chain_feeds(4))["y"], expected)
        waiting = [0]
        real = cl.enqueue_nd_range_kernel

        def enqueue(*args: Any, **options: Any) -> cl.Event:
            events[:] = [e for e in events if e.command_execution_status > 0]
            waiting.append(len(events))
            events.append(real(*args, **options))
            return events[-1]

        events: list[cl.Event] = []
        with monkeypatch.context() as patch:
            patch.setattr(cl, "enqueue_nd_range_kernel", enqueue)
            np.testing.assert_array_equal(model.run(chain_feeds(4))["y"], expected)
        assert len(waiting) > 200 and max(waiting) == 0
        # Even a short run gives way to what another model has on its way.
        x = np.ones(4, np.float32)
        other.run(x)
        with held(other):
            first = other.submit(x)
            run = model.submit(chain_feeds(4))
            time.sleep(0.1)
            assert not run.done and not first.done
        np.testing.assert_array_equal(run.wait()["y"], expected)
    with pytest.raises(clrt.InputError, match="priority is 'low'"):
        clrt.load(source, device=device.index, priority="low")


@DRIVERS
def test_cores_option_limits_compute_units(device: DeviceInfo) -> None:
    source = parsed("g (float[n] x) => (float[n] y) { y = Exp(x) }")
    x = np.ones(4, np.float32)
    units = device.caps.compute_units
    with clrt.load(source, device=device.index) as model:
        expected = model.run(x)["y"]
        for cores in {1, units, units + 1, -1, -units}:
            with clrt.load(source, device=device.index, cores=cores) as some:
                wanted = min(cores, units) if cores > 0 else max(units + cores, 1)
                assert some.device.caps.compute_units == wanted
                assert some._runner.room.lane.queue.device.max_compute_units == wanted
                np.testing.assert_array_equal(some.run(x)["y"], expected)
                kept = some.run(x, device_outputs=True)["y"]
                if wanted == units:
                    model.run(kept)
                else:
                    with pytest.raises(clrt.DeviceError, match=rf"cores={wanted}.*pass its"):
                        model.run(kept)
                with clrt.load(source, device=device.index, cores=cores) as twin:
                    assert twin._session is some._session
                    twin.run(kept)
    for wrong in (0, 1.5, True):
        with pytest.raises(clrt.InputError, match="cores is"):
            clrt.load(source, device=device.index, cores=wrong)  # type: ignore[arg-type]


@DRIVERS
def test_cores_1_uses_one_core_of_cpu_time(device: DeviceInfo) -> None:
    """The process uses no more CPU time than wall time."""
    if device.caps.compute_units < 2:
        pytest.skip("there is one core")
    with clrt.load(chain(), device=device.index, cores=1) as model:
        feed = chain_feeds(256)
        for _ in range(2):
            model.run(feed)
        start, used = time.perf_counter(), time.process_time()
        while time.perf_counter() - start < 0.2:
            model.run(feed)
        assert time.process_time() - used < 1.3 * (time.perf_counter() - start)


@DRIVERS
def test_trimmed_model_still_runs(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        room, session = model._runner.room, model._session
        feed = chain_feeds(8)
        expected = model.run(feed)["y"]
        kept = model.run(feed, device_outputs=True)["y"]
        del kept
        weights = room.weights.nbytes
        model.trim()
        assert not room._idle and not len(model._runner.planner.kept)
        assert not any(session._idle.values())
        assert room.weights.nbytes == weights
        runs = [model.submit(feed) for _ in range(2)]
        model.trim()
        for run in runs:
            np.testing.assert_array_equal(run.wait()["y"], expected)
    with pytest.raises(clrt.InputError, match="load it again to trim it"):
        model.trim()
