"""Streaming detokenization: equal to decoding all tokens at once, with minimal delay."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from clrt.errors import UnsupportedError
from clrt.generation.detokenize import TextStream
from tests.generation.tokenizers_of_tests import KINDS, TEXTS, byte_fallback, byte_level


def _pieces(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    stream = TextStream(tokenizer, skip)
    return [*(stream.push(i) for i in ids), stream.finish()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_text_stream_of_any_tokens_matches_decode(
    kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer = KINDS[kind]()
    most = tokenizer.get_vocab_size() + 3  # the last ones have no token
    ids = data.draw(st.lists(st.integers(0, most), max_size=30))
    assert "".join(_pieces(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("".join(TEXTS)))))
def test_text_stream_of_any_text_matches_decode(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]()
    ids = tokenizer.encode(text).ids
    pieces = _pieces(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    if kind == "byte_level":
        assert "".join(pieces) == text or any(f in text for f in ("<s>", "</s>", "<|im_end|>"))


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "gemma"])
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=12), end=st.sampled_from(["", "a", "é"]))
def test_text_stream_of_any_bytes_matches_decode(kind: str, data: bytes, end: str) -> None:
    """Incomplete characters, surrogates, and bytes invalid in UTF-8."""
    tokenizer = KINDS[kind]()
    names = {b: f"<0x{b:02X}>" for b in range(256)}
    if kind == "byte_level":
        plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        names = {b: chr(b) for b in plain}
        names |= {b: chr(256 + k) for k, b in enumerate(set(range(256)) - set(plain))}
    ids = [tokenizer.token_to_id(names[b]) for b in data] + tokenizer.encode(end).ids
    assert None not in ids
    assert "".join(_pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_text_stream_yields_whole_characters() -> None:
    ids = byte_level().encode("🎉 é").ids
    pieces = _pieces(byte_level(), ids)
    assert "".join(pieces) == "🎉 é" and not any("\ufffd" in p for p in pieces)
    assert len(ids) > 4 and pieces[0] == "" and pieces[-1] == ""


def test_text_stream_yields_text_without_delay() -> None:
    """Only incomplete characters are held back."""
    ids = byte_level().encode(TEXTS[0]).ids
    assert all(_pieces(byte_level(), ids)[:-1])


def test_text_stream_ends_incomplete_character_with_replacement() -> None:
    for kind in (byte_level, byte_fallback):
        ids = kind().encode("a🎉").ids[:-1]
        pieces = _pieces(kind(), ids)
        assert pieces[-1] == "\ufffd" * len(pieces[-1]) != ""
        assert "".join(pieces) == kind().decode(ids)


def test_text_stream_skips_special_tokens_on_request() -> None:
    end = byte_level().token_to_id("<|im_end|>")
    ids = [*byte_level().encode("a b").ids, end]
    assert "".join(_pieces(byte_level(), ids)) == "a b"
    assert "".join(_pieces(byte_level(), ids, skip=False)) == "a b<|im_end|>"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Metaspace()]),
    ],
)
def test_text_stream_refuses_non_streaming_decoders(decoder: decoders.Decoder) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoder
    with pytest.raises(UnsupportedError, match="cannot decode single tokens"):
        TextStream(tokenizer)


@pytest.mark.parametrize(
    "chain",
    [
        [decoders.Strip(" ", 2, 0), decoders.Replace("a", "bb")],
        [decoders.Strip(" ", 1, 1)],
        [decoders.Fuse(), decoders.Strip(" ", 2, 2)],
        [decoders.ByteLevel(), decoders.Replace("a", ""), decoders.Strip("b", 1, 0)],
        [decoders.Metaspace(prepend_scheme="never"), decoders.Fuse()],
    ],
)
@settings(max_examples=50, deadline=None)
@given(words=st.lists(st.sampled_from(["ab", "  b", "a  ", " a ", "b", "▁a▁"]), min_size=1))
def test_text_stream_of_decoder_chains_matches_decode(
    chain: list[decoders.Decoder], words: list[str]
) -> None:
    names = ["ab", "  b", "a  ", " a ", "b", "▁a▁"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="b"))
    tokenizer.decoder = decoders.Sequence(chain)
    ids = [names.index(w) for w in words]
    assert "".join(_pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_text_stream_takes_linear_time() -> None:
    """Also if invalid bytes keep the text undecided."""
    for tokenizer, token in ((byte_fallback(), "<0xFF>"), (byte_level(), "ÿ")):
        stream, token_id = TextStream(tokenizer), tokenizer.token_to_id(token)
        start = time.process_time()
        text = "".join(stream.push(token_id) for _ in range(50_000)) + stream.finish()
        assert text == "\ufffd" * 50_000 and time.process_time() - start < 5
