"""sentence-transformers arguments: accepted, ignored with a log message, or refused."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.text import SentenceEncoder
from clrt.text.quantize import quantize_embeddings
from clrt.text.sentence_transformers_compat import device_name
from clrt.text.similarity import cos_sim, dot_score, manhattan_sim
from clrt.text.sparse_vectors import SparseVectors
from clrt.text.torch_interop import similarity_array
from tests.unit.text import tiny
from tests.unit.text.fakes import Loader
from tests.unit.text.test_sentence_encoder import TEXTS, folder, loader

__all__ = ["folder", "loader"]  # fixtures


def test_irrelevant_arguments_are_ignored_and_logged(
    folder: Path, loader: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "clrt"):
        encoder = SentenceEncoder(folder, trust_remote_code=True, revision=None, backend="torch")
        found = encoder.encode("a b", chunk_size=3, num_workers=0)
    assert "SentenceEncoder ignores trust_remote_code=True" in caplog.text
    assert "encode ignores chunk_size=3" in caplog.text
    assert "revision" not in caplog.text
    np.testing.assert_array_equal(found, encoder.encode(sentences="a b"))


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"trust_remote_cod": True}, TypeError, "unexpected keyword argument 'trust_remote_cod'"),
        ({"model_kwargs": {"file_name": "x.onnx"}}, InputError, "give the path of 'x.onnx'"),
        ({"config_kwargs": {"layers": 1}}, UnsupportedError, "layers; write it into the file"),
        ({"similarity_fn_name": "angle"}, InputError, "'angle' is not one of cosine, dot"),
        ({"default_prompt_name": "x"}, InputError, "no prompt 'x'; the model has 'query', 'doc"),
        ({"device": "cuda:1"}, InputError, "'cuda:1' has a torch device number"),
    ],
)
def test_unsupported_constructor_arguments_are_refused(
    folder: Path, loader: Loader, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        SentenceEncoder(folder, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt_name": "x"}, "no prompt 'x'"),
        ({"prompt_name": 7}, "no prompt 7"),
        ({"precision": "int4"}, "'int4' is not one of float32, int8"),
        ({"precision": "int8"}, "One vector does not determine ranges"),
    ],
)
def test_unsupported_encode_arguments_are_refused(
    folder: Path, loader: Loader, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        SentenceEncoder(folder).encode("a", **options)
    with pytest.raises(TypeError, match="'batchsize'"):
        SentenceEncoder(folder).encode("a", batchsize=3)


def test_torch_device_names_are_mapped() -> None:
    given = (None, 1, "cpu", "cpu:0", "cuda", "cuda:0", "mps", "Intel")
    assert [*map(device_name, given)] == [None, 1, "cpu", "cpu", "gpu", "gpu", "gpu", "Intel"]


def test_tensor_output_requires_torch(
    folder: Path, loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for options in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
        with pytest.raises(InputError, match="needs torch, which is not installed"):
            SentenceEncoder(folder).encode("a", **options)


def test_progress_callback_reports_and_cancels(folder: Path, loader: Loader) -> None:
    told: list[tuple[int, int]] = []
    encoder = SentenceEncoder(folder)
    encoder.encode(TEXTS, batch_size=2, progress=lambda *done: told.append(done))
    assert told == [(2, 5), (4, 5), (5, 5)]

    def cancel(done: int, total: int) -> None:
        raise clrt.CancelledError(f"{done} of {total}")

    runs = len(loader.transformer.feeds)
    with pytest.raises(clrt.CancelledError, match="2 of 5"):
        encoder.encode(TEXTS, batch_size=2, progress=cancel)
    assert len(loader.transformer.feeds) == runs + 1


def test_max_seq_length_is_settable(folder: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(folder)
    encoder.max_seq_length = 4
    assert (encoder.max_length, encoder.get_max_seq_length()) == (4, 4)
    assert encoder.tokenize(["a b c d"])["input_ids"].tolist() == [
        [tiny.CLS, tiny.A, tiny.B, tiny.SEP]
    ]
    with pytest.raises(InputError, match="max_length=0 is out of range"):
        encoder.max_seq_length = 0


def test_single_similarity_converts_to_float() -> None:
    one = cos_sim([1.0, 0.0], [[1.0, 1.0]])
    assert one.shape == (1, 1)
    assert float(one) == pytest.approx(0.5**0.5)
    assert type(one.cpu().detach().numpy()) is np.ndarray


def test_torch_functions_accept_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "clrt.text.torch_interop.to_tensor", lambda array: ("tensor", array.tolist())
    )
    scores = similarity_array(np.arange(2))
    found = type(scores).__torch_function__(lambda *a, **k: (a, k), (), (scores, 3), {"x": scores})
    assert found == ((("tensor", [0, 1]), 3), {"x": ("tensor", [0, 1])})


def test_mismatched_similarity_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="of 2 and 3 numbers differ"):
        dot_score(np.ones((1, 2)), np.ones((4, 3)))
    with pytest.raises(InputError, match="must be numbers"):
        cos_sim(["a"], ["b"])
    with pytest.raises(InputError, match="not of shape"):
        cos_sim(np.ones((1, 2, 3)), np.ones(3))
    with pytest.raises(InputError, match="already quantised"):
        quantize_embeddings(np.ones((2, 8), np.int8), "int8")


def test_sparse_vectors_match_dense_array() -> None:
    dense = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    dense[dense < 0.8] = 0
    dense[2] = 0
    rows = SparseVectors.of(dense)
    np.testing.assert_array_equal(rows, dense)
    np.testing.assert_array_equal(rows[1:4], dense[1:4])
    np.testing.assert_array_equal(rows[-1].to_dense(), dense[-1])
    assert rows[0].to_dict() == {int(i): float(dense[0, i]) for i in dense[0].nonzero()[0]}
    for function in (cos_sim, dot_score, manhattan_sim):
        wanted = function(dense, dense[:2])
        for left in (rows, dense):
            np.testing.assert_allclose(function(left, rows[:2]), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="has no rows"):
        rows[0][0]


def test_sparse_model_error_names_sparse_encoder(folder: Path, loader: Loader) -> None:
    places = [("", "Transformer"), ("1", "SpladePooling")]
    modules = [f'{{"path": "{p}", "type": "sentence_transformers.models.{k}"}}' for p, k in places]
    (folder / "modules.json").write_text(f"[{', '.join(modules)}]")
    with pytest.raises(UnsupportedError, match=r"open it by clrt\.SparseEncoder"):
        SentenceEncoder(folder)
    with pytest.raises(UnsupportedError, match=r"open it by clrt\.SparseEncoder"):
        clrt.CrossEncoder(folder)


def test_cross_encoder_refuses_model_without_logits(folder: Path, loader: Loader) -> None:
    (folder / "modules.json").unlink()
    with pytest.raises(ModelError, match=r"\[batch, labels\]; it has last_hidden_state\. Take a"):
        clrt.CrossEncoder(folder)
