"""Recurrent ops of one sequence: accuracy of the gates, and launches that continue others."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ops.recurrent.lstm import LSTM
from clrt.ops.recurrent.rnn import RNN
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, plan_graph, run_plan, sample_graph, tolerance
from tests.ops.samples import Sample
from tests.ops.samples.recurrent.recurrent import sample_inputs

DEVICES = pytest.mark.parametrize(
    "device", [d for d in all_devices() if d.caps.is_cpu], ids=name_of
)


def sequence_launches(plan: Plan) -> int:
    return sum(x.kernel.entry == "recurrent_sequence" for x in launches_of(plan.steps))


@DEVICES
@pytest.mark.parametrize("name", ["Tanh", "Sigmoid"])
def test_gate_functions_are_accurate(name: str, device: DeviceInfo) -> None:
    if device.caps.simulator:
        pytest.skip("takes minutes")
    scales = np.geomspace(1e-3, 100, 60, dtype=np.float32)
    w = np.linspace(-1, 1, 128, dtype=np.float32)
    op = RNN(activations=(name,))
    r = np.zeros((1, 128, 128), np.float32)
    sample = Sample(op, (scales.reshape(-1, 1, 1), w.reshape(1, -1, 1), r))
    plan = plan_graph(sample_graph(sample), device.caps)
    assert sequence_launches(plan) == 1
    feeds = {f"x{i}": a for i, a in enumerate(sample.inputs) if a is not None}
    found = run_plan(plan, feeds, device)["y0"].reshape(60, 128)
    x = (scales[:, None] * w).astype(np.float64)
    if name == "Tanh":
        expected = np.tanh(x)
        limit = 5 * np.spacing(np.abs(expected).astype(np.float32))
    else:
        expected, limit = 1 / (1 + np.exp(-x)), np.float32(2e-7)
    assert (np.abs(found - expected) <= limit).all()


@DEVICES
def test_sequence_continues_in_later_launches(device: DeviceInfo) -> None:
    op = LSTM(direction="bidirectional")
    sample = Sample(op, sample_inputs(LSTM, (300, 1, 4, 33), op, (True, False, False, True, True)))
    graph = sample_graph(sample)
    plan = plan_graph(graph, device.caps, {"launch_mflop": 1, "T_VW": 8})
    assert sequence_launches(plan) > 2
    feeds = {f"x{i}": a for i, a in enumerate(sample.inputs) if a is not None}
    results = run_plan(plan, feeds, device).values()
    for found, expected in zip(results, op.reference(*sample.inputs), strict=True):
        limit = tolerance(op, expected)
        np.testing.assert_allclose(found, expected, limit, limit)
