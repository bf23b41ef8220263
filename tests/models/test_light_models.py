"""Light models of the onnx package, whose nodes generate the weights, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.backend.test
import pytest

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP
from tests.models.oracle import outputs_of, session_of

FILES = sorted((Path(onnx.backend.test.__file__).parent / "data" / "light").glob("*.onnx"))


def test_light_models_are_all_present() -> None:
    names = {f.stem.removeprefix("light_") for f in FILES}
    assert names >= {
        "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
        "squeezenet", "vgg19", "zfnet512",
    }  # fmt: skip


def _expected(path: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns inputs and ONNX Runtime's outputs; its weights, up to 550 MB, are freed."""
    session = session_of(path)
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in i.shape]).astype("f4")
        for i in session.get_inputs()
    }
    return feeds, outputs_of(session, feeds)


# These have 250 to 550 MB of weights, in the file's graph and as the device's.
LARGE = (pytest.mark.slow, pytest.mark.memory(2400))
LARGE_NAMES = {"light_bvlc_alexnet", "light_vgg19", "light_zfnet512"}


@SWEEP
@pytest.mark.parametrize(
    "path",
    [pytest.param(f, marks=LARGE if f.stem in LARGE_NAMES else (), id=f.stem) for f in FILES],
)
def test_light_model_matches_onnxruntime(path: Path, device: DeviceInfo) -> None:
    feeds, expected = _expected(path)
    with clrt.load(path, device=device.index, strict=True) as model:
        found = model.run(feeds)
        assert not model.host_nodes
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-3, atol=1e-7)
