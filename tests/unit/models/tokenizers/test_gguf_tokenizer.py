"""Tokenizers of GGUF files give the ids and texts of the original tokenizers."""

from __future__ import annotations

import base64
import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from clrt.models.tokenizers.gguf_splits import SPLIT_RULES
from clrt.models.tokenizers.gguf_tokenizer import GgufTokenizer, read_tokenizer
from tests.unit.models.tokenizers.gguf_vocabularies import (
    CASES,
    CONTROL,
    USER_DEFINED,
    of_library,
    scored,
    write,
)
from tests.unit.text.awkward import TEXTS

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
WORDS = {**BYTES, "use_regex": True}
RAW = {**BYTES, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = _TEKKEN.replace("]+|[^", "](?#)+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^", 1)
_GPT4O = _GPT4O.replace(r"]*|\p{N}|", r"]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|")
_GPT4O = _GPT4O.replace("(?#)", "")
_DEEPSEEK3 = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
# How the models' own tokenizer.json cut text: whether they bring it to NFC, and their steps.
ORIGINALS: dict[str, tuple[bool, list[dict[str, Any]]]] = {
    "gpt-2": (False, [WORDS]),
    "olmo": (True, [WORDS]),
    "smollm": (False, [DIGITS, WORDS]),
    "starcoder": (False, [DIGITS, WORDS]),
    "command-r": (True, [DIGITS, WORDS]),
    "falcon": (
        False,
        [{"type": "Punctuation", "behavior": "Contiguous"}, WORDS, _split("[0-9][0-9][0-9]")],
    ),
    "default": (  # of no model, but of llama.cpp
        False,
        [
            *(_split(r"[\p{P}\$\+<=>\^~\|]+"), _split(_GPT2)),
            *({"type": "Digits", "individual_digits": False}, _split("[0-9][0-9][0-9]"), RAW),
        ],
    ),
    "llama-bpe": (False, [_split(_LLAMA3), RAW]),
    "dbrx": (False, [_split(_LLAMA3), RAW]),
    "qwen2": (True, [_split(_LLAMA3.replace("{1,3}", "")), RAW]),
    "tekken": (False, [_split(_TEKKEN), RAW]),
    "gpt-4o": (False, [_split(_GPT4O), RAW]),
    "deepseek-coder": (
        False,
        [
            *(_split("[\r\n]"), _split("\\s?\\p{L}+"), _split("\\s?\\p{P}+")),
            *(_split("[一-龥ࠀ-一가-퟿]+"), DIGITS, RAW),
        ],
    ),
    "deepseek-v3": (
        False,
        [_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(_DEEPSEEK3), RAW],
    ),
    "bloom": (False, [_split(" ?[^(\\s|[.,!?…。，、।۔،])]+"), RAW]),
}


@cache
def _byte_level() -> Tokenizer:
    """Trains a byte-level BPE of a few hundred tokens, one of them special."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    made.train_from_iterator([*CASES["llama"]["tokens"], *TEXTS * 4], trainer)
    made.decoder = decoders.ByteLevel()
    return made


def _original(name: str) -> Tokenizer:
    nfc, steps = ORIGINALS[name]
    stored = json.loads(_byte_level().to_str())
    stored["normalizer"] = {"type": "NFC"} if nfc else None
    stored["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    stored["model"]["ignore_merges"] = name in ("llama-bpe", "tekken")
    return Tokenizer.from_str(json.dumps(stored))


def _assert_alike(ours: Tokenizer, original: Tokenizer) -> None:
    for text in TEXTS:
        expected = original.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, add_special_tokens=False).ids == expected, repr(text)
        for skip in (False, True):
            assert ours.decode(expected, skip_special_tokens=skip) == original.decode(
                expected, skip_special_tokens=skip
            )


@pytest.mark.parametrize("name", ORIGINALS)
def test_byte_level_ids_match_original_tokenizer(name: str, tmp_path: Path) -> None:
    original = _original(name)
    types = {"<|endoftext|>": CONTROL}
    made = of_library(tmp_path / "m.gguf", "gpt2", original, types, pre=name)
    _assert_alike(made.library, original)
    assert made.library.decode(made.library.encode(TEXTS[4]).ids) == TEXTS[4]


@pytest.mark.parametrize("name", SPLIT_RULES)
def test_split_rules_preserve_text(name: str, tmp_path: Path) -> None:
    """Decoded text equals the input after NFC; split patterns lose no piece."""
    if not SPLIT_RULES[name].byte_level:
        return
    types = {"<|endoftext|>": CONTROL}
    made = of_library(tmp_path / "m.gguf", "gpt2", _byte_level(), types, pre=name)
    for text in TEXTS:
        kept = made.library.normalizer.normalize_str(text) if SPLIT_RULES[name].nfc else text
        assert made.library.decode(made.library.encode(text).ids) == kept


@pytest.mark.parametrize("more", [{"pre": "of tomorrow"}, {}])
def test_unknown_split_rule_warns_and_uses_default(more: dict[str, str], tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"m.gguf names .*; text is cut by the rules of 'default'"):
        made = of_library(tmp_path / "m.gguf", "gpt2", _byte_level(), **more)
    _assert_alike(made.library, _original("default"))


def test_byte_level_special_tokens_match_original(tmp_path: Path) -> None:
    original = Tokenizer.from_str(_byte_level().to_str())
    original.add_special_tokens(["<|im_start|>", "<|im_end|>", "<｜end▁of▁sentence｜>"])
    original.add_tokens(["<think>", "   "])
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<｜end▁of▁sentence｜>")
    types = {n: CONTROL for n in names} | {"<think>": USER_DEFINED, "   ": USER_DEFINED}
    ids = original.get_vocab()
    made = of_library(
        *(tmp_path / "m.gguf", "gpt2", original, types),
        **{"pre": "gpt-2", "bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]},
        **{"padding_token_id": 2**32 - 1, "add_bos_token": True, "chat_template": "{{ messages }}"},
    )
    text = "<|im_start|>user\nhi   there<think>é<|im_end|><｜end▁of▁sentence｜>\n<|im_en"
    expected = original.encode(text).ids
    assert {ids[n] for n in names[1:]} <= set(expected)
    assert made.library.encode(text).ids == [ids["<|endoftext|>"], *expected]
    assert made.library.encode(text, "x").ids[-1:] == original.encode("x").ids
    assert made.library.decode(expected, skip_special_tokens=False) == text
    assert made.library.decode(expected) == original.decode(expected)
    assert made.model == "gpt2"
    assert (made.bos_id, made.eos_id, made.pad_id, made.unk_id) == (
        *(ids["<|endoftext|>"], ids["<|im_end|>"]),
        *(None, None),
    )
    assert made.eot_id == ids["<|im_end|>"]
    assert made.end_ids == {ids[n] for n in (names[0], names[2], names[3])}
    assert (made.add_bos, made.add_eos) == (True, False)
    assert made.chat_template == "{{ messages }}"


def test_out_of_range_special_id_warns(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"has the tokenizer.ggml.eos_token_id 9999, and its voc"):
        made = of_library(
            tmp_path / "m.gguf", "gpt2", _byte_level(), pre="gpt-2", eos_token_id=9999
        )
    assert made.eos_id is None


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_sentencepiece_ids_match_recorded_cases(name: str, tmp_path: Path) -> None:
    made = scored(tmp_path / "m.gguf", CASES[name], "llama", add_bos_token=False)
    for text, ids in CASES[name]["ids"].items():
        if "<s>" in text:  # SentencePiece takes special tokens in texts for text
            made.library.encode_special_tokens = True
        assert made.library.encode(text).ids == ids, repr(text)
        made.library.encode_special_tokens = False
        assert made.library.decode(ids) == text, repr(text)


def test_sentencepiece_special_tokens_follow_llama_cpp(tmp_path: Path) -> None:
    """Text after a special token is prefixed by a space, as in llama.cpp."""
    made = scored(tmp_path / "m.gguf", CASES["llama"], "llama")
    plain, tool = made.library, CASES["llama"]["tokens"].index("<tool>")
    a, b = (plain.encode(t, add_special_tokens=False).ids for t in ("Hello", "world"))
    assert plain.encode("Hello<tool>world</s>").ids == [1, *a, tool, *b, 2]
    assert plain.decode([1, *a, 2]) == "Hello"
    assert plain.decode([1, *a, tool, *b, 2]) == "Hello<tool> world"
    assert (made.bos_id, made.eos_id, made.unk_id, made.eot_id) == (1, 2, 0, None)
    assert (made.add_bos, made.add_eos) == (True, False)
    both = scored(tmp_path / "m.gguf", CASES["llama"], "llama", add_eos_token=True)
    assert both.library.encode("Hello").ids == [1, *a, 2]


def test_phi_3_special_tokens_absorb_spaces(tmp_path: Path) -> None:
    """Phi-3 special tokens absorb following spaces; GGUF files do not state this."""
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "<|user|>"]
    more: dict[str, Any] = {"scores": [0.0] * 6, "token_type": [2, 3, 3, 1, 1, 3]}
    phi3 = write(tmp_path / "m.gguf", "llama", tokens, architecture="phi3", **more)
    other = write(tmp_path / "n.gguf", "llama", tokens, **more)
    ids = [read_tokenizer(m).library.encode("<|user|> a").ids for m in (phi3, other)]
    assert ids == [[1, 5, 3, 4], [1, 5, 3, 3, 4]]


@pytest.mark.parametrize(("call", "ends"), [("<|call|>", {0, 1}), ("other", {0, 2})])
def test_call_token_replaces_end_token_as_end_of_turn(
    call: str, ends: set[int], tmp_path: Path
) -> None:
    """If the vocabulary has "<|call|>", "<|end|>" ends a message but not the turn."""
    tokens = ["<|return|>", call, "<|end|>", "a", "aa"]
    more: dict[str, Any] = {"merges": ["a a"], "pre": "gpt-4o", "eos_token_id": 0}
    assert read_tokenizer(write(tmp_path / "m.gguf", "gpt2", tokens, **more)).end_ids == ends


def test_equal_scores_merge_in_token_order(tmp_path: Path) -> None:
    """Some converters write equal scores; lower ids then merge first."""
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "c", "ab", "bc"]
    more: dict[str, Any] = {"scores": [-1000.0] * 9, "token_type": [2, 3, 3, 1, 1, 1, 1, 1, 1]}
    made = read_tokenizer(write(tmp_path / "m.gguf", "llama", tokens, **more)).library
    assert made.encode("abc", add_special_tokens=False).tokens == ["▁", "ab", "c"]
    assert made.encode("xy", add_special_tokens=False).tokens == ["▁", "<unk>"]


def test_unigram_ids_match_recorded_cases(tmp_path: Path) -> None:
    case = CASES["t5"]
    charsmap = base64.b64decode(case["charsmap"])
    made = scored(tmp_path / "m.gguf", case, "t5", precompiled_charsmap=charsmap)
    for text, ids in case["ids"].items():
        found = made.library.encode(text).ids
        if "<s>" not in text:
            assert found == [*ids, 2], repr(text)
    assert made.library.decode(case["ids"]["Hello world"]) == "Hello world"
    assert (made.eos_id, made.pad_id, made.add_bos, made.add_eos) == (2, 0, False, True)


def test_unigram_falls_back_to_byte_tokens(tmp_path: Path) -> None:
    """Tokens that span spaces, and byte tokens for characters outside the vocabulary."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", "▁a", "▁a▁b", "b", "c", *"d"]
    tokens = [*pieces, *(f"<0x{i:02X}>" for i in range(256))]
    more: dict[str, Any] = {
        "scores": [0.0, 0.0, 0.0, -2.0, -2.5, -1.0, -3.0, -3.0, -3.0] + [-9.0] * 256,
        "token_type": [3, 3, 2, 1, 1, 1, 1, 1, 1] + [6] * 256,
        "add_eos_token": False,
    }
    made = read_tokenizer(write(tmp_path / "m.gguf", "t5", tokens, **more)).library
    assert made.encode("a b é").tokens == ["▁a▁b", "▁", "<0xC3>", "<0xA9>"]
    assert made.decode(made.encode("a b é").ids) == "a b é"


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_piece_ids_match_original_tokenizer(lowercase: bool, tmp_path: Path) -> None:
    original = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    original.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    original.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    original.decoder = decoders.WordPiece("##")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    original.train_from_iterator(TEXTS * 4, trainer)
    ids = original.get_vocab()
    order = sorted(ids, key=ids.__getitem__)
    tokens = [t if t in special else t[2:] if t.startswith("##") else f"▁{t}" for t in order]
    more: dict[str, Any] = {} if lowercase else {"normalizer_lowercase": False}
    names = ("padding", "unknown", "cls", "seperator", "mask")
    more |= {f"{n}_token_id": ids[t] for n, t in zip(names, special, strict=True)}
    made: GgufTokenizer = read_tokenizer(write(tmp_path / "m.gguf", "bert", tokens, **more))
    _assert_alike(made.library, original)
    a, b = (original.encode(t, add_special_tokens=False).ids for t in ("Hello", "world"))
    cls, sep = ids["[CLS]"], ids["[SEP]"]
    assert made.library.encode("Hello").ids == [cls, *a, sep]
    pair = made.library.encode("Hello", "world")
    assert pair.ids == [cls, *a, sep, *b, sep]
    assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert (made.bos_id, made.eos_id, made.pad_id) == (cls, sep, ids["[PAD]"])


def test_gemma_4_merges_use_marked_spaces(tmp_path: Path) -> None:
    """Gemma 4: stored merges over text with marked spaces, split only at line breaks."""
    tokens = ["<pad>", "<bos>", "<eos>", "▁", "a", "b", "▁a", "\n", "\n\n"]
    tokens += [f"<0x{i:02X}>" for i in range(256)]
    types = [CONTROL] * 3 + [1, 1, 1, 1, USER_DEFINED, USER_DEFINED] + [6] * 256
    made = read_tokenizer(
        write(
            *(tmp_path / "m.gguf", "gemma4", tokens),
            **{"token_type": types, "merges": ["▁ a"], "bos_token_id": 1, "eos_token_id": 2},
        )
    )
    assert made.library.encode("b a\n\né").tokens == [
        *("<bos>", "b", "▁a", "\n\n", "<0xC3>", "<0xA9>"),
    ]
    assert made.library.decode(made.library.encode(" b a\n\né").ids) == " b a\n\né"


def test_known_tokenizers_are_read_without_warnings(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_library(tmp_path / "m.gguf", "gpt2", _byte_level(), pre="gpt-2")
        scored(tmp_path / "n.gguf", CASES["llama"], "llama")
