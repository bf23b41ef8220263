"""Regressions found by fuzzing: mutants that once crashed or raised unrelated errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, parser

import clrt
from clrt.errors import ClrtError, ModelError, ShapeError
from clrt.ops.base import Op
from clrt.ops.text.bifurcation_detector import BifurcationDetector
from tests.harness import all_devices
from tests.ops.samples import samples
from tests.security.made_up_inputs import made_up

_FOUND: dict[str, tuple[str, type[ClrtError], str]] = {
    "a loop without an end": (
        """(float[n] x) => (float[n] y) <bool yes = {1}> {
            y = Loop("", yes, x) <body = step (int64 i, bool c, float[n] h)
                => (bool c, float[n] more) { more = Neg(h) }>
        }""",
        ModelError,
        "it would never end",
    ),
    "a window with a stride too many": (
        """(float[1,1,9,9] x) => (float[1,1,k,l] y) {
            y = MaxPool<kernel_shape = [3, 3], strides = [1, 2, 3]>(x)
        }""",
        ShapeError,
        "MaxPool",
    ),
    "n-grams from a length far below 1": (
        """(int64[2,6] x) => (float[2,7] y) {
            y = TfIdfVectorizer<mode = "TF", min_gram_length = -2147483648, max_gram_length = 2,
                max_skip_count = 1, ngram_counts = [0, 4], ngram_indexes = [0, 1, 2, 3, 4, 5, 6],
                pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]>(x)
        }""",
        ClrtError,
        "",
    ),
    "n-grams from far before the pool": (
        """(int64[2,6] x) => (float[2,1] y) {
            y = TfIdfVectorizer<mode = "TF", min_gram_length = 1, max_gram_length = 1,
                max_skip_count = 0, ngram_counts = [-9223372036854775808], ngram_indexes = [0],
                pool_int64s = [2]>(x)
        }""",
        ModelError,
        "are not valid",
    ),
    "a transposed convolution with a stride of 2^30": (
        """(float[1,1,9] x) => (float[1,1,n] y) <float[1,1,3] w = {1, 1, 1}> {
            y = ConvTranspose<strides = [1073741824]>(x, w)
        }""",
        ShapeError,
        "more elements than a tensor may have",
    ),
    "a resize to 1,000,000,000 rows": (
        """(float[1,1,4,4] x) => (float[1,1,k,l] y)
            <float[8] roi = {0, 0, 0, 0, 1, 1, 1, 1}, int64[4] sizes = {1, 1, 1000000000, 1}> {
            y = Resize<coordinate_transformation_mode = "tf_crop_and_resize", mode = "linear">
                (x, roi, "", sizes)
        }""",
        ClrtError,
        "CLRT_HOST_LIMIT",
    ),
    "a loop of one iteration whose body does not fit its state": (
        """(float[0,2] h, float[1,2,2] x) => (float[a,2] g) {
            g = Scan<num_scan_inputs = 1, body = step (float[2,2] s, float[2,2] e)
                => (float[2,2] t) { t = Mul(s, e) }>(h, x)
        }""",
        ClrtError,
        "",
    ),
    "indices whose difference exceeds 64 bits": (
        """(float[3,4] x) => (float[3,2] y)
            <int64[2] i = {-9223372036854775808, 1073741823}> { y = Gather<axis = 1>(x, i) }""",
        ModelError,
        "an index in a constant",
    ),
    "n-grams of 2^62 tokens": (
        """(int64[2,6] x, float[2,9] s) => (float[2,9] y) {
            y = com.microsoft.NGramRepeatBlock<ngram_size = 4611686018427387904>(x, s)
        }""",
        ModelError,
        "ngram_size",
    ),
    "a padding value without elements": (
        "(float[3] x, float[0] v) => (float[6] y) <int64[2] p = {2, 1}> { y = Pad(x, p, v) }",
        ShapeError,
        "expected one element",
    ),
    "an image made of nothing": (
        """(float[1,1,4,0] x) => (float[1,1,8,8] y) <int64[4] s = {1, 1, 8, 8}> {
            y = Resize(x, "", "", s)
        }""",
        ShapeError,
        "has no elements, and cannot be resized",
    ),
    "levels without their scale": (
        "(float[n] x) => (uint8[n] y) { y = DynamicQuantizeLinear(x) }",
        ClrtError,
        "",
    ),
    "a scan of nothing": (
        """(float[2] s, float[3,2] x) => (float[2] y, float[k,2] z) {
            y, z = Scan<num_scan_inputs = 0, body = step (float[2] a, float[2] b)
                => (float[2] c, float[2] d) { c = Add(a, b) d = Identity(c) }>(s, x)
        }""",
        ModelError,
        "num_scan_inputs is 0",
    ),
    "logic of floats": (
        "(float[n] x) => (bool[n] y) { y = Xor(x, x) }",
        ShapeError,
        "does not support floats",
    ),
    "bits of floats": ("(float[n] x) => (float[n] y) { y = BitwiseNot(x) }", ShapeError, "floats"),
    "random numbers of a size below 0": (
        "(float[n] x) => (float[k,l] y) { y = RandomUniform<shape = [-1, 2]>() }",
        ShapeError,
        "has a size below 0",
    ),
}


@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
@pytest.mark.parametrize("name", _FOUND)
def test_mutant_regression_runs_or_raises_expected_error(name: str) -> None:
    text, error, match = _FOUND[name]
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> main {text}'
    )
    for device in all_devices():
        try:
            with clrt.load(model, device=device.index) as loaded:
                loaded.run(made_up(loaded))
        except error as found:
            assert match in str(found)
        else:
            assert not match, "it ran"


def test_external_data_with_long_name_is_refused(tmp_path: Path) -> None:
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]>
        main (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"""
    )
    tensor = model.graph.initializer[0]
    del tensor.float_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="x" * 100_000)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="does not exist"):
        clrt.load(tmp_path / "m.onnx")


def test_bifurcation_detector_clamps_negative_ngram_length() -> None:
    sample = next(samples(BifurcationDetector))
    assert isinstance(sample.op, Op)
    op = BifurcationDetector(3, -(1 << 63))
    for found, wanted in zip(
        op.reference(*sample.inputs), sample.op.run_reference(*sample.inputs), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
