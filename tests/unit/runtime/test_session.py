"""Buffers in the host's memory, and what a run leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ops.pointwise import Add
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.executor import BoundPlan, Enqueue, Slabs, Weights
from clrt.runtime.session import Session, session_for
from tests.harness import all_devices, plan_graph

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def doubling(session: Session) -> BoundPlan:
    """x + x, for ten numbers."""
    x, y = (Value(n, TensorType(DType.FLOAT32, (10,))) for n in "xy")
    plan = plan_graph(Graph("g", [x], [y], [Node("n", Add(), [x, x], [y])]), session.device.caps)
    return BoundPlan(plan, session, Weights(session), Slabs(session), frozenset())


@DEVICES
def test_a_cpu_computes_in_the_hosts_memory(device: DeviceInfo) -> None:
    session = session_for(device)
    buffer = session.upload(np.arange(5, dtype=np.int32))
    assert session.shares_memory == (buffer.host is not None) == device.caps.is_cpu
    if buffer.host is not None:
        buffer.host.view(np.int32)[0] = 7
    read = np.empty(5, np.int32)
    cl.enqueue_copy(session.queue, read, buffer)
    assert read.tolist() == [7 if device.caps.is_cpu else 0, 1, 2, 3, 4]


@DEVICES
@pytest.mark.parametrize("shares", [True, False])
def test_results_do_not_depend_on_it(
    device: DeviceInfo, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_for(device)
    monkeypatch.setitem(session.__dict__, "shares_memory", shares and session.shares_memory)
    bound = doubling(session)
    for start in range(3):
        x = np.arange(start, start + 10, dtype=np.float32)
        result = bound.run({"x": x}, {"y": False})["y"]
        assert isinstance(result, np.ndarray)
        assert result.tolist() == (x + x).tolist()
    kept = bound.run({"x": x}, {"y": True})["y"]
    again = bound.run({"x": kept}, {"y": False})["y"]
    assert isinstance(again, np.ndarray)
    assert again.tolist() == (4 * x).tolist()


@DEVICES
def test_an_interrupted_run_leaves_nothing_in_the_queue(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run writes where the kernels of this one may still read."""
    session = session_for(device)
    bound, x = doubling(session), np.ones(10, np.float32)
    bound.run({"x": x}, {"y": False})
    events: list[Any] = []

    def interrupt(self: BoundPlan) -> None:
        (step,) = self._steps
        assert isinstance(step, Enqueue)
        queue = self.session.queue
        events.append(
            cl.enqueue_nd_range_kernel(queue, step.kernel, step.global_size, step.local_size)
        )
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BoundPlan, "_run_steps", interrupt)
        bound.run({"x": x}, {"y": False})
    (event,) = events
    assert event.command_execution_status == cl.command_execution_status.COMPLETE
    result = bound.run({"x": 3 * x}, {"y": False})["y"]
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [6.0] * 10


@DEVICES
def test_the_pool_does_not_grow_with_each_length(device: DeviceInfo) -> None:
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
def test_programs_go_to_the_folder_that_was_asked_for(device: DeviceInfo, tmp_path: Path) -> None:
    own, default = session_for(device, tmp_path), session_for(device)
    assert own.programs.folder == tmp_path != default.programs.folder
    assert own.queue is default.queue
