"""Submitted runs, donated tensors, and states."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.runtime.execution import bound_plan
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import DRIVERS
from tests.models.onnx_text import DEVICES, normal, parsed
from tests.models.test_interrupt import chain
from tests.models.test_interrupt import feeds as chain_feeds

CACHE = """
    g (float[b, n, 4] cache, float[b, k, 4] rows, int64[b] at)
      => (float[b, n, 4] next, float[b] sum)
    {
      next = TensorScatter(cache, rows, at)
      sum = ReduceSum<keepdims = 0>(next, axes)
    }
""".replace("{", "<int64[2] axes = {1, 2}> {", 1)


def cache_model(device: DeviceInfo) -> clrt.Model:
    return clrt.load(parsed(CACHE, opset=24), device=device.index)


def rows(value: float, *places: int) -> dict[str, Any]:
    return {"rows": np.full((len(places), 1, 4), value, np.float32), "at": list(places)}


@DRIVERS
def test_submitted_runs_match_run(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feeds = [chain_feeds(n) for n in (3, 5, 3, 5)]
        wanted = [model.run(feed)["y"] for feed in feeds]
        runs = [model.submit(feed) for feed in feeds]
        for run, expected in zip(reversed(runs), reversed(wanted), strict=True):
            np.testing.assert_array_equal(run.wait()["y"], expected)
            assert run.done
            np.testing.assert_array_equal(run.wait(1.0)["y"], expected)


@pytest.mark.twins("off")  # which needs no queue
@DEVICES
def test_second_run_is_enqueued_before_first_ends(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_plan, "LONG_S", 1e9)
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(64)
        for run in [model.submit(feed) for _ in range(3)]:  # binds both arenas
            expected = run.wait()["y"]
        first = model.submit(feed)
        second = model.submit(feed)
        assert not first.done  # both are in the queue now
        np.testing.assert_array_equal(second.wait()["y"], expected)
        assert first.done
        np.testing.assert_array_equal(first.wait()["y"], expected)


@DRIVERS
def test_repeated_submits_allocate_nothing(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(4)
        for _ in range(2):
            for run in [model.submit(feed) for _ in range(4)]:
                run.wait()
        before = model._session.allocations
        for run in [model.submit(feed) for _ in range(4)]:
            run.wait()
        model.run(feed)
        assert model._session.allocations == before


@DRIVERS
def test_unawaited_run_does_not_disturb_model(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(4)
        expected = model.run(feed)["y"]
        for _ in range(5):
            model.submit(feed)
            gc.collect()
        np.testing.assert_array_equal(model.run(feed)["y"], expected)


@DRIVERS
def test_submit_and_wait_raise_input_errors(device: DeviceInfo) -> None:
    with cache_model(device) as model:
        feed = {"cache": np.zeros((1, 8, 4), np.float32), **rows(1.0, 3)}
        model.run(feed)
        with pytest.raises(clrt.InputError, match="Missing input"):
            model.submit(rows(1.0, 3))
        bad = model.submit({**feed, **rows(1.0, 9)})
        good = model.submit(feed)
        with pytest.raises(clrt.InputError, match="a write index of input 'at' is 9"):
            bad.wait()
        with pytest.raises(clrt.InputError, match="is 9"):
            bad.wait()
        assert good.wait()["sum"].tolist() == [4.0]


@DRIVERS
def test_cancel_ends_long_run_early(device: DeviceInfo) -> None:
    """Cancelling a run longer than 0.3 s takes less than a quarter of its time."""
    with clrt.load(chain(), device=device.index) as model:
        size = 256
        while True:
            feed = chain_feeds(size)
            model.run(feed)
            start = time.perf_counter()
            expected = model.run(feed)["y"]
            whole_s = time.perf_counter() - start
            if whole_s > 0.3:
                break
            size *= 2
        took = []
        for _ in range(3):
            run = model.submit(feed)
            time.sleep(whole_s / 4)
            start = time.perf_counter()
            run.cancel()
            took.append(time.perf_counter() - start)
            with pytest.raises(clrt.CancelledError, match="cancelled"):
                run.wait()
        assert min(took) < whole_s / 4
        np.testing.assert_array_equal(model.run(feed)["y"], expected)
        run = model.submit(feed)
        with pytest.raises(TimeoutError, match=r"after 0\.001 seconds"):
            run.wait(0.001)
        np.testing.assert_array_equal(run.wait()["y"], expected)
        run.cancel()
        np.testing.assert_array_equal(run.wait()["y"], expected)


@DRIVERS
def test_close_ends_submitted_run(device: DeviceInfo) -> None:
    model = clrt.load(chain(), device=device.index)
    feed = chain_feeds(2048)
    model.run(feed)
    run = model.submit(feed)
    model.close()
    with pytest.raises(clrt.ClrtError, match="closed"):
        run.wait()
    with pytest.raises(clrt.InputError, match="closed"):
        model.submit(feed)


@DRIVERS
def test_concurrent_models_match_single_thread(device: DeviceInfo) -> None:
    models = [clrt.load(chain(), device=device.index) for _ in range(2)]
    models += [cache_model(device) for _ in range(2)]
    caches = [{"cache": normal(n, n, 8, 4), **rows(n, *range(n))} for n in (1, 3)]
    inputs = [[chain_feeds(n) for n in (2, 7)]] * 2 + [caches] * 2
    wanted = [[m.run(feed) for feed in given] for m, given in zip(models, inputs, strict=True)]

    def work(seed: int) -> None:
        noise = np.random.default_rng(seed)
        for _ in range(12):
            k, j = noise.integers(4), noise.integers(2)
            found = (
                models[k].run(inputs[k][j])
                if noise.random() < 0.5
                else models[k].submit(inputs[k][j]).wait()
            )
            for name, expected in wanted[k][j].items():
                np.testing.assert_array_equal(found[name], expected)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(work, seed) for seed in range(8)]:
            done.result()
    for model in models:
        model.close()


@DRIVERS
def test_concurrent_runs_succeed_within_memory_of_one_arena(device: DeviceInfo) -> None:
    with clrt.load(chain(), device=device.index) as model:
        feed = chain_feeds(64)
        expected = model.run(feed)["y"]
        needed = model.memory({n: x.shape for n, x in feed.items()}).device_bytes
    with clrt.load(chain(), device=device.index, memory_limit=needed) as model:
        for run in [model.submit(feed) for _ in range(4)]:
            np.testing.assert_array_equal(run.wait()["y"], expected)
        threads = [threading.Thread(target=model.run, args=(feed,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        np.testing.assert_array_equal(model.run(feed)["y"], expected)


@DRIVERS
def test_device_inputs_are_read_in_place(device: DeviceInfo) -> None:
    with cache_model(device) as model:
        start = normal(1, 2, 8, 4)
        first = model.run({"cache": start, **rows(1.0, 2, 5)}, device_outputs=True)["next"]
        wanted = first.numpy()
        model.run({"cache": first, **rows(2.0, 0, 0)}, device_outputs=True)
        np.testing.assert_array_equal(first.numpy(), wanted)  # it was not donated
        allocations = []
        for _ in range(4):
            second = model.run({"cache": first, **rows(2.0, 0, 0)}, ["next"], True)["next"]
            allocations.append(model._session.allocations)
        assert len(set(allocations[1:])) == 1
        wanted[:, 0] = 2.0
        np.testing.assert_array_equal(second.numpy(), wanted)


@DRIVERS
def test_donated_tensor_buffer_becomes_output(device: DeviceInfo) -> None:
    with cache_model(device) as model:
        start = normal(1, 2, 8, 4)
        first = model.run({"cache": start, **rows(1.0, 2, 5)}, device_outputs=True)["next"]
        wanted = first.numpy()
        buffer = first.buffer
        second = model.run(
            {"cache": first, **rows(2.0, 0, 7)}, ["next"], device_outputs=True, donate=["cache"]
        )["next"]
        assert second.buffer is buffer
        wanted[[0, 1], [0, 7]] = 2.0
        np.testing.assert_array_equal(second.numpy(), wanted)
        for use in (first.numpy, lambda: model.run({"cache": first, **rows(2.0, 0, 7)})):
            with pytest.raises(clrt.InputError, match="was donated to a run"):
                use()
        # A run that fails leaves the tensor to who gave it.
        with pytest.raises(clrt.InputError, match="is 8"):
            model.run({"cache": second, **rows(2.0, 0, 8)}, ["next"], True, donate="cache")
        assert second.numpy().shape == (2, 8, 4)
        found = model.run({"cache": second, **rows(2.0, 0, 1)}, ["sum"], donate=["cache"])
        assert found["sum"].shape == (2,)
        with pytest.raises(clrt.InputError, match="'cache' cannot be donated"):
            model.run({"cache": start, **rows(2.0, 0, 1)}, donate=["cache"])


@DRIVERS
def test_donating_tensor_passed_twice_is_refused(device: DeviceInfo) -> None:
    source = parsed("g (float[n] a, float[n] b) => (float[n] y) { y = Sub(a, b) }")
    with clrt.load(source, device=device.index) as model:
        x = np.arange(4, dtype=np.float32)
        y = model.run({"a": x, "b": x / 2}, device_outputs=True)["y"]
        with pytest.raises(clrt.InputError, match="also fed to 'b'"):
            model.run({"a": y, "b": y}, donate=["a"])
        assert model.run({"a": y, "b": y})["y"].tolist() == [0.0] * 4


@DRIVERS
@pytest.mark.parametrize("size", [64, 4096])
def test_state_is_updated_in_place(device: DeviceInfo, size: int) -> None:
    with cache_model(device) as model:
        state = model.new_state({"cache": "next"}, {"cache": (1, size, 4)})
        wanted = np.zeros((1, size, 4), np.float32)
        buffer = state["cache"].buffer
        for place in (0, 5, 6):
            before = model._session.allocations
            found = model.run(rows(place + 1.0, place), state=state)
            wanted[0, place] = place + 1.0
            assert found.keys() == {"sum"}
            np.testing.assert_allclose(found["sum"], wanted.sum((1, 2)))
            assert state["cache"].buffer is buffer
        assert model._session.allocations == before
        np.testing.assert_array_equal(state["cache"].numpy(), wanted)
        assert len(model._runner.planner.kept) == 1
        (stage,) = model._runner.planner.kept.values()
        assert stage.plan.launches <= 3
        with pytest.raises(clrt.InputError, match="is part of the state"):
            model.run({"cache": wanted, **rows(1.0, 0)}, state=state)
        with pytest.raises(clrt.InputError, match="no output 'nex'"):
            model.new_state({"cache": "nex"}, {"cache": (1, size, 4)})
        with pytest.raises(clrt.InputError, match="No value for input 'cache'"):
            model.new_state({"cache": "next"}, {})


@DRIVERS
def test_aliased_outputs_get_separate_buffers(device: DeviceInfo) -> None:
    source = parsed(
        "g (float[n] x) => (float[n] a, float[n] b, float[n] c)"
        "{ a = Exp(x)  b = Identity(a)  c = Identity(x) }"
    )
    with clrt.load(source, device=device.index) as model:
        x = np.arange(4, dtype=np.float32)
        given = model.run(x, ["c"], device_outputs=True)["c"]
        for donate in ((), ("x",)):
            found = model.run({"x": given}, device_outputs=True, donate=donate)
            buffers = {t.buffer.int_ptr for t in found.values()}
            assert len(buffers) == 3
            np.testing.assert_allclose(found["a"].numpy(), np.exp(x), rtol=1e-6)
            np.testing.assert_array_equal(found["a"].numpy(), found["b"].numpy())
            np.testing.assert_array_equal(found["c"].numpy(), x)


@DRIVERS
def test_state_stays_readable_after_graph_break(device: DeviceInfo) -> None:
    """If branches and later nodes read the state, so earlier nodes may not overwrite it."""
    source = parsed(
        """
        g (float[n] x, float[n] state, bool c) => (float[n] y, float[n] next) {
          before = Mul(x, state)
          chosen = If (c) <
            then_branch = t () => (float[n] p) { p = Add(before, state) },
            else_branch = e () => (float[n] q) { q = Sub(before, state) }
          >
          y = Add(chosen, state)
          next = Add(x, state)
        }
        """
    )
    with clrt.load(source, device=device.index) as model:
        state = model.new_state({"state": "next"}, {"state": np.full(3, 2, np.float32)})
        wanted = np.full(3, 2, np.float32)
        for step in range(4):
            x, up = normal(step, 3), bool(step % 2)
            found = model.run({"x": x, "c": np.array(up)}, ["y"], state=state)["y"]
            expected = x * wanted + (wanted if up else -wanted) + wanted
            np.testing.assert_allclose(found, expected, rtol=1e-6)
            wanted = x + wanted
        np.testing.assert_allclose(state["state"].numpy(), wanted, rtol=1e-6)
