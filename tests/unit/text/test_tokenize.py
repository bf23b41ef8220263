"""Token ids, truncation and padding with a word-level tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

from clrt.errors import InputError, ModelError
from clrt.text.config import EncoderConfig, read_config
from clrt.text.tokenize import TextTokenizer, pad
from tests.unit.text import tiny


@pytest.fixture
def config(tmp_path: Path) -> EncoderConfig:
    return read_config(tiny.make_folder(tmp_path))


def ids(tokenizer: TextTokenizer, *texts: str) -> list[list[int]]:
    return [tokens.ids.tolist() for tokens in tokenizer.encode(texts)]


def test_tokenizer_file_padding_and_truncation_are_disabled(config: EncoderConfig) -> None:
    tokenizer = TextTokenizer(config)
    assert ids(tokenizer, "a b c d", "") == [
        [tiny.CLS, tiny.A, tiny.B, tiny.C, tiny.D, tiny.SEP],
        [tiny.CLS, tiny.SEP],
    ]
    assert tokenizer.pad_id == tiny.PAD


def test_truncation_keeps_special_tokens(config: EncoderConfig) -> None:
    tokenizer = TextTokenizer(replace(config, max_length=4))
    assert ids(tokenizer, "a b c d e") == [[tiny.CLS, tiny.A, tiny.B, tiny.SEP]]
    left = TextTokenizer(replace(config, max_length=4, truncation_side="left"))
    assert ids(left, "a b c d e") == [[tiny.CLS, tiny.D, tiny.E, tiny.SEP]]


def test_text_without_max_length_is_not_truncated(config: EncoderConfig) -> None:
    tokenizer = TextTokenizer(replace(config, max_length=None))
    assert len(tokenizer.encode(["a " * 3000])[0]) == 3002


def test_max_length_without_room_for_text_is_refused(config: EncoderConfig) -> None:
    with pytest.raises(InputError, match="is used up by the 2 special tokens"):
        TextTokenizer(replace(config, max_length=2))


def test_lower_case_option_lowers_text(config: EncoderConfig) -> None:
    assert ids(TextTokenizer(config), "A")[0][1] == tiny.UNK
    assert ids(TextTokenizer(replace(config, lower_case=True)), "A")[0][1] == tiny.A


def test_prompt_length_excludes_last_special_token(config: EncoderConfig) -> None:
    tokenizer = TextTokenizer(config)
    assert tokenizer.prompt_length("query: ") == 3
    assert tokenizer.prompt_length("") == 0


def test_many_texts_keep_order(config: EncoderConfig) -> None:
    lengths = [i % 5 for i in range(2500)]
    tokens = TextTokenizer(config).encode(["a " * n for n in lengths])
    assert [len(t) - 2 for t in tokens] == lengths


def test_lone_surrogate_names_its_sentence(config: EncoderConfig) -> None:
    with pytest.raises(InputError, match=r"Sentence 1 is not valid Unicode: .* at character 2"):
        TextTokenizer(config).encode(["a", "b \ud800", "c"])


def test_missing_tokenizer_is_reported(config: EncoderConfig) -> None:
    (config.folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        TextTokenizer(config)


def test_damaged_tokenizer_is_refused(config: EncoderConfig) -> None:
    (config.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a tokenizer that the tokenizers library reads"):
        TextTokenizer(config)


def test_pad_fills_rows_to_given_length() -> None:
    rows = [np.array([1, 2, 3], np.int32), np.array([4], np.int32)]
    padded = pad(rows, 9, 4)
    assert padded.dtype == np.int64
    assert padded.tolist() == [[1, 2, 3, 9], [4, 9, 9, 9]]


def _bert(folder: Path, **options: object) -> TextTokenizer:
    """Returns a tokenizer with a lowercasing file and the given tokenizer_config.json."""
    file = tiny.make_folder(folder) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.save(str(file))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    return TextTokenizer(read_config(folder))


def test_bert_tokenizer_config_overrides_file(tmp_path: Path) -> None:
    plain = _bert(tmp_path, tokenizer_class="PreTrainedTokenizerFast", do_lower_case=False)
    assert ids(plain, "A \u00e0")[0][1:-1] == [tiny.A, tiny.A]
    cased = _bert(tmp_path, tokenizer_class="BertTokenizerFast", do_lower_case=False)
    assert ids(cased, "A a")[0][1:-1] == [tiny.UNK, tiny.A]
    accents = _bert(tmp_path, tokenizer_class="BertTokenizer", strip_accents=False)
    assert ids(accents, "A \u00e0")[0][1:-1] == [tiny.A, tiny.UNK]


def test_added_tokens_of_config_are_used(tmp_path: Path) -> None:
    decoder = {"12": {"content": "a b"}, "11": {"content": "[CLS]"}}
    tokenizer = _bert(tmp_path, added_tokens_decoder=decoder, additional_special_tokens=["d e"])
    new = len(tiny.WORDS)
    assert ids(tokenizer, "a b c d e")[0][1:-1] == [new, tiny.C, new + 1]


def test_truncation_side_is_read_from_tokenizer_file(tmp_path: Path) -> None:
    file = tiny.make_folder(tmp_path, max_length=4) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(9, direction="left")
    tokenizer.save(str(file))
    left = TextTokenizer(read_config(tmp_path))
    assert ids(left, "a b c d e") == [[tiny.CLS, tiny.D, tiny.E, tiny.SEP]]
