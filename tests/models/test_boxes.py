"""NonMaxSuppression in models, on the device and on the host, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.ir.op import Array
from clrt.plan.steps import DeviceStep
from clrt.runtime.opencl.devices import DeviceInfo
from tests.models.onnx_text import DEVICES, parsed

MODEL = """g (float[b, n, 4] boxes, float[b, c, n] scores{more}) => (int64[k, 3] kept)
<int64[1] most = {{{most}}}, float[1] overlap = {{0.4}}, float[1] least = {{0.3}}>
{{ kept = NonMaxSuppression(boxes, scores, most, {overlap}, least) }}"""


def _feeds(boxes: int, classes: int) -> dict[str, Array]:
    """Returns random boxes and scores, many overlapping, in an image of 100 x 100 pixels."""
    rng = np.random.default_rng(boxes)
    low = rng.uniform(0, 80, (2, boxes, 2))
    corners = np.concatenate([low, low + rng.uniform(5, 20, low.shape)], 2)
    scores = rng.uniform(0, 1, (2, classes, boxes))
    return {"boxes": corners.astype(np.float32), "scores": scores.astype(np.float32)}


@DEVICES
@pytest.mark.parametrize("most", [7, 2**31 - 1])
def test_non_max_suppression_matches_onnxruntime(device: DeviceInfo, most: int) -> None:
    source = parsed(MODEL.format(more="", most=most, overlap="overlap"))
    other = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    with clrt.load(source, device=device.index) as model:
        for boxes, classes in ((300, 3), (1, 1), (40, 7)):
            feeds = _feeds(boxes, classes)
            (wanted,) = other.run(None, feeds)
            np.testing.assert_array_equal(model.run(feeds)["kept"], wanted)
        plans = [stage.plan for stage in model._runner.planner.kept.values()]
        names = {s.node.op.name for p in plans for s in p.steps if isinstance(s, DeviceStep)}
        assert "BestBoxes" in names


@DEVICES
def test_non_max_suppression_on_host_matches_onnxruntime(device: DeviceInfo) -> None:
    """The host runs computed thresholds, and box counts too large for one work-item."""
    source = parsed(MODEL.format(more=", float[1] given", most=9, overlap="given"))
    feeds = {**_feeds(50, 2), "given": np.array([0.2], np.float32)}
    other = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    with clrt.load(source, device=device.index) as model:
        np.testing.assert_array_equal(model.run(feeds)["kept"], other.run(None, feeds)[0])
    source = parsed(MODEL.format(more="", most=2**40, overlap="overlap"))
    feeds = {k: v[:1, :, :] for k, v in _feeds(12_000, 1).items()}
    other = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    with clrt.load(source, device=device.index) as model:
        np.testing.assert_array_equal(model.run(feeds)["kept"], other.run(None, feeds)[0])


@DEVICES
def test_mismatched_boxes_and_scores_are_refused(device: DeviceInfo) -> None:
    source = parsed(MODEL.format(more="", most=9, overlap="overlap"))
    feeds = {**_feeds(50, 2), "scores": np.zeros((2, 2, 49), np.float32)}
    with (
        clrt.load(source, device=device.index) as model,
        pytest.raises(clrt.ClrtError, match="49"),
    ):
        model.run(feeds)
