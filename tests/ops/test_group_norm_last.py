"""Normalization with channels last in two launches, and normalizations of large images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.ir.op import ElementwiseInstruction
from clrt.ops.norm.group_normalization import GroupNormalization
from clrt.ops.norm.group_normalization_last import ChannelsLastGroupNormalization
from clrt.ops.pointwise.table import Relu
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, plan_graph, run_plan, sample_graph, tolerance
from tests.ops.samples import Sample

CPUS = [d for d in all_devices() if d.caps.is_cpu]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("device", CPUS, ids=name_of)
def test_large_norm_of_few_groups_is_two_launches(device: DeviceInfo, batch: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((batch, 37, 5, 20)).astype(np.float32) + 1
    affine = rng.uniform(0.5, 2, (2, 20)).astype(np.float32)
    op = ChannelsLastGroupNormalization(1, steps=(ElementwiseInstruction(Relu(), (0,)),))
    sample = Sample(op, (x, affine[0], affine[1]))
    caps = replace(device.caps, compute_units=8)
    assert len(launches_of(plan_graph(sample_graph(sample), caps).steps)) == 1
    plan = plan_graph(sample_graph(sample), caps, {"apply_kelems": 0})
    assert len(launches_of(plan.steps)) == 2
    feeds = {f"x{i}": a for i, a in enumerate(sample.inputs) if a is not None}
    (found,) = run_plan(plan, feeds, device).values()
    (expected,) = op.reference(*sample.inputs)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(op, expected))


@pytest.mark.parametrize("device", CPUS, ids=name_of)
def test_flat_channels_of_large_image_stay_flat(device: DeviceInfo) -> None:
    """Means of 2^18 positions must be exact to about 1e-4: the variance is 0, so epsilon scales.

    With T_VW 4, 21 channels are a block of four vectors, a vector, and one channel.
    """
    if device.caps.simulator:
        pytest.skip("takes minutes")
    x = np.full((1, 1 << 18, 21), 1.1, np.float32)
    affine = np.ones(21, np.float32), np.zeros(21, np.float32)
    op = ChannelsLastGroupNormalization(21)
    plan = plan_graph(sample_graph(Sample(op, (x, *affine))), device.caps, {"T_VW": 4})
    (found,) = run_plan(plan, {"x0": x, "x1": affine[0], "x2": affine[1]}, device).values()
    worst = np.abs(found).max(axis=(0, 1))
    assert (worst < 0.03).all(), worst


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("device", CPUS, ids=name_of)
def test_flat_channels_first_of_large_image_stay_flat(device: DeviceInfo, kind: str) -> None:
    if device.caps.simulator:
        pytest.skip("takes minutes")
    x, affine = np.full((1, 2, 1 << 20), 1.1, np.float32), np.float32([[1, 1], [0, 0]])
    sample = Sample(GroupNormalization(2), (x, affine[0], affine[1]))
    plan = plan_graph(sample_graph(sample), replace(device.caps, kind=kind))
    (found,) = run_plan(plan, {"x0": x, "x1": affine[0], "x2": affine[1]}, device).values()
    assert np.abs(found).max() < 0.03
