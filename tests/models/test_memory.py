"""Memory estimates, limits, and recovery from failed allocations."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.ledger import Ledger
from clrt.runtime.opencl.session import DeviceSession
from tests.models.fixtures import load_family
from tests.models.oracle import text_feeds

NAMES = ["input_ids", "attention_mask"]
# What fits, what does not.
SMALL, LARGE = (1, 8), (64, 64)


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    return load_family("distilbert_dynamo20")


@pytest.fixture
def model(proto: onnx.ModelProto) -> Iterator[clrt.Model]:
    with clrt.load(proto, device="cpu", strict=True) as loaded:
        yield loaded


def _feeds(shape: tuple[int, int]) -> dict[str, Array]:
    return text_feeds(NAMES, *shape, True, 200)


def _shapes(shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(NAMES, shape)


def _gemv(opset: int = 17) -> onnx.ModelProto:
    """Returns a model with every weight form: quantized, plain, index, constant output."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((33, 40)).astype(np.float32),
        "q": rng.integers(-8, 8, (40, 17)).astype(np.int8),
        "s": np.float32(0.1),
        "z": np.int8(0),
        "table": rng.standard_normal((7, 3)).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("DynamicQuantizeLinear", ["h"], ["hq", "hs", "hz"]),
        node("MatMulInteger", ["hq", "q", "hz", "z"], ["y"]),
        node("Gather", ["table", "i"], ["g"]),
        node("Identity", ["s"], ["c"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, ["b", 33]), info("i", TensorProto.INT64, ["n"])],
        [
            info("y", TensorProto.INT32, ["b", 17]),
            info("g", TensorProto.FLOAT, ["n", 3]),
            info("c", TensorProto.FLOAT, []),
        ],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _growth(model: clrt.Model, feeds: dict[str, Array]) -> int:
    """Returns the growth of device memory by a run, in bytes."""
    gc.collect()
    session = model._session
    before = session.allocated_bytes
    model.run(feeds)
    return session.allocated_bytes - before


def test_memory_estimate_matches_allocation(model: clrt.Model) -> None:
    said = model.memory(_shapes((3, 17)))
    assert _growth(model, _feeds((3, 17))) == said.device_bytes
    assert said.total_bytes - said.device_bytes == 2 * 3 * 17 * 8 + 3 * 17 * 32 * 4


def test_memory_estimate_counts_every_weight_form() -> None:
    feeds = {"x": np.ones((5, 33), np.float32), "i": np.array([1, 6, 0])}
    with clrt.load(_gemv(), device="cpu", strict=True) as model:
        said = model.memory({n: a.shape for n, a in feeds.items()})
        assert _growth(model, feeds) == said.device_bytes
        held = model._runner.room.weights.nbytes
    assert held == said.weights_bytes


def test_best_batch_size_is_largest_that_fits(model: clrt.Model) -> None:
    limit = model.memory(_shapes((21, 16))).device_bytes
    batch = model.best_batch_size(_shapes((3, 16)), limit)
    assert batch >= 21
    assert model.memory(_shapes((batch, 16))).device_bytes <= limit
    assert model.memory(_shapes((batch + 1, 16))).device_bytes > limit
    with pytest.raises(clrt.OutOfMemoryError, match="Not even a batch of 1"):
        model.best_batch_size(_shapes((3, 16)), "1KiB")


def test_memory_limit_refuses_before_allocation(proto: onnx.ModelProto) -> None:
    with clrt.load(proto, device="cpu", strict=True) as free:
        limit = free.memory(_shapes((2, 16))).device_bytes
        wanted = free.run(_feeds(SMALL))["last_hidden_state"]
    with clrt.load(proto, device="cpu", strict=True, memory_limit=limit) as model:
        made = model._session.allocations
        with pytest.raises(clrt.OutOfMemoryError, match=r"needs .* arena .*memory_limit") as info:
            model.run(_feeds(LARGE))
        # The status words are part of a plan.
        assert model._session.allocations - made <= 1
        error = info.value
        assert error.needed_bytes == model.memory(_shapes(LARGE)).device_bytes
        assert error.available_bytes == limit
        # The arena holds more at 64 tokens than at 16, so perhaps nothing fits.
        fitting = error.fitting_batch
        assert fitting is None or model.memory(_shapes((fitting, 64))).device_bytes <= limit
        np.testing.assert_array_equal(model.run(_feeds(SMALL))["last_hidden_state"], wanted)


def test_allocation_limit_error_names_fitting_batch(model: clrt.Model) -> None:
    caps = replace(model.device.caps, max_alloc_bytes=256 << 10)
    model._runner.planner.caps = caps
    with pytest.raises(clrt.OutOfMemoryError, match=r"at once.* A batch of \d+ would fit") as info:
        model.run(_feeds((80, 80)))
    fitting = info.value.fitting_batch
    assert fitting is not None
    assert info.value.available_bytes == 256 << 10
    model.run(_feeds((fitting, 80)))
    with pytest.raises(clrt.OutOfMemoryError):
        model.run(_feeds((fitting + 1, 80)))


def test_older_shapes_are_evicted_within_memory_limit(proto: onnx.ModelProto) -> None:
    with clrt.load(proto, device="cpu", strict=True) as free:
        limit = max(free.memory(_shapes(s)).device_bytes for s in ((1, 80), (40, 2)))
    with clrt.load(proto, device="cpu", strict=True, memory_limit=limit) as model:
        before = model._session.allocated_bytes
        for shape in ((1, 80), (40, 2), (7, 3), (1, 80)):
            model.run(_feeds(shape))
            assert model._session.allocated_bytes - before <= limit


def test_model_runs_after_device_allocation_failure(
    model: clrt.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = model.run(_feeds(SMALL))["last_hidden_state"]
    session, allocate = model._session, DeviceSession.allocate
    room = session.allocated_bytes + 4096

    def refuse(self: DeviceSession, nbytes: int, account: Ledger | None = None) -> object:
        if self.allocated_bytes + nbytes > room:
            raise self.guard.translated(MemoryError(), nbytes)
        return allocate(self, nbytes, account)

    monkeypatch.setattr(DeviceSession, "allocate", refuse)
    for _ in range(2):
        with pytest.raises(clrt.OutOfMemoryError, match="Running input_ids=64x64") as info:
            model.run(_feeds(LARGE))
        assert "not enough memory for 2.5 MiB" in str(info.value)
        assert info.value.needed_bytes == model.memory(_shapes(LARGE)).device_bytes
        np.testing.assert_array_equal(model.run(_feeds(SMALL))["last_hidden_state"], wanted)


def test_invalid_memory_limits_are_refused(proto: onnx.ModelProto) -> None:
    for bad in ("many", "-1GiB", 0, "nan"):
        with pytest.raises(clrt.InputError, match="memory limit"):
            clrt.load(proto, device="cpu", memory_limit=bad)
    with clrt.load(proto, device="cpu", memory_limit="1.5 GiB") as model:
        assert model.memory_limit == 3 << 29
        with pytest.raises(clrt.InputError, match="Missing input"):
            model.memory({"input_ids": (1, 4)})
