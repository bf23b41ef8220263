"""Peak compute and bandwidth measurement, and traffic of launches."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyopencl as cl
import pytest

from clrt.ir.dtypes import DType
from clrt.kernels.spec import BufferArg, KernelSpec, Launch, Scratch
from clrt.ops.recurrent.lstm import LSTM
from clrt.plan.steps import DeviceStep
from clrt.plan.traffic import accessed_bytes, traffic
from clrt.runtime.opencl import peaks
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.peaks import PeakProbe, Peaks, cached_work
from clrt.runtime.opencl.session import session_for
from tests.harness import all_devices, plan_graph, sample_graph
from tests.ops.samples import Sample
from tests.ops.samples.recurrent.recurrent import sample_inputs

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def test_first_launch_is_excluded_from_peak_measurement() -> None:
    """Drivers may compile during the first launch, longer than the measurement itself."""
    calls: list[float] = []

    def enqueue() -> None:
        calls.append(0.05 if not calls else 0.0)
        time.sleep(calls[-1])

    session = cast(Any, SimpleNamespace(queue=SimpleNamespace(finish=lambda: None)))
    speed = peaks._speed(session, PeakProbe(enqueue, 10**6, ()), 0.01)
    assert len(calls) > peaks._TURNS
    assert speed > 1e-9 * 10**6 / 0.01


def test_bandwidth_peak_depends_on_cache_level() -> None:
    found = Peaks(100, 10, ((1 << 15, 400.0), (1 << 20, 100.0), (1 << 27, 12.0)))
    sizes = (0, 1 << 15, (1 << 20) - 1, 1 << 20, 1 << 26, 1 << 30)
    assert [found.gbs_of(n) for n in sizes] == [400, 400, 400, 100, 100, 12]
    assert Peaks(100, 10).gbs_of(64) == 10


@DEVICES
def test_cached_bandwidth_probe_reads_all_bytes(device: DeviceInfo) -> None:
    """Upper bound: four 64-byte vectors per core and cycle at 6 GHz."""
    session = session_for(device, None)
    most = 4 * 64 * 6 * device.caps.compute_units
    for nbytes in (1 << 15, 1 << 19):
        for probe in cached_work(session, nbytes):
            assert 0 < peaks._speed(session, probe, 0.01) < most
    found = np.empty((1 << 15) // 16, np.float32)
    add = cached_work(session, 1 << 15)[2]
    add.enqueue()
    cl.enqueue_copy(session.queue, found, add.buffers[-1])
    np.testing.assert_array_equal(found, np.full_like(found, 2))


def test_lstm_step_traffic_counts_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LSTM, "variants", LSTM.variants[1:])  # those of a launch for each step
    op = LSTM()
    sample = Sample(op, sample_inputs(LSTM, (32, 2, 8, 16), op, (False,) * 5))
    plan = plan_graph(sample_graph(sample), all_devices()[0].caps)
    (step,) = (s for s in plan.steps if isinstance(s, DeviceStep))
    moved = [traffic(step.nodes, x) for x in step.launches if x.kernel.entry == "lstm"]
    assert len(moved) == 32
    state = 2 * 16 * 4
    # Its part of Y and the last Y_h and Y_c; its part of the inputs' sums, and those of the states.
    assert all(m.written == 3 * state and m.scratch == 2 * 4 * state for m in moved)


def test_touched_bytes_are_capped_at_buffer_size() -> None:
    memory = Scratch(10, DType.FLOAT32)
    spec = KernelSpec("x.cl", "x")
    for parts, nbytes in (((4, 3), 28), ((4, None), 40), ((8, 8), 40), ((None, 4), 40)):
        args = tuple(BufferArg(memory, 0, elems) for elems in parts)
        assert accessed_bytes(Launch(spec, (1,), None, args)) == {memory: nbytes}
