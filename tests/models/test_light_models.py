"""The networks in the onnx package, whose weights are made by their nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.backend.test
import onnxruntime
import pytest

import clrt
from clrt.runtime.devices import DeviceInfo
from tests.harness import all_devices

FILES = sorted((Path(onnx.backend.test.__file__).parent / "data" / "light").glob("*.onnx"))
DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def test_all_are_there() -> None:
    names = {f.stem.removeprefix("light_") for f in FILES}
    assert names >= {
        "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
        "squeezenet", "vgg19", "zfnet512",
    }  # fmt: skip


@DEVICES
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_agrees_with_onnxruntime(path: Path, device: DeviceInfo) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in i.shape]).astype("f4")
        for i in session.get_inputs()
    }
    with clrt.load(path, device=device.index, strict=True) as model:
        found = model.run(feeds)
        assert not model.host_nodes
    for result, expected in zip(found.values(), session.run(None, feeds), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-7)
