"""Winograd convolutions that transform weights while reading them, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ops.conv import winograd
from clrt.ops.conv.channels_last import ChannelsLastConv
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import run_graph, sample_graph
from tests.ops.samples import Sample
from tests.ops.test_ops import DEVICES, SMALL, feeds_of

rng = np.random.default_rng(5)


def _normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@DEVICES
@pytest.mark.parametrize(
    ("pads", "image", "weights"),
    [
        ((0, 0, 0, 0), (2, 14, 13, 17), (19, 17, 3, 3)),
        ((1, 2, 0, 1), (1, 13, 11, 16), (24, 16, 3, 3)),
    ],
)
def test_winograd_conv_matches_reference(
    pads: tuple[int, ...],
    image: tuple[int, ...],
    weights: tuple[int, ...],
    device: DeviceInfo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Partial tiles, panels and channel chunks; small tiles, as in other tests."""
    if not device.caps.is_cpu:
        pytest.skip("a kernel for CPUs")
    costs = winograd.WinogradCosts(much_kib=0, share_of_maps=1)
    monkeypatch.setattr(winograd, "device_thresholds", lambda group, caps: costs)
    inputs = (_normal(*image), _normal(*weights), _normal(weights[0]))
    sample = Sample(ChannelsLastConv(pads=pads), inputs)
    graph = sample_graph(sample)
    (expected,) = sample.op.reference(*inputs)
    for tunables in (None, SMALL["winograd_cpu"]):
        if device.caps.simulator and tunables is None:
            continue
        found, plan = run_graph(graph, feeds_of(sample), device, tunables)
        (launch,) = launches_of(plan.steps)
        assert launch.kernel.entry == "winograd_cpu" and launch.kernel.has("S_FEW_TILES")
        (result,) = found.values()
        np.testing.assert_allclose(result, expected, atol=1e-5 * np.abs(expected).max())
