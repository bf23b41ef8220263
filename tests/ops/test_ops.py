"""Every op of the registry: each sample on each device, through a plan, against its reference."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.op import Array
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.runtime.devices import DeviceInfo
from tests.harness import all_devices, run_graph, sample_graph, tolerance

CLASSES = sorted(REGISTRY.classes.values(), key=lambda c: (c.domain, c.name))
ON_DEVICE = [c for c in CLASSES if c.variants and not c.view]


def _check(name: str, actual: Array, expected: Array, limit: float) -> None:
    assert actual.dtype == expected.dtype, name
    assert actual.shape == expected.shape, name
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        return
    np.testing.assert_allclose(actual, expected, rtol=0, atol=limit, err_msg=name)


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("cls", ON_DEVICE, ids=lambda c: c.name)
def test_kernel_matches_reference(cls: type[Op], device: DeviceInfo) -> None:
    samples = list(cls.samples())
    assert samples, f"{cls.name} has kernels but no samples"
    for number, sample in enumerate(samples):
        graph = sample_graph(sample)
        feeds = {
            f"x{i}": np.asarray(a, order="C")
            for i, a in enumerate(sample.inputs)
            if a is not None and i not in cls.host_inputs
        }
        assert isinstance(sample.op, Op)
        expected = sample.op.reference(*sample.inputs)
        results, plan = run_graph(graph, feeds, device)
        assert not plan.host_steps, f"sample {number} {sample.op}: {plan.host_steps}"
        for array, (name, actual) in zip(expected, results.items(), strict=False):
            _check(
                f"sample {number} {sample.op} {name}", actual, array, tolerance(sample.op, array)
            )


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.name)
def test_error_samples_are_refused(cls: type[Op]) -> None:
    for sample, error in cls.error_samples():
        with pytest.raises(error):
            sample_graph(sample)
