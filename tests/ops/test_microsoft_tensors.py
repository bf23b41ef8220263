"""Tensor, image and text ops of com.microsoft, and removed ops of ai.onnx, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.errors import ClrtError, InputError, ModelError, ShapeError, UnsupportedError
from clrt.ir.op import Array
from clrt.models.onnx.export.exporter import export_model
from clrt.models.onnx.importer import import_model
from clrt.ops import REGISTRY
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP
from tests.ops.test_microsoft_quantised import Case, check

RNG = np.random.default_rng(23)
HOST_TOO = pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
TEXTS = np.array(["Hello, World  x", "a", "", "日本 b,c"])


def _x(*shape: int, dtype: type = np.float32) -> Array:
    return np.asarray(RNG.standard_normal(shape), dtype)


def _ints(high: int, *shape: int, dtype: type = np.int64) -> Array:
    return np.asarray(RNG.integers(0, high, shape), dtype)


def _case(op: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Case:
    return Case(op, inputs, (), outputs, attrs)


def _old(op: str, *inputs: Any, **attrs: Any) -> Case:
    return replace(_case(op, *inputs, **attrs), domain="", opset=9)


def _experimental() -> list[Case]:
    image = _x(2, 3, 6, 7)
    starts, ends = np.array([1, -3]), np.array([-1, 1000])
    return [
        _old("Affine", _x(2, 3), alpha=2.0, beta=3.0),
        _old("Affine", _x(5)),
        _old("Scale", _x(2, 3), scale=0.5),
        _old("ImageScaler", image, bias=[1.0, 2.0, 3.0], scale=2.0),
        replace(_old("ImageScaler", image, bias=[1.0, 2.0, 3.0]), symbolic=True),
        _old("Crop", image, border=[1, 2, 0, 1]),
        _old("Crop", image, border=[1, 2, 0, 1], scale=[2, 3]),
        _old("ParametricSoftplus", 30 * _x(4, 5), alpha=2.0, beta=0.5),
        _old("ScaledTanh", _x(4, 5), alpha=2.0, beta=0.5),
        *(
            replace(_old("MeanVarianceNormalization", image, **attrs), opset=8)
            for attrs in ({}, {"across_channels": 1}, {"normalize_variance": 0})
        ),
        _old("DynamicSlice", _x(4, 5), starts, ends),
        _old("DynamicSlice", _x(4, 5), *(np.array(v, np.int32) for v in ([1, 0], [3, 99], [1, 0]))),
    ]


def _distances() -> list[Case]:
    wide = (_x(5, 3, dtype=np.float64), _x(4, 3, dtype=np.float64))
    return [
        _case("CDist", _x(5, 3), _x(4, 3)),
        _case("CDist", *wide, metric="euclidean"),
        _case("CDist", _x(0, 3), _x(2, 3)),
        _case("Inverse", _x(2, 3, 4, 4) + 4 * np.eye(4, dtype=np.float32)),
        _case("Inverse", _x(3, 3, dtype=np.float64)),
    ]


def _moved() -> list[Case]:
    x, pads = _x(3, 7, 4), np.array([1, 0, -1, 2])
    return [
        _case("SampleOp", x),
        *(Case("ExpandDims", (x, np.array(a, np.int32)), (1,)) for a in (0, -1, [2])),
        _case("UnfoldTensor", x, size=3, dim=1, step=2),
        replace(_case("UnfoldTensor", x, size=4), symbolic=True),
        _case("Trilu", x, upper=0),
        _case("Trilu", x, np.array(1)),
        _case("GatherND", x, np.array([[0, 1], [2, -3]], np.int32)),
        _case("GridSample", _x(1, 2, 4, 5), _x(1, 3, 2, 2), mode="bicubic", align_corners=1),
        _case("GridSample", _x(1, 2, 4, 5), _x(1, 3, 2, 2), padding_mode="border"),
        _case("Pad", x[0, :3], pads[None], np.array([2.5], np.float32)),
        _case("Pad", x[0, :3], abs(pads), mode="reflect"),
        _case("Range", np.array([1], np.int16), np.array(9, np.int16), np.array([3], np.int16)),
        _case("Range", np.array(1.5, np.float32), np.array([7], np.float32)),
        _case("Unique", np.array([2, 1, 1, 3, 4, 3], np.float32), outputs=3),
    ]


def _images() -> list[Case]:
    x, w, bias, pads = _x(1, 3, 5, 6), _x(3, 4, 3, 3), _x(4), np.array([1, 0, 2, 1])
    op, more = "ConvTransposeWithDynamicPads", {"strides": [2, 2], "output_padding": [1, 0]}
    mask = np.ones((1, 1, 6, 7), np.int32)
    mask[..., 4:], mask[:, :, 3, 2:] = 0, 0
    regions = np.array(
        [[0, 0, 1, 1], [0.1, 0.2, 0.7, 0.9], [-0.5, 0, 1.2, 0.5], [0.9, 0.8, 0.2, 0.1]], np.float32
    )
    owners = np.array([0, 1, 1, 0], np.int32)
    crops = [
        Case("CropAndResize", (_x(2, 3, 6, 7), regions, owners, size), (3,), 1,
             {"mode": mode, "extrapolation_value": 2.5})
        for mode in ("bilinear", "nearest")
        for size in np.array([[3, 4], [1, 5], [1, 1]], np.int32)
    ]  # fmt: skip
    return [
        _case(op, x, w, pads, bias),
        Case(op, (x, w, pads), (2,), 1, {**more, "auto_pad": "VALID"}, symbolic=True),
        _case(op, x, w, pads, strides=[2, 2], auto_pad="SAME_UPPER"),
        _case("MaxpoolWithMask", _x(2, 3, 6, 7), mask, kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
        _case("MaxpoolWithMask", _x(2, 3, 7), mask[:, :, 0], kernel_shape=[3], strides=[2]),
        _case("NhwcMaxPool", _ints(255, 1, 6, 7, 3, dtype=np.uint8), kernel_shape=[2, 3]),
        *crops,
        replace(crops[0], constant=(), symbolic=True),
    ]


def _words() -> list[Case]:
    ids = _ints(9, 7, 10, dtype=np.int32)
    ids[:, 0] = 1
    ids[2, 5:], ids[3, 1:] = 0, 0
    return [
        _case("WordConvEmbedding", ids, _x(5, 1, 3, 4), _x(5), _x(9, 4), embedding_size=5),
        replace(_case("WordConvEmbedding", ids, _x(5, 1, 1, 4), _x(5), _x(9, 4)), symbolic=True),
    ]


def _exact() -> list[Case]:
    """Returns ops that select elements, or that run on the host."""
    token = {"mark": 0, "mincharnum": 1, "pad_value": "#"}
    tokens: list[dict[str, Any]] = [
        {"separators": [" "]}, {"separators": [" ", ","], "mark": 1}, {"separators": [""]},
        {"tokenexp": ".", "mark": 1}, {"tokenexp": "[a-z]*", "mincharnum": 2},
        {"separators": ["l", "lo", ","], "mincharnum": 2}, {"separators": [r"\b", "x?"]},
        {"tokenexp": "b$|el|ell", "pad_value": ""}, {"tokenexp": r"\w+"}, {"separators": ["^H"]},
        {"tokenexp": "[0-9]", "mark": 1},
    ]  # fmt: skip
    source, scores = np.array([1, 2, 3, 4, 2, 3]), _x(3, 8)
    ends = [None, *(np.array(v) for v in ([3, 4, 2, 9, 9], [3, 4, 2, 3, 9], [2, 3, 4, 2, 3]))]
    return [
        *(_case("NGramRepeatBlock", _ints(4, 3, 6), scores, ngram_size=n) for n in (1, 2, 3, 6)),
        replace(_case("NGramRepeatBlock", _ints(4, 3, 2), scores, ngram_size=3), symbolic=True),
        *(_case("Tokenizer", TEXTS, **{**token, **more}) for more in tokens),
        replace(_case("Tokenizer", TEXTS[None], **token, separators=[","]), symbolic=True),
        *(
            _case("MurmurHash3", np.array([[0, 1, 77]], dtype), seed=7, positive=positive)
            for dtype in (np.int32, np.uint64, np.float32, np.float64)
            for positive in (0, 1)
        ),
        _case("MurmurHash3", TEXTS),
        _case("ExpandDims", TEXTS, np.array(-1, np.int32)),
        *(_case("DynamicTimeWarping", _x(*shape)) for shape in ((5, 7), (1, 6, 4), (1, 1))),
        _case("DynamicTimeWarping", _ints(3, 8, 12).astype(np.float32)),
        *(
            _case("BifurcationDetector", source, np.array(t), np.array(2), end, outputs=2, **size)
            for t in ([0, 1, 2], [2, 3], [9], [4, 2, 3], [3, 4, 2])
            for end in ends
            for size in ({}, {"min_ngram_size": 2, "max_ngram_size": 2})
        ),
    ]  # fmt: skip


def _recurrent() -> list[Case]:
    """Returns AttnLSTM of three rows and four steps, with a memory of five."""

    def case(directions: int = 1, layer: int = 0, **more: Any) -> Case:
        given = {name: more.pop(name, None) for name in ("lengths", "state", "peephole", "seen")}
        d, states = directions, [_x(directions, 3, 6) for _ in range(2)]
        inputs = [
            _x(4, 3, 5), 0.5 * _x(d, 24, 5 + (layer or 8)), 0.5 * _x(d, 24, 6), _x(d, 48),
            given["lengths"], *(states if given["state"] else (None, None)),
            _x(d, 18) if given["peephole"] else None,
            _x(d, 6, 7), _x(d, 8, 7), _x(d, 7), _x(3, 5, 8), given["seen"],
            _x(d, 14, layer) if layer else None,
        ]  # fmt: skip
        weights = [i for i in (1, 2, 3, 7, 8, 9, 10, 13) if inputs[i] is not None]
        return Case("AttnLSTM", inputs, weights, 3, {"hidden_size": 6, **more})

    lengths, seen = np.array([2, 4, 1], np.int32), np.array([5, 2, 1], np.int32)
    functions = ["HardSigmoid", "LeakyRelu", "Softsign", "Sigmoid", "LeakyRelu", "Tanh"]
    return [
        case(),
        case(layer=9, peephole=True, clip=0.5, input_forget=1),
        case(layer=3, lengths=lengths, state=True, seen=seen, direction="reverse"),
        case(
            2, 3, lengths=lengths, direction="bidirectional", activations=functions,
            activation_alpha=[0.3, 0.1, 0.25], activation_beta=[0.4],
        ),
    ]  # fmt: skip


CASES = [*_experimental(), *_distances(), *_moved(), *_images(), *_words(), *_recurrent()]


@SWEEP
@HOST_TOO
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.op)
def test_microsoft_tensor_op_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    check(case, device, 1e-4)


def _run(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


_TOKENS = {"mark": 0, "mincharnum": 1, "pad_value": ""}


@pytest.mark.parametrize(
    ("case", "error", "text"),
    [
        (_case("CDist", _x(2, 3), _x(2, 3), metric="cosine"), UnsupportedError, "metric 'cosine'"),
        (_case("Inverse", _x(2, 3)), ShapeError, "not a stack of square matrices"),
        (_case("NGramRepeatBlock", _ints(4, 1, 2), _x(1, 4), ngram_size=0), ModelError, "is 0"),
        (_case("Tokenizer", TEXTS, **_TOKENS), ModelError, "one of separators and"),
        (
            _case("Tokenizer", TEXTS, **_TOKENS | {"mincharnum": 0}, separators=[" "]),
            ModelError,
            "mincharnum 0",
        ),
        (_case("Tokenizer", TEXTS, **_TOKENS, tokenexp="("), UnsupportedError, r"pattern '\('"),
        (_old("Crop", _x(1, 1, 4, 4), border=[3, 0, 2, 0]), ShapeError, "cropped by more"),
        (
            _old("Crop", _x(1, 1, 4, 4), border=[3]),
            ModelError,
            "attributes or inputs are not valid",
        ),
        (_old("DynamicSlice", _x(4)), ModelError, "1 input; expected 3 or 4"),
        (_case("AttnLSTM", _x(4, 3, 5), hidden_size=6), ModelError, "lacks its input 1"),
    ],
    ids=lambda v: v.op if isinstance(v, Case) else "",
)
def test_invalid_microsoft_tensor_op_is_refused_at_load(
    case: Case, error: type[ClrtError], text: str
) -> None:
    model, _ = case.model()
    with pytest.raises(error, match=f"{case.op}.*{text}"):
        clrt.load(model)


@HOST_TOO
def test_invalid_microsoft_tensor_op_data_is_refused_at_run() -> None:
    source, tokens = np.array([1, 2, 3]), np.array([0])
    crop = np.array([[0, 0, 1, 1]], np.float32), np.array([2], np.int32), np.array([2, 2], np.int32)
    cases = [
        (
            _case("BifurcationDetector", source, tokens, np.array(5), source, outputs=2),
            "position 5",
        ),
        (_case("CropAndResize", _x(2, 1, 3, 3), *crop), "an index .* is 2; allowed"),
        (_case("NGramRepeatBlock", _ints(1, 1, 3) + 7, _x(1, 4), ngram_size=1), "an index .* is"),
    ]
    for case, text in cases:
        model, feeds = case.model()
        with clrt.load(model) as loaded, pytest.raises(InputError, match=f"{case.op}.*{text}"):
            loaded.run(feeds)


def test_inverse_of_singular_matrix_is_not_finite() -> None:
    model, feeds = _case("Inverse", np.ones((2, 3, 3), np.float32)).model()
    with clrt.load(model) as loaded:
        (found,) = loaded.run(feeds).values()
    op = REGISTRY.get("com.microsoft", "Inverse")()
    assert not np.isfinite(found).all() and np.isnan(op.reference(*feeds.values())[0]).all()


@HOST_TOO
@pytest.mark.parametrize("case", _exact(), ids=lambda c: c.op)
def test_exported_microsoft_op_equals_onnxruntime(case: Case) -> None:
    """Results are equal; the node is exported unchanged, with its defaults."""
    model, feeds = case.model()
    expected = _run(model.SerializeToString(), feeds)
    with clrt.load(model) as loaded:
        found = loaded.run(feeds).values()
    exported = export_model(import_model(model)).SerializeToString()
    for arrays in (found, _run(exported, feeds)):
        for actual, wanted in zip(arrays, expected, strict=True):
            assert wanted.dtype in (actual.dtype, object)
            np.testing.assert_array_equal(actual, wanted)
