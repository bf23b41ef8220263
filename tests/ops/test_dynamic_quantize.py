"""DynamicQuantizeLinear planned for GPUs, with more work-items than parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clrt.ops.pointwise.dynamic_quantize_linear import DynamicQuantizeLinear
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, plan_graph, run_plan, sample_graph, tolerance
from tests.ops.samples import samples
from tests.ops.test_ops import check, feeds_of


@pytest.mark.parametrize("device", all_devices(), ids=name_of)
def test_dynamic_quantize_linear_gpu_plan_matches_reference(device: DeviceInfo) -> None:
    kernels = set[str]()
    for sample in samples(DynamicQuantizeLinear):
        plan = plan_graph(sample_graph(sample), replace(device.caps, kind="gpu"))
        kernels |= {x.kernel.entry for x in launches_of(plan.steps)}
        found = run_plan(plan, feeds_of(sample), device).values()
        assert isinstance(sample.op, DynamicQuantizeLinear)
        for actual, expected in zip(found, sample.op.reference(*sample.inputs), strict=True):
            check(str(sample.op), actual, expected, tolerance(sample.op, expected))
    assert kernels == {"dynamic_quantize_linear", "range_parts"}
