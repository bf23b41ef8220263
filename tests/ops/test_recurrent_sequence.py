"""Recurrent ops of one sequence: accuracy of the gates, and launches that continue others."""

from __future__ import annotations

from dataclasses import replace

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
    scales = np.geomspace(1e-36, 100, 60, dtype=np.float32)
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


@DEVICES
def test_single_step_of_several_parts_is_no_sequence(device: DeviceInfo) -> None:
    # Kernel recurrent_sequence computes a direction per work-item: others would write past y.
    op, noise = RNN(), np.random.default_rng(4)
    x, w = np.zeros((1, 1, 0), np.float32), np.zeros((1, 32, 0), np.float32)
    r, hidden = (noise.standard_normal((1, n, 32)).astype(np.float32) for n in (32, 1))
    sample = Sample(op, (x, w, r, None, None, hidden))
    caps = replace(device.caps, compute_units=4)
    plan = plan_graph(sample_graph(sample), caps, {"part_kflop": 1})
    (steps,) = [x for x in launches_of(plan.steps) if x.kernel.entry.startswith("recurrent_")]
    assert steps.kernel.entry == "recurrent_steps" and steps.global_size == (2,)
    feeds = {f"x{i}": a for i, a in enumerate(sample.inputs) if a is not None}
    for found, expected in zip(
        run_plan(plan, feeds, device).values(), op.reference(*sample.inputs), strict=True
    ):
        limit = tolerance(op, expected)
        np.testing.assert_allclose(found, expected, limit, limit)
