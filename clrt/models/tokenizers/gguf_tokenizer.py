"""Builds the tokenizer of a GGUF file from its metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from clrt.util.fast_dataclass import dataclass

_MARK = "▁"  # SentencePiece's mark of a space
# Tokens that end a chat turn if the file names none; the first one in the vocabulary is used.
_TURN_ENDS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>", "<turn|>"),
)
# Tokens that end generation, if the vocabulary has them.
_ENDS = (
    *(*_TURN_ENDS, "<|eom_id|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "[EOS]"),
    *("<|tool_response>", "[e~["),
)
# With one of these tokens in the vocabulary, "<|end|>" ends a message but not the turn.
_CALLS = {"<|call|>", "<|calls|>"}
# Phi-3's special tokens that do not strip the spaces after them.
_KEEPING_SPACES = ("<unk>", "<s>", "<|endoftext|>")


@dataclass(frozen=True)
class GgufTokenizer:
    """The tokenizer of a GGUF file.

    Attributes:
        library: The tokenizer of the tokenizers library. Its `encode` adds BOS and EOS if the file
            says so, and recognizes special tokens in texts.
        model: The kind of tokenizer in the file: "gpt2", "llama", "t5", "bert" or "gemma4".
        bos_id: Id of the token that starts a text; None if there is none.
        eos_id: Id of the token that ends a text; None if there is none.
        eot_id: Id of the token that ends a chat turn; None if there is none.
        pad_id: Id of the padding token; None if there is none.
        unk_id: Id of the token for text that the vocabulary lacks; None if there is none.
        end_ids: Ids of all tokens that end generation.
        add_bos: Whether texts start with BOS.
        add_eos: Whether texts end with EOS; for "bert", with SEP.
        chat_template: The file's Jinja template, untrusted (render it in a sandbox); None if there
            is none.
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
class _TokenizerFamily:
    """Builder and defaults of a kind of tokenizer ("tokenizer.ggml.model").

    Attributes:
        build: Builds the tokenizer without special tokens, from (metadata, vocabulary, unknown
            token or None).
        ids: Default ids of special tokens, by their name in metadata keys ("bos").
        pad: Default id of the padding token; None for none.
        add: Whether (BOS, EOS) are added to texts by default.
    """

    build: Callable[[Metadata, Vocabulary, str | None], Tokenizer]
    ids: Mapping[str, int]
    pad: int | None
    add: tuple[bool, bool]


def read_tokenizer(metadata: Metadata) -> GgufTokenizer:
    """Builds the tokenizer of a GGUF file.

    Args:
        metadata: Metadata of the file.

    Raises:
        ModelError: The vocabulary is missing or damaged.
        UnsupportedError: The kind of tokenizer is unknown.
    """
    model = metadata.text(f"{PREFIX}model")
    kind = _KINDS.get(model)
    if kind is None:
        raise UnsupportedError(
            f"{metadata.file} has a tokenizer of the kind '{model}', but clrt supports "
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
        raise damaged(
            metadata.file, f"its vocabulary is not valid for a tokenizer, {error}"
        ) from error
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
    metadata: Metadata, vocabulary: Vocabulary, kind: _TokenizerFamily
) -> dict[str, int | None]:
    """Returns the ids of special tokens, by their name in metadata keys; None for missing ones.

    Args:
        metadata: Metadata of the file.
        vocabulary: Tokens of the file.
        kind: Kind of the tokenizer, which has default ids.
    """
    turn_end = next((vocabulary.ids[t] for t in _TURN_ENDS if t in vocabulary.ids), None)
    defaults = {**kind.ids, "eot": turn_end}
    names = ("bos", "eos", "unknown", "eot", "eom", "mask")
    ids = {n: vocabulary.special_id(metadata, n, defaults.get(n)) for n in names}
    if kind.build is _word_piece:
        ids["bos"] = vocabulary.special_id(metadata, "cls", ids["bos"])
        # llama.cpp's spelling
        ids["eos"] = vocabulary.special_id(metadata, "seperator", ids["eos"])
    return ids


def _end_ids(vocabulary: Vocabulary, ids: Mapping[str, int | None]) -> frozenset[int]:
    """Returns the ids of all tokens that end generation.

    These are EOS, EOT and EOM, and the tokens of `_ENDS` that the vocabulary has; but not "<|end|>"
    in vocabularies where it only ends a message (`_CALLS`).

    Args:
        vocabulary: Tokens of the file.
        ids: Ids of special tokens, by their name in metadata keys.
    """
    named = {i for i in (ids["eos"], ids["eot"], ids["eom"]) if i is not None}
    known = {t: vocabulary.ids[t] for t in _ENDS if t in vocabulary.ids}
    if _CALLS & known.keys() and "<|end|>" in known:
        named.discard(known.pop("<|end|>"))
    return frozenset(named | set(known.values()))


def _add_tokens(
    library: Tokenizer, vocabulary: Vocabulary, ids: set[int], swallowing: bool
) -> None:
    """Registers special and user-defined tokens, which are matched whole in texts.

    Args:
        library: The tokenizer to change.
        ids: Ids of tokens that are special whatever their type in the file.
        swallowing: Whether special tokens strip the spaces after them (Phi-3).
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
    """Adds a post-processor that puts BOS before and EOS after texts.

    Does nothing if neither token is added.

    Args:
        library: The tokenizer to change.
        ends: Token ids of "bos" and "eos"; None if the token is not added.
        in_pairs: Whether the first text of a pair gets an EOS too.
    """
    ids = {name: i for name, i in ends.items() if i is not None}
    if not ids:
        return
    first, last = (["bos"] * ("bos" in ids), ["eos"] * ("eos" in ids))
    middle = last if in_pairs else []
    second = ["$B:1", *(f"{name}:1" for name in last)] if in_pairs else ["$B", *last]
    tokens = [{"id": n, "ids": [i], "tokens": [vocabulary.tokens[i]]} for n, i in ids.items()]
    library.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last], pair=[*first, "$A", *middle, *second], special_tokens=tokens
    )


def _rule(metadata: Metadata) -> SplitRule:
    """Returns the pre-tokenization rule that the metadata names, else the default one."""
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
    tokenizer = Tokenizer(models.BPE(vocabulary.ids, merges, ignore_merges=rule.ignore_merges))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), "isolated") for p in rule.patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _stored_merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Returns the merges of BPE as pairs of tokens, in order of priority."""
    merges = []
    for text in metadata.texts(f"{PREFIX}merges"):
        at = text.find(" ", 1)  # a token may start with a space
        if at < 0:
            raise damaged(metadata.file, f"'{text}' in '{PREFIX}merges' is not a pair of tokens")
        merges.append((text[:at], text[at + 1 :]))
    return merges


def _marked_spaces(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """Builds a BPE tokenizer for text whose spaces are replaced by "▁", with stored merges.

    Args:
        unk: The unknown token; None if there is none.
    """
    tokenizer = _merging(vocabulary, _stored_merges(metadata), unk)
    tokenizer.normalizer = normalizers.Replace(" ", _MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[^\n]+|\n+"), "isolated")
    tokenizer.decoder = _decoder(False)
    return tokenizer


def _merging(vocabulary: Vocabulary, merges: list[tuple[str, str]], unk: str | None) -> Tokenizer:
    """Builds a BPE tokenizer without normalizer.

    Args:
        merges: Pairs of tokens to merge, in order of priority.
        unk: Token for unknown text, unless the vocabulary has byte tokens; None if there is none.
    """
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
    """Returns the `tokenizers` decoder of tokens that have "▁" for spaces and <0xNN> for bytes.

    Args:
        prefix: Whether encoding prepends a space to the text; decoding then strips it.
    """
    steps = [decoders.Replace(_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])


def _spaces(prefix: bool) -> list[Any]:
    """Returns the normalizer steps that replace spaces by "▁".

    Args:
        prefix: Whether a space is prepended to the text, and to text after a special token.
    """
    return [*([normalizers.Prepend(_MARK)] if prefix else []), normalizers.Replace(" ", _MARK)]


def _sentencepiece(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """Builds SentencePiece's BPE tokenizer; merges follow from token scores if none are stored.

    Args:
        unk: The unknown token; None if there is none.
    """
    stored = f"{PREFIX}merges" in metadata
    merges = _stored_merges(metadata) if stored else vocabulary.merges()
    prefix = metadata.flag(f"{PREFIX}add_space_prefix", True)
    tokenizer = _merging(vocabulary, merges, unk)
    tokenizer.normalizer = normalizers.Sequence(_spaces(prefix))
    tokenizer.decoder = _decoder(prefix)
    return tokenizer


def _unigram(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """Builds SentencePiece's unigram tokenizer.

    Args:
        unk: The unknown token.

    Raises:
        ModelError: The vocabulary has no scores, or no unknown token.
    """
    if vocabulary.scores is None or unk is None:
        raise damaged(metadata.file, "its vocabulary has no scores, or no unknown token")
    scored = list(zip(vocabulary.tokens, map(float, vocabulary.scores), strict=True))
    tokenizer = Tokenizer(models.Unigram(scored, vocabulary.ids[unk], vocabulary.has_bytes))
    prefix = metadata.flag(f"{PREFIX}add_space_prefix", True)
    charsmap = read_charsmap(metadata)
    steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
    if metadata.flag(f"{PREFIX}remove_extra_whitespaces", True):
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*steps, *_spaces(prefix)])
    if not any(_MARK in token[1:] for token in vocabulary.tokens):  # no token spans words
        tokenizer.pre_tokenizer = pre_tokenizers.Split(_MARK, "merged_with_next")
    tokenizer.decoder = _decoder(prefix)
    return tokenizer


def _word_piece(metadata: Metadata, vocabulary: Vocabulary, unk: str | None) -> Tokenizer:
    """Builds BERT's WordPiece tokenizer.

    GGUF files store "▁word" for the token "word", and "piece" for "##piece".

    Args:
        unk: The unknown token.

    Raises:
        ModelError: The vocabulary has no unknown token.
    """
    if unk is None:
        raise damaged(metadata.file, "its vocabulary has no unknown token")
    whole = set(vocabulary.of_type(CONTROL, UNKNOWN, USER_DEFINED)) | {unk}
    ids = {_bert_token(t, t in whole): i for i, t in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unk))
    lowercase = metadata.flag(f"{PREFIX}normalizer.lowercase", True)
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=metadata.flag(f"{PREFIX}normalizer.strip_accents", lowercase),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece("##")
    return tokenizer


def _bert_token(token: str, whole: bool) -> str:
    if whole or (token.startswith("[") and token.endswith("]")):
        return token
    return token[1:] if token.startswith(_MARK) else f"##{token}"


_BERT_IDS = {"bos": 101, "eos": 102, "unknown": 100, "mask": 103}
_KINDS: Mapping[str, _TokenizerFamily] = {
    "gpt2": _TokenizerFamily(_byte_level, {}, None, (False, False)),
    "llama": _TokenizerFamily(
        _sentencepiece, {"bos": 1, "eos": 2, "unknown": 0}, None, (True, False)
    ),
    "t5": _TokenizerFamily(_unigram, {"eos": 1, "unknown": 2}, 0, (False, True)),
    "bert": _TokenizerFamily(_word_piece, _BERT_IDS, 0, (True, True)),
    "gemma4": _TokenizerFamily(_marked_spaces, {}, None, (True, False)),
}
