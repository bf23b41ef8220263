"""Device memory limits across threads, and the budget across models."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import pytest

import clrt
from clrt.runtime.opencl import ledger
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.ledger import BUDGET, Ledger
from tests.harness import DRIVERS
from tests.models.onnx_text import parsed

WIDTH = 64


def source(seed: int) -> bytes:
    """Returns a model of three products with weights of 16 KiB each."""
    import onnx

    model = onnx.load_from_string(
        parsed(
            f"g (float[b, {WIDTH}] x, float[{WIDTH}, {WIDTH}] u, float[{WIDTH}, {WIDTH}] v) => "
            f"(float[b, {WIDTH}] y) {{ h = MatMul(x, u) i = Softmax(h) j = MatMul(i, v) "
            "y = Softmax(j) }"
        )
    )
    draw = np.random.default_rng(seed).standard_normal
    for name in ("u", "v"):
        array = draw((WIDTH, WIDTH), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del model.graph.input[1:]
    found: bytes = model.SerializeToString()
    return found


def feed(rows: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH), np.float32)}


class Highest:
    """Records the maximum bytes of a ledger."""

    def __init__(self, of: Callable[[Ledger], bool], monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes, add = 0, Ledger.add

        def noting(self_: Ledger, buffer: ledger.TrackedBuffer) -> None:
            add(self_, buffer)
            if of(self_):
                self.nbytes = max(self.nbytes, self_.nbytes)

        monkeypatch.setattr(Ledger, "add", noting)


@pytest.fixture
def budget() -> Iterator[None]:
    gc.collect()
    BUDGET.clear_pools()  # of other tests
    yield
    clrt.set_memory_budget(None)


def run_in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs a function in threads; raises the first error of a thread."""
    errors: list[BaseException] = []

    def caught(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caught, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


@DRIVERS
def test_threads_stay_within_model_memory_limit(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (1, 8, 100, 400)
    with clrt.load(source(0), device=device.index) as free:
        wanted = {rows: free.run(feed(rows))["y"] for rows in sizes}
        limit = free.memory({"x": (400, WIDTH)}).device_bytes
    model = clrt.load(source(0), device=device.index, memory_limit=limit)
    account = model._runner.room.account
    highest = Highest(lambda found: found is account, monkeypatch)

    def work(number: int) -> None:
        draw = Random(number)
        for _ in range(12):
            rows = draw.choice(sizes)
            np.testing.assert_array_equal(model.run(feed(rows))["y"], wanted[rows])

    with model:
        run_in_threads(3, work)
        assert 0 < highest.nbytes <= limit
        with pytest.raises(clrt.OutOfMemoryError, match="memory_limit allows"):
            model.run(feed(500))


@DRIVERS
def test_models_stay_within_memory_budget(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, budget: None
) -> None:
    """The budget fits two of five models at a time; all give correct results in three threads."""
    models = [clrt.load(source(k), device=device.index) for k in range(5)]
    wanted = [m.run(feed(20))["y"] for m in models]
    needed = models[0].memory({"x": (20, WIDTH)}).device_bytes
    for model in models:
        model._runner.room.give_up(weights=True)
    gc.collect()
    held = BUDGET.nbytes
    budget_bytes = held + 2 * needed + needed // 2
    clrt.set_memory_budget(budget_bytes)
    highest = Highest(lambda found: found is BUDGET, monkeypatch)

    def work(number: int) -> None:
        draw = Random(number)
        for _ in range(10):
            k = draw.randrange(5)
            np.testing.assert_array_equal(models[k].run(feed(20))["y"], wanted[k])

    run_in_threads(3, work)
    assert held < highest.nbytes <= budget_bytes
    rows = 2000
    while models[0].memory({"x": (rows, WIDTH)}).device_bytes <= budget_bytes:
        rows *= 2  # tests before this one held memory, and may have let it go meanwhile
    with pytest.raises(clrt.OutOfMemoryError, match="set_memory_budget leaves"):
        models[0].run(feed(rows))
    np.testing.assert_array_equal(models[0].run(feed(20))["y"], wanted[0])
    for model in models:
        model.close()


@DRIVERS
def test_lower_budget_frees_idle_memory(device: DeviceInfo, budget: None) -> None:
    with clrt.load(source(0), device=device.index) as model:
        wanted = model.run(feed(20))["y"]
        room = model._runner.room
        assert room.account.nbytes > 0
        clrt.set_memory_budget(BUDGET.nbytes - 1)
        assert room.account.nbytes < model.memory({"x": (20, WIDTH)}).device_bytes
        clrt.set_memory_budget("1GiB")
        np.testing.assert_array_equal(model.run(feed(20))["y"], wanted)


@DRIVERS
def test_device_tensors_count_against_budget(device: DeviceInfo, budget: None) -> None:
    clrt.set_memory_budget(BUDGET.nbytes + (1 << 20))
    kept = clrt.tensor(np.zeros(200_000, np.float32), device=device.index)
    with pytest.raises(clrt.OutOfMemoryError, match="set_memory_budget allows"):
        clrt.tensor(np.zeros(200_000, np.float32), device=device.index)
    del kept
    clrt.tensor(np.zeros(150_000, np.float32), device=device.index)


def test_invalid_memory_budget_is_refused() -> None:
    with pytest.raises(clrt.InputError, match="memory limit"):
        clrt.set_memory_budget("much")
