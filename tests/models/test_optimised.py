"""Transformers fused by ONNX Runtime's optimizer, in float32 and float16."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import pytest
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions

import clrt
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices
from tests.models.fixtures import load_family
from tests.models.oracle import expected, relative_error, text_feeds

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
# The model, what the optimizer calls its kind, and ops of com.microsoft that must come of it.
MODELS = [
    ("bert_torchscript17", "bert", {"SkipLayerNormalization"}),
    ("roberta_classifier_torchscript17", "bert", {"SkipLayerNormalization"}),
    ("distilbert_torchscript17", "bert", {"SkipLayerNormalization"}),
    ("gpt2_torchscript17", "gpt2", {"SkipLayerNormalization"}),
]


@cache
def _optimised(name: str, kind: str, half: bool) -> onnx.ModelProto:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(load_family(name), path)
        model = optimizer.optimize_model(
            str(path), kind, optimization_options=FusionOptions(kind), opt_level=0
        )
        if half:
            model.convert_float_to_float16(keep_io_types=True)
        return model.model


def _feeds(proto: onnx.ModelProto, batch: int, sequence: int) -> dict[str, Array]:
    return text_feeds([i.name for i in proto.graph.input], batch, sequence, True, 200)


@DEVICES
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize(("name", "kind", "ops"), MODELS, ids=[m[0] for m in MODELS])
def test_onnxruntime_optimized_model_matches_onnxruntime(
    name: str, kind: str, ops: set[str], half: bool, device: DeviceInfo
) -> None:
    proto = _optimised(name, kind, half)
    assert {n.op_type for n in proto.graph.node if n.domain == "com.microsoft"} >= ops
    with clrt.load(proto, device=device.index, strict=True) as model:
        for shape in ((1, 1), (2, 16), (3, 37)):
            feeds = _feeds(proto, *shape)
            wanted = expected(proto, feeds)
            for key, found in model.run(feeds).items():
                limit = 1e-2 if half else 1e-4
                assert relative_error(found, wanted[key]) <= limit, (key, shape)
