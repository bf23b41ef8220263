"""Cross-encoders and sparse encoders: compiled models, ONNX files, invalid input."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clrt
from clrt.cli.convert import app
from clrt.errors import InputError, ModelError, UnsupportedError
from tests.models.text_folders import PAIRS, TEXTS, make_folder, sparse_files

LABELS = "ForSequenceClassification"


def convert(*arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        app(list(arguments))
    assert not end.value.code


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[clrt.CrossEncoder]:
    folder = make_folder(tmp_path_factory.mktemp("r") / "m", head=LABELS, labels=1)
    with clrt.CrossEncoder(folder, device="cpu", strict=True) as made:
        yield made


@pytest.mark.parametrize("suffix", ["clrt", pytest.param("onnx", marks=pytest.mark.slow)])
def test_converted_cross_encoder_matches_original(tmp_path: Path, suffix: str) -> None:
    whole = {"config_sentence_transformers.json": {"activation_fn": "torch.nn.Tanh"}}
    folder = make_folder(tmp_path / "model", head=LABELS, labels=1, files=whole)
    target = folder / f"model.{suffix}" if suffix == "onnx" else tmp_path / "model.clrt"
    convert(str(folder), "-o", str(target), *(["--to", "onnx"] if suffix == "onnx" else []))
    with clrt.CrossEncoder(folder, device="cpu") as plain:
        wanted = plain.predict(PAIRS)
    with clrt.CrossEncoder(target, device="cpu") as made:
        np.testing.assert_allclose(made.predict(PAIRS), wanted, atol=1e-5)
    if suffix == "clrt":
        with pytest.raises(
            ModelError, match=r"not a SentenceEncoder; open it with clrt\.CrossEncoder"
        ):
            clrt.SentenceEncoder(target)


def test_converted_sparse_encoder_matches_original(tmp_path: Path) -> None:
    files = sparse_files("sum", "relu")
    folder = make_folder(tmp_path / "model", head="ForMaskedLM", files=files)
    convert(str(folder), "-o", str(tmp_path / "model.clrt"))
    with clrt.SparseEncoder(folder, device="cpu") as plain:
        wanted = plain.encode(TEXTS)
    with clrt.SparseEncoder(tmp_path / "model.clrt", device="cpu") as made:
        np.testing.assert_allclose(made.encode(TEXTS), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("a text", "Pair 0 is not two strings but 'a text'"),
        (7, "not int"),
        ([("a", "b"), ("c",)], "Pair 1 is not two strings"),
        ([("a", 3)], "Pair 0 is not two strings"),
        ([["a", "b", "c"]], "Pair 0 is not two strings"),
    ],
)
def test_invalid_text_pairs_are_refused(
    ranker: clrt.CrossEncoder, pairs: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ranker.predict(pairs)


def test_predict_accepts_lists_arrays_and_iterators(ranker: clrt.CrossEncoder) -> None:
    wanted = ranker.predict(PAIRS)
    for given in ([list(p) for p in PAIRS], np.array(PAIRS), iter(PAIRS)):
        np.testing.assert_allclose(ranker.predict(given), wanted, atol=1e-6)
    assert ranker.predict([]).shape == (0,)
    assert ranker.rank("a", []) == []
    logits = ranker.predict(PAIRS, activation_fn="identity")
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), wanted, atol=1e-6)
    doubled = ranker.predict(PAIRS, activation_fn=lambda scores: 2 * scores)
    np.testing.assert_allclose(doubled, 2 * logits, atol=1e-6)


def test_unknown_cross_encoder_activation_is_refused(tmp_path: Path) -> None:
    whole = {"config_sentence_transformers.json": {"activation_fn": "own.code.Act"}}
    folder = make_folder(tmp_path / "model", head=LABELS, files=whole)
    with pytest.raises(UnsupportedError, match=r"'own\.code\.Act'; clrt supports identity"):
        clrt.CrossEncoder(folder)
    with clrt.CrossEncoder(folder, activation_fn="softmax", device="cpu") as model:
        np.testing.assert_allclose(model.predict(PAIRS).sum(axis=1), 1, rtol=1e-5)
        with pytest.raises(InputError, match="5 scores cannot rank"):
            model.rank("a", ["b"])
    with pytest.raises(InputError, match="num_labels=2 differs from the model's 5"):
        clrt.CrossEncoder(folder, activation_fn="softmax", num_labels=2)


@pytest.mark.slow
def test_symbolic_output_dims_resolve_to_label_count(tmp_path: Path) -> None:
    """Exporters leave output dims symbolic."""
    models = {LABELS: clrt.CrossEncoder, "ForMaskedLM": clrt.SparseEncoder}
    for head, kind in models.items():
        folder = make_folder(tmp_path / head, head=head)
        convert(str(folder), "-o", str(folder / "model.onnx"), "--to", "onnx")
        proto = onnx.load(folder / "model.onnx")
        for output in proto.graph.output:
            output.type.tensor_type.shape.dim[-1].dim_param = f"{output.name}_size"
        onnx.save(proto, folder / "model.onnx")
        with kind(folder, device="cpu") as made:
            size = made.num_labels if isinstance(made, clrt.CrossEncoder) else made.dimension
            assert size == (5 if head == LABELS else 30)


def test_pickles_and_copies_keep_changed_settings(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model", head=LABELS, labels=1)
    with clrt.CrossEncoder(folder, device="cpu") as ranker:
        ranker.max_length = 9
        again = pickle.loads(pickle.dumps(ranker))
        assert again.max_seq_length == 9
        np.testing.assert_array_equal(again.predict(PAIRS), ranker.predict(PAIRS))
        again.close()
    encoder = clrt.SentenceEncoder(path=make_folder(tmp_path / "other"), device="cpu")
    encoder.prompts["query"], encoder.truncate_dim = "the old ", 3
    encoder.similarity_fn_name = "manhattan"
    twin = copy.copy(encoder)
    assert (twin.similarity_fn_name, twin.dimension) == ("manhattan", 3)
    np.testing.assert_array_equal(twin.encode_query(TEXTS), encoder.encode_query(TEXTS))
