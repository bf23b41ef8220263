"""Samples of every op in float64, against the references."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from clrt.errors import ShapeError
from clrt.ops.base import Op
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP, plan_graph, quick_device, run_graph, sample_graph, tolerance
from tests.ops.samples import Sample, samples
from tests.ops.test_ops import DEVICES, ON_DEVICE, WHOLE, check, feeds_of


def _in_float64(sample: Sample) -> Sample | None:
    """Returns the sample with float64 for float32; None if it has other floats or rounds."""
    floats = {a.dtype.name for a in sample.inputs if a is not None and a.dtype.kind in "fV"}
    if floats != {"float32"} or getattr(sample.op, "a_bits", 0):
        return None
    wide = (
        a.astype(np.float64) if a is not None and a.dtype.kind == "f" else a for a in sample.inputs
    )
    return Sample(sample.op, tuple(wide))


# Ops of images, and those of passes and normalisations: float64 runs on the host.
ON_HOST = {
    "AveragePool", "BatchNormalization", "ChannelsLastAveragePool", "ChannelsLastConv",
    "ChannelsLastGroupNormalization", "ChannelsLastMaxPool", "Col2Im", "ConvTranspose",
    "CouplePairs", "DeformConv", "Det",
    "FusedAttention", "GlobalAveragePool", "GlobalMaxPool", "GridSample",
    "GroupNormalization", "InstanceNormalization", "Inverse", "LayerNormalization",
    "LpNormalization", "LpPool", "MaxPool", "MaxRoiPool", "QuantizeLinear", "RMSNormalization",
    "Resize", "RoiAlign", "RoundToScale",
}  # fmt: skip
# Its inputs have one dtype each.
ONLY_FLOAT32 = {
    "BestBoxes", "CacheStates", "ChannelsLastQuantizedConv", "DynamicQuantizeLinear",
    "DynamicQuantizeLSTM", "PagedAttention", "QuantizedMatMul", "ResizeImage", "RotateAndCache",
    "RoundedMatMul", "RoutedMatMul", "SampleTokens",
}  # fmt: skip
FLOATS = [c for c in ON_DEVICE if c.name not in ONLY_FLOAT32 and any(map(_in_float64, samples(c)))]


@SWEEP
@pytest.mark.parametrize("cls", FLOATS, ids=lambda c: c.name)
def test_float64_op_matches_reference(cls: type[Op], device: DeviceInfo) -> None:
    if not device.caps.has_fp64:
        pytest.skip("the device has no float64")
    ran = 0
    for number, sample in enumerate(map(_in_float64, samples(cls))):
        if sample is None:
            continue
        try:
            graph = sample_graph(sample)
        except ShapeError:  # other operands have to be float32 as well: literals, scales
            continue
        assert isinstance(sample.op, Op)
        if device is not quick_device() and ran >= WHOLE and number % 4:
            continue
        expected = sample.op.reference(*sample.inputs)
        results, _ = run_graph(graph, feeds_of(sample), device)
        ran += 1
        for array, (name, actual) in zip(expected, results.items(), strict=False):
            check(f"sample {number} {sample.op} {name}", actual, array, tolerance(sample.op, array))
    assert ran


@DEVICES
@pytest.mark.parametrize("cls", [c for c in FLOATS if c.name not in ON_HOST], ids=lambda c: c.name)
def test_float64_sample_has_kernel(cls: type[Op], device: DeviceInfo) -> None:
    if not device.caps.has_fp64:
        pytest.skip("the device has no float64")
    for sample in map(_in_float64, samples(cls)):
        if sample is None:
            continue
        with suppress(ShapeError):
            assert not plan_graph(sample_graph(sample), device.caps).host_steps, sample.op
