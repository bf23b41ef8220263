"""Malicious tokenizer.json: refused, or run within time bounds; only clrt errors are raised."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from clrt.errors import ClrtError, InputError, ModelError
from clrt.models.tokenizers import checked_tokenizer
from clrt.models.tokenizers.checked_tokenizer import (
    CheckedTokenizer,
    check_tokenizer,
    load_tokenizer,
)
from clrt.models.tokenizers.gguf_splits import SPLIT_RULES

FILE = Path("tokenizer.json")
BIG = 1 << 40


def base() -> dict[str, Any]:
    words = {w: i for i, w in enumerate(["[UNK]", "[CLS]", "a", "b", "c"])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    found: dict[str, Any] = json.loads(made.to_str())
    return found


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def steps(*given: object, key: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", key: list(given)}


def split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip


def charsmap(raw: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def template(**piece: Any) -> dict[str, Any]:
    other = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"[CLS]": {"id": "[CLS]", "ids": piece.pop("ids", [1]), "tokens": ["[CLS]"]}}
    pair = [other, {"Sequence": {"id": "B", "type_id": 0}}]
    single = [{"SpecialToken": {"id": "[CLS]", "type_id": piece.pop("type_id", 0)}}, other]
    return {
        "type": "TemplateProcessing", "single": single * piece.pop("times", 1), "pair": pair,
        "special_tokens": special,
    }  # fmt: skip


def added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **flags}


ATTACKS: dict[str, dict[str, Any]] = {
    "doubling": {"normalizer": steps(*[replace({"String": "a"}, "aa")] * 40)},
    "growth by patterns": {"normalizer": steps(*[replace({"Regex": "."}, "aaaaaaaaaa")] * 12)},
    "growth at empty matches": {"normalizer": steps(*[replace({"Regex": "(?=a)"}, "aa")] * 30)},
    "growth by maybe": {"normalizer": steps(*[replace({"Regex": "b?"}, "aaaa")] * 12)},
    **{
        f"growth by {pattern}": {"normalizer": steps(*[replace({"Regex": pattern}, "a")] * 40)}
        for pattern in ("z{1}?", "[z[y]]?", "[[:digit:]]?", "[a&&[b]]?", "[]z[y]]?", "(z[[y]]?)")
    },
    "growth by bytes": {"normalizer": steps(*[{"type": "ByteLevel"}] * 30)},
    "growth without types": {
        "normalizer": {"normalizers": [{"pattern": {"String": "a"}, "content": "aa"}] * 40}
    },
    "long prepends": {"normalizer": steps(*[{"type": "Prepend", "prepend": "x" * 9999}] * 50)},
    "deep": {"normalizer": reduce(lambda a, _: steps(a), range(60), steps())},
    "empty table": {"normalizer": charsmap(bytes(6))},
    "table of ones": {"normalizer": charsmap(b"\xff" * 17)},
    "table of noise": {"normalizer": charsmap((1024).to_bytes(4, "little") + b"\x13\x25" * 512)},
    "table without a type": {"normalizer": {"precompiled_charsmap": "AAAAAAAA"}},
    "table in a sequence": {"normalizer": steps(steps(charsmap(b"\xff" * 17)))},
    "table no base64": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%%"}},
    "strip": {"decoder": {"type": "Strip", "content": "a", "start": BIG, "stop": BIG}},
    "decoder growth": {"decoder": steps(*[replace({"String": "a"}, "aa")] * 40, key="decoders")},
    "decoder's pattern": {"decoder": replace({"Regex": "(a+)+$"}, "")},
    "type id": {"post_processor": template(type_id=4_000_000_000)},
    "special ids": {"post_processor": template(ids=[1] * 500_000)},
    "long template": {"post_processor": template(times=100_000)},
    "id of an added token": {"added_tokens": [added("zz", (1 << 32) - 1)]},
    "id of a token": {
        "model": {"type": "WordLevel", "vocab": {"a": (1 << 32) - 1}, "unk_token": "a"}
    },
    "number without end": {"padding": 10**400},
    "prefix beyond a token": {
        "model": {
            "type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]],
            "continuing_subword_prefix": "é" * 10, "dropout": None, "unk_token": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        }
    },
}  # fmt: skip
AT_USE: dict[str, dict[str, Any]] = {
    "no unknown token": {"model": {"type": "Unigram", "unk_id": None, "vocab": [["b", 0.0]]}},
    "unknown token missing": {"model": {"type": "WordLevel", "vocab": {"b": 0}, "unk_token": "x"}},
    "unknown piece missing": {
        "model": {
            "type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 0, "vocab": {"b": 0},
        }
    },
    "too many ways": {"pre_tokenizer": split("(a+)+$")},
    "empty token": {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["", 0.0], ["b", 0.0]]}},
    "padding": {
        "padding": {
            "strategy": {"Fixed": BIG}, "direction": "Right", "pad_to_multiple_of": BIG,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        }
    },
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "empty pattern": {"pre_tokenizer": {**split(""), "pattern": {"String": ""}}},
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_malicious_tokenizer_json_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(json.dumps({**base(), **ATTACKS[name]}), FILE)


@pytest.mark.parametrize("name", AT_USE)
def test_tokenizer_errors_become_clrt_errors_in_bounded_time(name: str) -> None:
    start = time.monotonic()
    try:
        made = load_tokenizer(json.dumps({**base(), **AT_USE[name]}), FILE)
        for text in ("a b", "a" * 45 + "b", ""):
            made.encode_batch([text])
            made.encode(text)
        made.decode([0, 1, 999_999])
    except ClrtError:
        pass
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("pattern", ["(?:" * 4 + "a?|b?" + "){99}" * 4, r"\p{" * 200_000])
def test_pattern_check_takes_bounded_time(pattern: str) -> None:
    given = {**base(), "normalizer": replace({"Regex": pattern}, "a")}
    start = time.monotonic()
    with suppress(ModelError):
        check_tokenizer(json.dumps(given), FILE)
    assert time.monotonic() - start < 2


def test_time_limit_grows_with_both_texts_of_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    chars = []
    monkeypatch.setattr(checked_tokenizer, "within", lambda _, count: chars.append(count))
    made = CheckedTokenizer(Tokenizer.from_str(json.dumps(base())), is_slow=True)
    made.encode_batch([("a" * 30, "b" * 50), "c" * 7])
    assert chars == [87]


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a": {"b": 1.5, "b": 2}}'])
def test_invalid_tokenizer_json_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="not a tokenizer"):
        load_tokenizer(text, FILE)


def test_tokenizer_call_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_tokenizer, "_PATIENCE_S", 0.05)
    ended = threading.Event()
    with pytest.raises(InputError, match="takes more than"):
        checked_tokenizer.within(ended.wait, 10)
    ended.set()


def test_slow_tokenizer_pattern_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_tokenizer, "_PATIENCE_S", 0.02)
    given = {**base(), "pre_tokenizer": split("(?:a+){2}$|a*a*a*[bc]")}
    made = load_tokenizer(json.dumps(given), FILE)
    assert made.is_slow
    with pytest.raises(InputError, match=r"takes|limit"):
        made.encode("a" * 900 + "d")


def _llama() -> Tokenizer:
    made = Tokenizer(models.BPE({"a": 0, "▁": 1, "b": 2}, [], byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    return made


def _clip() -> Tokenizer:
    made = Tokenizer(models.BPE({"a": 0}, [], end_of_word_suffix="</w>", unk_token="a"))
    space = normalizers.Replace(Regex(r"\s+"), " ")
    made.normalizer = normalizers.Sequence([normalizers.NFC(), space, normalizers.Lowercase()])
    return made


def _bert() -> Tokenizer:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("a", 1), ("a", 1))
    made.decoder = decoders.WordPiece()
    return made


def _xlnet() -> Tokenizer:
    made = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0)], 0, False))
    steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    spaces = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace("``", '"')]
    made.normalizer = normalizers.Sequence([*spaces, *steps])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    return made


@pytest.mark.parametrize("make", [_llama, _clip, _bert, _xlnet])
def test_known_tokenizers_run_without_worker_thread(make: Callable[[], Tokenizer]) -> None:
    own = make()
    made = load_tokenizer(own.to_str(), FILE)
    assert not made.is_slow and made.library.to_str() == own.to_str()
    assert made.encode_batch(["a  b"])[0].ids == own.encode("a  b").ids


def test_gguf_split_patterns_pass_tokenizer_check() -> None:
    for rule in SPLIT_RULES.values():
        parts = steps(*map(split, rule.patterns), key="pretokenizers")
        assert not check_tokenizer(json.dumps({**base(), "pre_tokenizer": parts}), FILE)


def test_tokenizer_in_worker_thread_gives_same_tokens() -> None:
    own = _llama()
    slow, plain = CheckedTokenizer(own, is_slow=True), CheckedTokenizer(own, is_slow=False)
    assert slow.encode("a b ab").ids == plain.encode("a b ab").ids == own.encode("a b ab").ids
    assert slow.decode([1, 0, 2]) == own.decode([1, 0, 2])
    with pytest.raises(TypeError):
        slow.encode_batch([3])
