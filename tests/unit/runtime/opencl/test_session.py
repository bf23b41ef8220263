"""Buffers in host memory, and state after interrupted or failed runs."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import DeviceError, OutOfMemoryError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ops.movement.gather import Gather
from clrt.ops.pointwise.table import Add
from clrt.runtime.execution.argument_patcher import BoundLaunch
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.session import DeviceSession, session_for
from clrt.runtime.opencl.weight_store import WeightStore
from tests.harness import all_devices, plan_graph

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def doubling(session: DeviceSession) -> BoundPlan:
    """Returns a bound plan of x + x for ten elements."""
    x, y = (Value(n, TensorType(DType.FLOAT32, (10,))) for n in "xy")
    plan = plan_graph(Graph("g", [x], [y], [Node("n", Add(), [x, x], [y])]), session.device.caps)
    return BoundPlan(
        plan,
        session,
        WeightStore(session),
        ArenaMemory(session),
        frozenset(),
        session.connection.lane,
    )


@pytest.fixture(autouse=True)
def _no_runs_left() -> Iterator[None]:
    """Ends interrupted runs, as models do, since other tests use the same connections."""
    yield
    for device in all_devices():
        for run in tuple(session_for(device).connection.in_flight):
            if isinstance(run, Execution):
                run.await_end()


def run(bound: BoundPlan, feeds: dict[str, Any], outputs: dict[str, bool]) -> dict[str, Any]:
    return Execution(bound, feeds, outputs).run()


@DEVICES
def test_cpu_buffers_share_host_memory(device: DeviceInfo) -> None:
    session = session_for(device)
    buffer = session.upload(np.arange(5, dtype=np.int32))
    assert session.shares_memory == (buffer.host is not None) == device.caps.is_cpu
    if buffer.host is not None:
        buffer.host.view(np.int32)[0] = 7
    read = np.empty(5, np.int32)
    cl.enqueue_copy(session.queue, read, buffer)
    assert read.tolist() == [7 if device.caps.is_cpu else 0, 1, 2, 3, 4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
class _ClearedMeanwhile(defaultdict[int, list[Any]]):
    """A pool that another thread clears after it was listed."""

    def items(self) -> Any:
        listed = list(super().items())
        self.clear()
        return listed


@DEVICES
def test_tensor_is_allocated_if_its_pool_is_cleared_meanwhile(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_for(device)
    pool = _ClearedMeanwhile(list)
    monkeypatch.setattr(session, "_idle", pool)
    first = session.tensor((256,), DType.FLOAT32)
    nbytes = first.buffer.nbytes
    del first
    gc.collect()
    assert pool[nbytes]
    assert session.tensor((256,), DType.FLOAT32).buffer.nbytes == nbytes


@DEVICES
def test_fork_runs_plan_or_is_refused_with_hint(device: DeviceInfo, tmp_path: Path) -> None:
    session, x = session_for(device), np.arange(10, dtype=np.float32)
    bound = doubling(session)
    run(bound, {"x": x}, {"y": False})

    def attempt(action: Callable[[], object]) -> str:
        try:
            action()
        except DeviceError as error:
            return str(error)
        return "done"

    answers = tmp_path / "answers"
    if (child := os.fork()) == 0:
        signal.alarm(20)  # ends a fork that waits forever
        actions = (lambda: run(bound, {"x": x}, {"y": False}), lambda: session_for(device))
        answers.write_text("\n".join(map(attempt, actions)))
        os._exit(0)
    os.waitpid(child, 0)
    refused = "stays-behind-in-forks" in device.caps.quirks
    for answer in answers.read_text().splitlines():
        assert ("multiprocessing's 'spawn'" in answer) if refused else (answer == "done")
    assert attempt(lambda: run(bound, {"x": x}, {"y": False})) == "done"


@DEVICES
@pytest.mark.parametrize("shares", [True, False])
def test_results_match_with_and_without_shared_memory(
    device: DeviceInfo, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_for(device)
    monkeypatch.setitem(session.__dict__, "shares_memory", shares and session.shares_memory)
    bound = doubling(session)
    for start in range(3):
        x = np.arange(start, start + 10, dtype=np.float32)
        result = run(bound, {"x": x}, {"y": False})["y"]
        assert isinstance(result, np.ndarray)
        assert result.tolist() == (x + x).tolist()
    kept = run(bound, {"x": x}, {"y": True})["y"]
    again = run(bound, {"x": kept}, {"y": False})["y"]
    assert isinstance(again, np.ndarray)
    assert again.tolist() == (4 * x).tolist()


@DEVICES
def test_interrupted_run_drains_queue(device: DeviceInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels still queued could read memory that the next run overwrites."""
    session = session_for(device)
    bound, x = doubling(session), np.ones(10, np.float32)
    run(bound, {"x": x}, {"y": False})
    events: list[Any] = []

    def interrupt(self: Execution) -> None:
        (step,) = self.bound.steps
        assert isinstance(step, BoundLaunch)
        queue = session.queue
        events.append(
            cl.enqueue_nd_range_kernel(queue, step.kernel, step.global_size, step.local_size)
        )
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Execution, "_enqueue", interrupt)
        run(bound, {"x": x}, {"y": False})
    (event,) = events
    assert event.command_execution_status == cl.command_execution_status.COMPLETE
    result = run(bound, {"x": 3 * x}, {"y": False})["y"]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [6.0] * 10


@DEVICES
def test_index_error_of_failed_run_does_not_affect_next_run(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_for(device)
    x, y = (Value(n, TensorType(DType.FLOAT32, (3,))) for n in "xy")
    indices = Value("i", TensorType(DType.INT64, (3,)))
    node = Node("n", Gather(), [x, indices], [y])
    plan = plan_graph(Graph("g", [x, indices], [y], [node]), session.device.caps)
    bound = BoundPlan(
        plan,
        session,
        WeightStore(session),
        ArenaMemory(session),
        frozenset(),
        session.connection.lane,
    )
    data = np.arange(3, dtype=np.float32)

    def interrupt(self: Execution) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Execution, "_wait", interrupt)
        run(bound, {"x": data, "i": np.array([0, 1, 7])}, {"y": False})
    result = run(bound, {"x": data, "i": np.array([2, 1, 0])}, {"y": False})["y"]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [2, 1, 0]


@DEVICES
@pytest.mark.parametrize(
    "code", [cl.status_code.OUT_OF_RESOURCES, cl.status_code.OUT_OF_HOST_MEMORY]
)
def test_out_of_resources_codes_raise_out_of_memory(
    device: DeviceInfo, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = doubling(session_for(device))

    def refuse(self: Execution) -> None:
        raise cl.RuntimeError(cl._cl._ErrorRecord("clFinish", code, ""))

    monkeypatch.setattr(Execution, "_enqueue", refuse)
    with pytest.raises(OutOfMemoryError, match="has not enough memory"):
        run(bound, {"x": np.ones(10, np.float32)}, {"y": False})


@DEVICES
def test_growing_arena_frees_old_memory(device: DeviceInfo) -> None:
    session = session_for(device)
    if not session.shares_memory:
        pytest.skip("the arena is not the host's memory")
    bound = doubling(session)
    run(bound, {"x": np.ones(10, np.float32)}, {"y": False})
    old = weakref.ref(bound.slabs.buffers[0].host.base)
    bound.slabs.reserve([1 << 20])
    gc.collect()
    assert old() is None


def test_default_local_size_respects_kernel_limit() -> None:
    class Kernel:
        def get_work_group_info(self, what: int, device: object) -> int:
            return 100

    session = session_for(all_devices()[0])
    bound = doubling(session)
    caps = replace(session.device.caps, kind="gpu")
    bound.session = replace(session, device=replace(session.device, caps=caps))
    assert bound._default_local_size(Kernel(), 1) == (64,)
    assert bound._default_local_size(Kernel(), 3) == (64, 1, 1)


@DEVICES
def test_buffer_pool_reuses_memory_across_lengths(device: DeviceInfo) -> None:
    session = session_for(device)
    session.trim()
    before = session.allocated_bytes
    for length in (*range(256, 0, -1), *range(1, 257)):
        tensor = session.tensor((8, length, 16), DType.FLOAT32)
        assert tensor.numpy().shape == (8, length, 16)
        del tensor
    assert session.allocated_bytes - before <= 2 * (8 * 256 * 16 * 4)
    session.trim()
    assert session.allocated_bytes == before


@DEVICES
def test_session_uses_requested_program_folder(device: DeviceInfo, tmp_path: Path) -> None:
    own, default = session_for(device, tmp_path), session_for(device)
    assert own.programs.folder == tmp_path != default.programs.folder
    assert own.queue is default.queue
