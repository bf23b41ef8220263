"""Order, batches, prompts, options and errors of `encode`, with a fake transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clrt.errors import InputError, ModelError
from clrt.ir.dtypes import DType
from clrt.text import SentenceEncoder, pooling, text_model
from clrt.text.feeds import batch_spans
from tests.unit.text import tiny
from tests.unit.text.fakes import HIDDEN, INPUTS, TABLE, FakeModel, FakeTransformer, Loader

Array = NDArray[Any]
TEXTS = ["a b", "", "c", "a b c d e a b c d e", "d e a"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.make_folder(tmp_path / "model")


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    return patch_load(monkeypatch, FakeTransformer())


def patch_load(monkeypatch: pytest.MonkeyPatch, transformer: FakeModel) -> Loader:
    loader = Loader(transformer)
    for module in (text_model, pooling):
        monkeypatch.setattr(module, "load", loader)
    return loader


def ids(text: str, max_length: int = 8) -> list[int]:
    words = [tiny.WORDS.index(w) for w in text.replace(":", " :").split()]
    return [tiny.CLS, *words[: max_length - 2], tiny.SEP]


def mean(text: str, skipped: int = 0) -> Array:
    pooled = TABLE[ids(text)][skipped:].mean(axis=0)
    return np.asarray(pooled / np.linalg.norm(pooled))


def test_vectors_keep_input_order(folder: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(folder)
    for batch_size in (1, 2, 32):
        found = encoder.encode(TEXTS, batch_size=batch_size, normalize_embeddings=True)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, [mean(t) for t in TEXTS], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", [(2, "sequence"), ("batch", 6), (3, 6)])
def test_fixed_model_dims_are_padded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dims: tuple[int | str, int | str]
) -> None:
    loader = patch_load(monkeypatch, FakeTransformer(dims=dims))
    encoder, plain = SentenceEncoder(folder), 8 if dims[1] == "sequence" else 6
    assert encoder.max_length == plain
    expected = [TABLE[ids(t, plain)].mean(axis=0) for t in TEXTS]
    found = encoder.encode(TEXTS, normalize_embeddings=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    for array, text in zip(
        encoder.encode(TEXTS, output_value="token_embeddings"), TEXTS, strict=True
    ):
        np.testing.assert_array_equal(array, TABLE[ids(text, plain)])
    for feeds in loader.transformer.feeds:
        for dim, size in zip(dims, feeds["input_ids"].shape, strict=True):
            assert dim == size or isinstance(dim, str)


def test_max_length_beyond_fixed_sequence_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch_load(monkeypatch, FakeTransformer(dims=("batch", 6)))
    assert SentenceEncoder(folder, max_length=5).max_length == 5
    with pytest.raises(
        InputError, match="max_length=7 exceeds the model's fixed input length of 6 tokens"
    ):
        SentenceEncoder(folder, max_length=7)


def test_batches_are_sorted_by_length(folder: Path, loader: Loader) -> None:
    SentenceEncoder(folder).encode(TEXTS, batch_size=2)
    assert [f["input_ids"].shape for f in loader.transformer.feeds] == [(2, 8), (2, 4), (1, 2)]


def test_sequence_lengths_are_bucketed(tmp_path: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(tiny.make_folder(tmp_path, max_length=250))
    for words in range(300):
        encoder.encode("a " * words)
    lengths = {f["input_ids"].shape[1] for f in loader.transformer.feeds}
    assert len(lengths) < 48
    assert max(lengths) == 250
    for words, feeds in enumerate(loader.transformer.feeds):
        tokens = min(words + 2, 250)
        assert tokens <= feeds["input_ids"].shape[1] <= tokens * 1.125
        assert feeds["attention_mask"].sum() == tokens


def test_single_string_gives_one_vector(folder: Path, loader: Loader) -> None:
    found = SentenceEncoder(folder).encode("a b", normalize_embeddings=True)
    assert found.shape == (HIDDEN,)
    np.testing.assert_allclose(found, mean("a b"), rtol=1e-5, atol=1e-6)


def test_empty_string_is_encoded(folder: Path, loader: Loader) -> None:
    found = SentenceEncoder(folder).encode("", normalize_embeddings=True)
    np.testing.assert_allclose(found, mean(""), rtol=1e-5, atol=1e-6)


def test_empty_list_gives_no_vectors(folder: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(folder)
    assert encoder.encode([]).shape == (0, HIDDEN)
    assert encoder.encode([]).dtype == np.float32
    assert encoder.encode([], truncate_dim=2).shape == (0, 2)
    assert encoder.encode([], output_value="token_embeddings") == []


@pytest.mark.parametrize("given", [tuple(TEXTS), iter(TEXTS), np.array(TEXTS)])
def test_any_iterable_of_strings_is_encoded(folder: Path, loader: Loader, given: Any) -> None:
    assert SentenceEncoder(folder).encode(given).shape == (len(TEXTS), HIDDEN)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "must be a string or a list of strings, not NoneType"),
        (3, "not int"),
        (b"a", "not bytes"),
        ({"a": 1}, "not dict"),
        (["a", None], r"Sentence 1 must be a string, not NoneType \(None\)"),
        (["a", "b", 7], r"Sentence 2 must be a string, not int \(7\)"),
        (["a", ["b"]], "Sentence 1 must be a string, not list"),
    ],
)
def test_non_string_sentences_are_refused(
    folder: Path, loader: Loader, given: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        SentenceEncoder(folder).encode(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 is out of range"),
        ({"batch_size": 2.5}, "batch_size=2.5 is out of range"),
        ({"truncate_dim": 0}, "truncate_dim=0 is out of range"),
        ({"output_value": "sentence"}, "output_value='sentence' is not one of"),
        ({"prompt": 5}, "prompt must be a string, not int"),
    ],
)
def test_invalid_encode_options_are_refused(
    folder: Path, loader: Loader, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        SentenceEncoder(folder).encode("a", **options)


def test_long_text_is_truncated_to_max_length(folder: Path, loader: Loader) -> None:
    text = "a b c d e a b c d e"
    for length in (None, 4):
        encoder = SentenceEncoder(folder, max_length=length)
        encoder.encode(text)
        wanted = ids(text, length or 8)
        assert encoder.max_length == len(wanted)
        assert loader.transformer.feeds[-1]["input_ids"].tolist() == [wanted]


def test_max_length_beyond_positions_is_refused(folder: Path, loader: Loader) -> None:
    (folder / "config.json").write_text('{"max_position_embeddings": 16}')
    with pytest.raises(InputError, match="exceeds the 16 positions"):
        SentenceEncoder(folder, max_length=17)
    assert SentenceEncoder(folder, max_length=16).max_length == 16


def test_pooling_argument_is_used(folder: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(folder, pooling="cls")
    assert encoder.pooling == ("cls",)
    found = encoder.encode(TEXTS, normalize_embeddings=False)
    np.testing.assert_array_equal(found, np.tile(TABLE[tiny.CLS], (len(TEXTS), 1)))


def test_several_pooling_modes_widen_vector(tmp_path: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(tiny.make_folder(tmp_path, pooling_mode_max_tokens=True))
    assert encoder.dimension == 2 * HIDDEN == encoder.encode("a").shape[0]


def test_prompt_is_prepended(folder: Path, loader: Loader) -> None:
    found = SentenceEncoder(folder).encode("a b", prompt="query: ", normalize_embeddings=True)
    np.testing.assert_allclose(found, mean("query: a b"), rtol=1e-5, atol=1e-6)


def test_excluded_prompt_is_not_pooled(tmp_path: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(tiny.make_folder(tmp_path, include_prompt=False))
    found = encoder.encode(["a b", "c"], prompt="query: ", normalize_embeddings=True)
    wanted = [mean("query: a b", 3), mean("query: c", 3)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert loader.transformer.feeds[-1]["attention_mask"][0].all()


def test_default_prompt_applies_unless_overridden(folder: Path, loader: Loader) -> None:
    (folder / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: "}, "default_prompt_name": "query"}'
    )
    encoder = SentenceEncoder(folder)
    for options, text in (({}, "query: a"), ({"prompt": ""}, "a")):
        found = encoder.encode("a", normalize_embeddings=True, **options)
        np.testing.assert_allclose(found, mean(text), rtol=1e-5, atol=1e-6)


def test_token_embeddings_are_returned_per_text(folder: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(folder)
    found = encoder.encode(TEXTS, batch_size=2, output_value="token_embeddings")
    for array, text in zip(found, TEXTS, strict=True):
        np.testing.assert_array_equal(array, TABLE[ids(text)])
    one = encoder.encode("a", output_value="token_embeddings")
    np.testing.assert_array_equal(one, TABLE[ids("a")])


def test_unknown_hidden_size_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_load(monkeypatch, FakeTransformer(hidden="hidden"))
    assert SentenceEncoder(folder).dimension == HIDDEN


def test_pooler_is_cached_per_option_set(folder: Path, loader: Loader) -> None:
    encoder = SentenceEncoder(folder)
    for _ in range(2):
        encoder.encode("a")
        encoder.encode("a", normalize_embeddings=True)
        encoder.encode("a", truncate_dim=2)
    assert len(loader.poolers) == 3


def test_feeds_match_model_inputs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (INPUTS, (*INPUTS, "token_type_ids")):
        loader = patch_load(monkeypatch, FakeTransformer(names, dtype=DType.INT32))
        SentenceEncoder(folder).encode("a")
        assert loader.transformer.feeds[0].keys() == set(names)


@pytest.mark.parametrize("names", [("input_ids",), (*INPUTS, "pixel_values")])
def test_unsupported_model_inputs_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    patch_load(monkeypatch, FakeTransformer(names))
    with pytest.raises(ModelError, match=f"has the inputs {', '.join(sorted(names))};"):
        SentenceEncoder(folder)


def test_model_without_token_embeddings_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformer = FakeTransformer(output="logits")
    (spec,) = transformer.outputs
    transformer.outputs = (type(spec)("logits", spec.dtype, ("batch", 2)),)
    patch_load(monkeypatch, transformer)
    with pytest.raises(ModelError, match=r"no output of shape \[batch, sequence, hidden\]"):
        SentenceEncoder(folder)


def test_token_output_of_other_name_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch_load(monkeypatch, FakeTransformer(output="hidden"))
    assert SentenceEncoder(folder).encode("a").shape == (HIDDEN,)


def test_close_closes_transformer_and_pooler(folder: Path, loader: Loader) -> None:
    with SentenceEncoder(folder) as encoder:
        encoder.encode("a")
    assert loader.transformer.closed
    assert loader.poolers[0].closed


def test_progress_bar_is_shown_on_request(
    folder: Path, loader: Loader, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = SentenceEncoder(folder)
    encoder.encode(TEXTS, batch_size=2)
    assert capsys.readouterr().err == ""
    encoder.encode(TEXTS, batch_size=2, show_progress_bar=True)
    assert "5/5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lengths", "spans"),
    [
        ([], []),
        ([9] * 5, [(0, 2), (2, 4), (4, 5)]),
        ([200, 100, 3], [(0, 1), (1, 3)]),  # few tokens: padding is ignored
        ([300, 295, 200], [(0, 2), (2, 3)]),
        ([600, 300], [(0, 1), (1, 2)]),
    ],
)
def test_batches_hold_little_padding(lengths: list[int], spans: list[tuple[int, int]]) -> None:
    assert list(batch_spans(lengths, 2, max_padding=0.03)) == spans


def test_fixed_batches_are_filled() -> None:
    assert list(batch_spans([600, 300, 2], 2, max_padding=1.0)) == [(0, 2), (2, 3)]
