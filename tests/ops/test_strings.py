"""String ops that ONNX's node tests barely cover, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.errors import ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.ir.text import print_graph
from clrt.models.sources import read_graph

STRING = TensorProto.STRING
TEXTS = np.array(
    ["", "a", "ab ab", "a,b c", "aab  éb_9 12", "abab", "x y xx", "\tab\nc", "日本 語", "aaaa a"],
    object,
)


def _model(op: str, domain: str, made: int, **attrs: Any) -> bytes:
    node = helper.make_node(op, ["x"], ["y"], "n", domain=domain, **attrs)
    infos = [[helper.make_tensor_value_info(n, t, None)] for n, t in (("x", STRING), ("y", made))]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", *infos)
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def _tokenizer(**attrs: Any) -> bytes:
    attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#", **attrs}
    return _model("Tokenizer", "com.microsoft", STRING, **attrs)


def _agree(model: bytes, *feeds: Array) -> None:
    session = onnxruntime.InferenceSession(model)
    with clrt.load(model) as ours:
        for x in feeds:
            (expected,) = session.run(None, {"x": x})
            found = ours.run(x)["y"]
            assert found.shape == expected.shape
            assert found.tolist() == expected.tolist()


@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
@pytest.mark.parametrize(
    "tokens",
    [
        *(
            {"tokenexp": e}
            for e in (".", "..", "[a-z]+", r"\w+", r"\b\w\w+\b", r"\pL+", "a*", "[^ ]+")
        ),
        # RE2 takes the longest of alternatives.
        *({"tokenexp": e} for e in ("[a-z]|[a-z0-9]+", "(ab|a)b?", "a+?", "x|", "[[:alpha:]]+")),
        *({"separators": s} for s in ([" "], [""], [",", " "], ["b", "a"], ["[[:punct:]]"])),
        *({"separators": s} for s in ([r"\s+"], ["a|ab"], ["x*"], ["", "a"], ["^a"])),
    ],
    ids=str,
)
def test_tokenizer_matches_onnxruntime(tokens: dict[str, Any]) -> None:
    for marked, least in ((0, 1), (1, 1), (1, 2)):
        if least == 1 or (tokens.get("tokenexp") != "." and tokens.get("separators") != [""]):
            model = _tokenizer(mark=marked, mincharnum=least, **tokens)
            _agree(model, TEXTS, TEXTS.reshape(2, 5), TEXTS[:1])


@pytest.mark.parametrize(
    ("attrs", "error"),
    [
        ({}, ModelError),
        ({"tokenexp": "a", "mincharnum": 0}, ModelError),
        ({"tokenexp": ".", "mincharnum": 2}, ModelError),
        ({"tokenexp": r"(a)\1"}, UnsupportedError),
        ({"tokenexp": "(?u)a"}, UnsupportedError),
        ({"separators": ["("]}, UnsupportedError),
    ],
)
def test_invalid_tokenizers_are_refused(attrs: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="Tokenizer 'n'"):
        clrt.load(_tokenizer(**attrs))


@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
@pytest.mark.parametrize(
    "pattern", [r"\w+", r"\d+", r"[^\w]", "[[:alpha:]]+", "[a[:digit:]-]+", "(?i)É", "a|ab"]
)
def test_regex_character_classes_are_ascii(pattern: str) -> None:
    texts = np.array(["abc", "é", "12", "١٢", "a-1", "É", "ab", ""], object)
    _agree(_model("RegexFullMatch", "", TensorProto.BOOL, pattern=pattern), texts)


@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
@pytest.mark.parametrize("action", ["NONE", "LOWER", "UPPER"])
def test_string_normalizer_case_change_is_letter_by_letter(action: str) -> None:
    """Accents are kept, as in ONNX Runtime with locale C.UTF-8, which not all systems have."""
    texts = np.array(["Straße", "ΣΑΣ", "İ", "ŉ", "e\u0301", "É", "stop", "Stop"], object)
    model = _model(
        "StringNormalizer", "", STRING, case_change_action=action, stopwords=["sTOP", "é"]
    )
    expected = {
        "NONE": ["Straße", "ΣΑΣ", "İ", "ŉ", "e\u0301"],
        "LOWER": ["straße", "σασ", "i", "ŉ", "e\u0301"],
        "UPPER": ["STRAßE", "ΣΑΣ", "İ", "ŉ", "E\u0301"],
    }
    with clrt.load(model) as ours:
        assert ours.run(texts)["y"].tolist() == expected[action]


@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
def test_wrong_declared_string_shape_is_ignored() -> None:
    """Converters of text pipelines declare wrong shapes; ONNX Runtime only warns."""
    nodes = [
        helper.make_node("StringNormalizer", ["x"], ["a"], case_change_action="LOWER", locale="C"),
        helper.make_node("Identity", ["a"], ["y"]),
        helper.make_node("Shape", ["a"], ["size"]),
    ]
    infos = [
        [helper.make_tensor_value_info("x", STRING, [None])],
        [
            helper.make_tensor_value_info("y", STRING, [1]),
            helper.make_tensor_value_info("size", TensorProto.INT64, [1]),
        ],
    ]
    graph = helper.make_graph(nodes, "g", *infos)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    assert 'locale="C"' in print_graph(read_graph(model))
    with clrt.load(model) as ours:
        for size in (3, 1, 0):
            found = ours.run(np.array(["A", "B", "C"][:size]))
            assert found["y"].tolist() == ["a", "b", "c"][:size]
            assert found["size"].tolist() == [size]
