"""The tokenizer of a GGUF file, made from its metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from clrt.errors import ClrtError, UnsupportedError, warn_user
from clrt.formats.gguf.metadata import Metadata
from clrt.formats.safetensors import damaged
from clrt.models.tokenizers.gguf_splits import DEFAULT, SPLIT_RULES, SplitRule
from clrt.models.tokenizers.gguf_vocabulary import (
    CONTROL,
    PREFIX,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    read_charsmap,
    read_vocabulary,
)

_MARK = "▁"  # SentencePiece's sign for a space
# Tokens that end a turn, where the file names none. The first one that the vocabulary has is it.
_TURN_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<turn|>"),
)
# What ends generation besides.
_ENDS = (
    *(*_TURN_ENDS, "<|eom_id|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "[EOS]"),
    *("<|tool_response>", "[e~["),
)
# Models with these have several messages in a turn, and "<|end|>" ends one of them.
_CALLS = {"<|call|>", "<|calls|>"}
# Of Phi-3's special tokens, those that do not swallow the spaces after them.
_KEEPING_SPACES = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True)
class GgufTokenizer:
    """The tokenizer of a GGUF file.

    Attributes:
        library: The tokenizer of the tokenizers library. `encode` adds BOS and EOS where the file
            says so, and takes special tokens in texts for what they are, unless told otherwise.
        model: What the file calls the kind: "gpt2", "llama", "t5", "bert" or "gemma4".
        bos_id: Starts a text. Of this and the other ids: None where there is no such token.
        eos_id: Ends a text.
        eot_id: Ends a turn of a chat.
        pad_id: Fills rows up.
        unk_id: Stands for what the vocabulary lacks.
        end_ids: All tokens that end generation.
        add_bos: Whether texts start with BOS.
        add_eos: Whether texts end with EOS; for "bert", with SEP.
        chat_template: A Jinja template as the file has it, for a sandbox; None where there is none.
    """

    library: Tokenizer
    model: str
    bos_id: int | None
    eos_id: int | None
    eot_id: int | None
    pad_id: int | None
    unk_id: int | None
    end_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    chat_template: str | None


@dataclass(frozen=True)
class _TokenizerKind:
    """What a model of tokenizers says where a file does not.

    Attributes:
        build: Makes the tokenizer, without special tokens.
        ids: Of special tokens, by the names that keys have.
        pad: The id that fills rows up.
        add: Whether BOS and EOS are added.
    """

    build: Callable[[Metadata, Vocabulary, str | None], Tokenizer]
    ids: Mapping[str, int]
    pad: int | None
    add: tuple[bool, bool]


def read_tokenizer(metadata: Metadata) -> GgufTokenizer:
    """The tokenizer that a file describes.

    Raises:
        ModelError: Its vocabulary is missing or damaged.
        UnsupportedError: It is of a kind that clrt does not know.
    """
    model = metadata.text(f"{PREFIX}model")
    kind = _KINDS.get(model)
    if kind is None:
        raise UnsupportedError(
            f"{metadata.file} has a tokenizer of the kind '{model}', and clrt knows "
            f"{', '.join(_KINDS)}; tokenize with the model's own package."
        )
    vocabulary = read_vocabulary(metadata)
    ids = _special_ids(metadata, vocabulary, kind)
    unk = ids["unknown"]
    try:
        library = kind.build(metadata, vocabulary, None if unk is None else vocabulary.tokens[unk])
        phi3 = (model, metadata.text("general.architecture", "")) == ("llama", "phi3")
        _add_tokens(library, vocabulary, {i for i in ids.values() if i is not None}, phi3)
    except ClrtError:
        raise
    except Exception as error:  # The library raises bare Exception.
        raise damaged(metadata.file, f"its vocabulary makes no tokenizer, {error}") from error
    by_default = kind.add[0] or (model == "gpt2" and _rule(metadata).add_bos)
    add_bos = metadata.flag(f"{PREFIX}add_bos_token", by_default) and ids["bos"] is not None
    adds = "add_sep_token" if model == "bert" else "add_eos_token"
    add_eos = metadata.flag(f"{PREFIX}{adds}", kind.add[1]) and ids["eos"] is not None
    ends = {"bos": ids["bos"] if add_bos else None, "eos": ids["eos"] if add_eos else None}
    _add_ends(library, vocabulary, ends, model == "bert")
    return GgufTokenizer(
        library=library,
        model=model,
        bos_id=ids["bos"],
        eos_id=ids["eos"],
        eot_id=ids["eot"],
        pad_id=vocabulary.special_id(metadata, "padding", kind.pad),
        unk_id=unk,
        end_ids=_end_ids(vocabulary, ids),
        add_bos=add_bos,
        add_eos=add_eos,
        chat_template=metadata.text("tokenizer.chat_template", "") or None,
    )


def _special_ids(
    metadata: Metadata, vocabulary: Vocabulary, kind: _TokenizerKind
) -> dict[str, int | None]:
    """The ids of tokens that are no text, by the names that keys have."""
    turn_end = next((vocabulary.ids[t] for t in _TURN_ENDS if t in vocabulary.ids), None)
    defaults = {**kind.ids, "eot": turn_end}
    names = ("bos", "eos", "unknown", "eot", "eom", "mask")
    ids = {n: vocabulary.special_id(metadata, n, defaults.get(n)) for n in names}
    if kind.build is _word_piece:
        ids["bos"] = vocabulary.special_id(metadata, "cls", ids["bos"])
        ids["eos"] = vocabulary.special_id(metadata, "seperator", ids["eos"])  # so it is spelt
    return ids


def _end_ids(vocabulary: Vocabulary, ids: Mapping[str, int | None]) -> frozenset[int]:
    """The tokens that end generation: those that the file names, and those by these texts."""
    named = {i for i in (ids["eos"], ids["eot"], ids["eom"]) if i is not None}
    known = {t: vocabulary.ids[t] for t in _ENDS if t in vocabulary.ids}
    if _CALLS & known.keys() and "<|end|>" in known:
        named.discard(known.pop("<|end|>"))
    return frozenset(named | set(known.values()))


def _add_tokens(
    library: Tokenizer, vocabulary: Vocabulary, ids: set[int], swallowing: bool
) -> None:
    """Makes tokens be found whole in texts.

    Args:
        ids: Those that are special whatever their type.
        swallowing: Whether most special ones take the spaces after them, as no file says.
    """
    named = [vocabulary.tokens[i] for i in sorted(ids)]
    special = dict.fromkeys([*vocabulary.of_type(CONTROL, UNKNOWN), *named])
    library.add_special_tokens(
        [
            AddedToken(t, rstrip=swallowing and t not in _KEEPING_SPACES, normalized=False)
            for t in special
        ]
    )
    plain = (t for t in vocabulary.of_type(USER_DEFINED) if t not in special)
    library.add_tokens([AddedToken(t, normalized=False) for t in plain])


def _add_ends(
    library: Tokenizer, vocabulary: Vocabulary, ends: Mapping[str, int | None], in_pairs: bool
) -> None:
    """Makes encoding add tokens.

    Args:
        ends: The tokens by name, "bos" and "eos"; None where none is added.
        in_pairs: Whether the end of the first of two texts gets one, too.
    """
    given = {name: i for name, i in ends.items() if i is not None}
    if not given:
        return
    first, last = (["bos"] * ("bos" in given), ["eos"] * ("eos" in given))
    middle = last if in_pairs else []
    second = ["$B:1", *(f"{name}:1" for name in last)] if in_pairs else ["$B", *last]
    tokens = [{"id": n, "ids": [i], "tokens": [vocabulary.tokens[i]]} for n, i in given.items()]
    library.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *middle, *second], special_tokens=tokens
    )


def _rule(metadata: Metadata) -> SplitRule:
    """How a byte-level tokenizer cuts text."""
    return SPLIT_RULES.get(metadata.text(f"{PREFIX}pre", "default"), DEFAULT)


def _byte_level(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    name = metadata.text(f"{PREFIX}pre", "")
    if name not in SPLIT_RULES:
        what = f"names the unknown pre-tokenizer '{name}'" if name else "names no pre-tokenizer"
        warn_user(
            f"{metadata.file} {what}; text is cut by the rules of 'default', and some of it gives "
            "other tokens than the model was trained with."
        )
    rule = _rule(metadata)
    if not rule.byte_level:
        return _marked_spaces(metadata, vocabulary, unk)
    merges = _stored_merges(metadata)
    made = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    return made


def _stored_merges(metadata: Metadata) -> list[tuple[str, str]]:
    """The pairs of tokens that are merged, the first before all others."""
    made = []
    for text in metadata.texts(f"{PREFIX}merges"):
        at = text.find(" ", 1)  # a token may start with a space
        if at < 0:
            raise damaged(metadata.file, f"'{text}' in '{PREFIX}merges' is no pair of tokens")
        made.append((text[:at], text[at + 1 :]))
    return made


def _marked_spaces(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """BPE by stored merges over text with marks for spaces."""
    made = _merging(vocabulary, _stored_merges(metadata), unk)
    made.normalizer = normalizers.Replace(" ", _MARK)
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[^\n]+|\n+"), "isolated")
    made.decoder = _decoder(False)
    return made


def _merging(vocabulary: Vocabulary, merges: list[tuple[str, str]], unk: str | None) -> Tokenizer:
    """BPE that writes what it has no token for as bytes, if it has tokens for these."""
    return Tokenizer(
        models.BPE(
            vocabulary.ids,
            merges,
            unk_token=unk,
            fuse_unk=True,
            byte_fallback=vocabulary.has_bytes,
        )
    )


def _decoder(prefix: bool) -> Any:
    """Of tokens with marks for spaces.

    Args:
        prefix: Whether a text got a space in front.
    """
    steps = [decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])


def _spaces(prefix: bool) -> list[Any]:
    """The steps of a normalizer that mark spaces.

    Args:
        prefix: Whether a text gets a space in front: llama.cpp does that after special tokens, too.
    """
    return [*([normalizers.Prepend(_MARK)] if prefix else []), normalizers.Replace(" ", _MARK)]


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """SentencePiece's BPE, whose merges follow from the scores."""
    stored = f"{PREFIX}merges" in metadata
    merges = _stored_merges(metadata) if stored else vocabulary.merges()
    prefix = metadata.flag(f"{PREFIX}add_space_prefix", True)
    made = _merging(vocabulary, merges, unk)
    made.normalizer = normalizers.Sequence(_spaces(prefix))
    made.decoder = _decoder(prefix)
    return made


def _unigram(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """SentencePiece's unigram model."""
    if vocabulary.scores is None or unk is None:
        raise damaged(metadata.file, "its vocabulary has no scores, or no unknown token")
    scored = list(zip(vocabulary.tokens, map(float, vocabulary.scores), strict=True))
    made = Tokenizer(models.Unigram(scored, vocabulary.ids[unk], vocabulary.has_bytes))
    prefix = metadata.flag(f"{PREFIX}add_space_prefix", True)
    charsmap = read_charsmap(metadata)
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if metadata.flag(f"{PREFIX}remove_extra_whitespaces", True):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    made.normalizer = normalizers.Sequence([*steps, *_spaces(prefix)])
    if not any(_MARK in token[1:] for token in vocabulary.tokens):  # words are apart
        made.pre_tokenizer = pre_tokenizers.Split(_MARK, "merged_with_next")
    made.decoder = _decoder(prefix)
    return made


def _word_piece(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """BERT's tokenizer. A file has "▁word" for "word", and "piece" for "##piece"."""
    if unk is None:
        raise damaged(metadata.file, "its vocabulary has no unknown token")
    whole = set(vocabulary.of_type(CONTROL, UNKNOWN, USER_DEFINED)) | {unk}
    ids = {_bert_token(t, t in whole): i for i, t in enumerate(vocabulary.tokens)}
    made = Tokenizer(models.WordPiece(ids, unk_token=unk))
    lowercase = metadata.flag(f"{PREFIX}normalizer.lowercase", True)
    made.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=metadata.flag(f"{PREFIX}normalizer.strip_accents", lowercase),
    )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece("##")
    return made


def _bert_token(token: str, whole: bool) -> str:
    if whole or (token.startswith("[") and token.endswith("]")):
        return token
    return token[1:] if token.startswith(_MARK) else f"##{token}"


_BERT_IDS = {"bos": 101, "eos": 102, "unknown": 100, "mask": 103}
_KINDS: Mapping[str, _TokenizerKind] = {
    "gpt2": _TokenizerKind(_byte_level, {}, None, (False, False)),
    "llama": _TokenizerKind(
        _sentencepiece, {"bos": 1, "eos": 2, "unknown": 0}, None, (True, False)
    ),
    "t5": _TokenizerKind(_unigram, {"eos": 1, "unknown": 2}, 0, (False, True)),
    "bert": _TokenizerKind(_word_piece, _BERT_IDS, 0, (True, True)),
    "gemma4": _TokenizerKind(_marked_spaces, {}, None, (True, False)),
}
