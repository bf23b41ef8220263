"""`run_async`, futures of submitted runs, and run timeouts."""

from __future__ import annotations

import asyncio
import time
from concurrent import futures

import numpy as np
import pytest

import clrt
from clrt.runtime.execution import bound_plan, launch_throttle
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import DRIVERS
from tests.models.test_interrupt import chain
from tests.models.test_interrupt import feeds as chain_feeds
from tests.models.test_lanes import held
from tests.models.test_runs import cache_model, rows


@DRIVERS
def test_run_async_results_match_run_in_concurrent_tasks(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feeds = [chain_feeds(n) for n in (3, 5, 3, 5)]
        wanted = [model.run(feed)["y"] for feed in feeds]

        async def both() -> list[dict[str, np.ndarray]]:
            asked = [model.run_async(feed) for feed in feeds]
            submitted = model.submit(feeds[0])
            return [*await asyncio.gather(*asked), await submitted, await submitted]

        found = asyncio.run(both())
        for results, expected in zip(found, [*wanted, wanted[0], wanted[0]], strict=True):
            np.testing.assert_array_equal(results["y"], expected)

        async def bad() -> None:
            await model.run_async({"x": feeds[0]["x"]})

        with pytest.raises(clrt.InputError, match="Missing input"):
            asyncio.run(bad())
    with pytest.raises(clrt.InputError, match="closed"):
        asyncio.run(model.run_async(feeds[0]))


@DRIVERS
def test_run_async_does_not_block_event_loop(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(3)
        expected = model.run(feed)["y"]

        async def watched() -> None:
            with held(model):
                task = asyncio.ensure_future(model.run_async(feed))
                await asyncio.sleep(0.05)  # the loop is free while the run is not done
                assert not task.done()
            np.testing.assert_array_equal((await task)["y"], expected)

        asyncio.run(watched())


@DRIVERS
def test_cancelled_task_ends_its_run(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(3)
        expected = model.run(feed)["y"]
        monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
        monkeypatch.setattr(launch_throttle, "_PART_S", 0.0)

        async def limited() -> None:
            with held(model), pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(model.run_async(feed), 0.05)
            model._runner.room.await_detached()
            deadline = time.perf_counter() + 100
            while model._session.connection.in_flight and time.perf_counter() < deadline:
                await asyncio.sleep(0.001)
            assert model._runner.room._idle and not model._runner.room._in_use

        asyncio.run(limited())
        np.testing.assert_array_equal(model.run(feed)["y"], expected)


@DRIVERS
def test_future_completes_with_run_results(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(3)
        expected = model.run(feed)["y"]
        for long_s in (1e9, 0.0):  # whole on the device, and in a worker
            monkeypatch.setattr(bound_plan, "LONG_S", long_s)
            runs = [model.submit(feed) for _ in range(3)]
            told: list[object] = []
            waiting = [run.future() for run in runs]
            waiting[1].add_done_callback(told.append)
            assert waiting == [run.future() for run in runs]
            done, left = futures.wait(waiting, 100)
            assert len(done) == 3 and not left and told == [waiting[1]]
            for future, run in zip(waiting, runs, strict=True):
                np.testing.assert_array_equal(future.result()["y"], expected)
                np.testing.assert_array_equal(run.wait()["y"], expected)


@DRIVERS
def test_future_reports_run_error_and_cancellation(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cache_model(device) as model:
        feed = {"cache": np.zeros((1, 8, 4), np.float32), **rows(1.0, 3)}
        model.run(feed)
        bad = model.submit({**feed, **rows(1.0, 9)}).future()
        assert isinstance(bad.exception(100), clrt.InputError)
    with clrt.load(chain(), device=device.index) as model:
        expected = model.run(chain_feeds(3))["y"]
        monkeypatch.setattr(bound_plan, "LONG_S", 0.0)
        monkeypatch.setattr(launch_throttle, "_PART_S", 0.0)
        with held(model):
            run = model.submit(chain_feeds(3))
            assert run.future().cancel() and run.future().cancelled()
        with pytest.raises(clrt.CancelledError):
            run.wait()
        np.testing.assert_array_equal(model.run(chain_feeds(3))["y"], expected)


@DRIVERS
@pytest.mark.parametrize("long_s", [1e9, 0.0], ids=["whole", "in_parts"])
def test_run_timeout_raises_after_deadline(
    device: DeviceInfo, long_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cache_model(device) as model:
        feed = {"cache": np.zeros((1, 8, 4), np.float32), **rows(1.0, 3)}
        assert model.run(feed, timeout=100)["sum"].tolist() == [4.0]
        monkeypatch.setattr(bound_plan, "LONG_S", long_s)
        with held(model):
            start = time.perf_counter()
            with pytest.raises(clrt.RunTimeoutError, match=r"timeout of 0\.05 seconds") as caught:
                model.run(feed, timeout=0.05)
            assert 0.05 <= time.perf_counter() - start < 5
            assert isinstance(caught.value, clrt.ClrtError) and isinstance(
                caught.value, TimeoutError
            )
        assert model.run(feed, timeout=100)["sum"].tolist() == [4.0]
        for seconds in (-1, "soon", float("nan")):
            with pytest.raises(clrt.InputError, match="timeout is"):
                model.run(feed, timeout=seconds)  # type: ignore[arg-type]


@DRIVERS
@pytest.mark.parametrize("long_s", [1e9, 0.0], ids=["whole", "in_parts"])
def test_state_stays_usable_after_run_timeout(
    device: DeviceInfo, long_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state returns to the caller: unchanged if the run ended early, updated otherwise."""
    with cache_model(device) as model:
        state = model.new_state({"cache": "next"}, {"cache": (1, 8, 4)})
        model.run(rows(1.0, 0), state=state)
        monkeypatch.setattr(bound_plan, "LONG_S", long_s)
        monkeypatch.setattr(launch_throttle, "_PART_S", 0.0)
        real = launch_throttle.LaunchThrottle.make_room

        def late(self: launch_throttle.LaunchThrottle, cost: int) -> None:
            time.sleep(0.05)
            real(self, cost)

        monkeypatch.setattr(launch_throttle.LaunchThrottle, "make_room", late)
        ended = False
        try:
            found = model.run(rows(2.0, 1), state=state, timeout=0)
        except clrt.RunTimeoutError:
            ended = True
        else:
            assert found["sum"].tolist() == [12.0]
        assert model.run(rows(3.0, 1), state=state)["sum"].tolist() == [16.0]
        assert ended or long_s
