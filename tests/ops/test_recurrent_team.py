"""Recurrent steps shared by a team of work-items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clrt.ir.op import Array
from clrt.ops.recurrent.gru import GRU
from clrt.ops.recurrent.lstm import LSTM
from clrt.ops.recurrent.recurrent import Recurrent
from clrt.ops.recurrent.rnn import RNN
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, plan_graph, run_plan, sample_graph, tolerance
from tests.ops.samples import Sample, samples
from tests.ops.samples.recurrent.recurrent import sample_inputs

CPUS = [d for d in all_devices() if d.caps.is_cpu]
DEVICES = pytest.mark.parametrize("device", CPUS, ids=name_of)
CORES = 24  # enough for teams of several sequences, also on a simulator
CLASSES = (GRU, LSTM, RNN)
TILE = {"T_MR": 4, "T_VW": 16}


def shared_plan(sample: Sample, device: DeviceInfo, part_kflop: int = 0) -> Plan:
    caps = replace(device.caps, kind="cpu", compute_units=CORES)
    return plan_graph(sample_graph(sample), caps, {"part_kflop": part_kflop, **TILE})


def has_team(plan: Plan) -> bool:
    return any(x.kernel.has("S_TEAM") for x in launches_of(plan.steps))


def feeds_of(sample: Sample) -> dict[str, Array]:
    return {f"x{i}": a for i, a in enumerate(sample.inputs) if a is not None}


def check(plan: Plan, sample: Sample, device: DeviceInfo) -> None:
    assert isinstance(sample.op, Recurrent)
    found = run_plan(plan, feeds_of(sample), device)
    for name, expected in zip(found, sample.op.reference(*sample.inputs), strict=False):
        limit = tolerance(sample.op, expected)
        np.testing.assert_allclose(found[name], expected, limit, limit)


def wide(cls: type[Recurrent]) -> Iterator[Sample]:
    """Returns samples with several state blocks, so that steps are shared, for each tile height."""
    for batch in (1, 2, 3, 5):
        direction = "forward" if batch < 3 else "bidirectional"
        op = cls(direction=direction, **({"linear_before_reset": 1} if cls is GRU else {}))
        yield Sample(op, sample_inputs(cls, (5, batch, 3, 51), op, (True,) * 5))


@pytest.mark.lengthy
@DEVICES
@pytest.mark.parametrize("cls", CLASSES)
def test_recurrent_team_matches_reference(cls: type[Recurrent], device: DeviceInfo) -> None:
    teams = 0
    for sample in (*samples(cls), *wide(cls)):
        first = sample.inputs[0]
        assert first is not None
        if first.dtype == np.float32:
            plan = shared_plan(sample, device)
            teams += has_team(plan)
            check(plan, sample, device)
    assert teams >= 4


def test_small_recurrent_steps_have_no_team() -> None:
    (sample, *_) = wide(GRU)
    device = all_devices()[0]
    assert not has_team(shared_plan(sample, device, 100))


@DEVICES
def test_recurrent_team_runs_are_bit_identical(device: DeviceInfo) -> None:
    if device.caps.simulator:
        pytest.skip("its work-groups run one after the other")
    op = LSTM(direction="forward")
    sample = Sample(op, sample_inputs(LSTM, (64, 1, 8, 200), op, (True, False, True, True, True)))
    plan = shared_plan(sample, device)
    feeds = feeds_of(sample)
    first = run_plan(plan, feeds, device)
    for _ in range(20):
        again = run_plan(plan, feeds, device)
        assert all((again[name] == first[name]).all() for name in first)
