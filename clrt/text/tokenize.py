"""Tokenizes texts, by the tokenizers library, which only this module uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers, processors

from clrt.errors import InputError, ModelError, counted
from clrt.models.huggingface.model_files import file_exists, read_text
from clrt.models.tokenizers.checked_tokenizer import CheckedTokenizer, load_tokenizer
from clrt.text.config import TextConfig
from clrt.util.fast_dataclass import dataclass

IntArray = NDArray[np.int64]
Text = str | tuple[str, str]
"""A text, or a pair of texts that are encoded as one sequence."""

_CHUNK = 1024  # Texts per encode call: an Encoding uses kilobytes until its ids are copied.


@dataclass(frozen=True)
class Tokens:
    """Tokens of one text, unpadded, special ones included.

    Attributes:
        ids: Token ids, int32 [tokens].
        type_ids: For each token 0, or 1 in the second text of a pair, int32 [tokens].
    """

    ids: NDArray[np.int32]
    type_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)


class TextTokenizer:
    """Tokenizer of a model folder, with the truncation of a `TextConfig`.

    Padding and truncation settings of tokenizer.json are disabled, as they are often left over from
    training. Only their sides ("left" or "right") are used, if `config` names none. Exception: if
    `config.special_tokens` is False and `config.max_length` is None, the truncation of
    tokenizer.json stays. If a pair is too long, the longer text is cut first.

    Attributes:
        library: The `tokenizers.Tokenizer`.
        pad_id: Token id of padding.
        pads_left: Whether padding comes before the text.

    Args:
        config: Tokenization settings.
        pairs: Whether inputs are pairs of texts.
    """

    def __init__(self, config: TextConfig, pairs: bool = False) -> None:
        self._checked = _load(config)
        self.library = self._checked.library
        self._types = config.token_types
        self._special = self.library.num_special_tokens_to_add(pairs)
        self.pad_id = _pad_id(self.library, config.pad_token)
        side = config.padding_side or str((self.library.padding or {}).get("direction", ""))
        self.pads_left = side.lower() == "left" if side else config.pads_left
        leftover = self.library.truncation or {}
        side = config.truncation_side or str(leftover.get("direction", "right")).lower()
        self.library.no_padding()
        self._plain = not config.special_tokens
        if not self._plain:
            self.library.no_truncation()
        if config.max_length is not None:
            if config.max_length <= self._special:
                raise InputError(
                    f"A max_length of {counted(config.max_length, 'token')} is used up by the "
                    f"{self._special} special tokens; expected at least "
                    f"{self._special + 1}."
                )
            self.library.enable_truncation(config.max_length, direction=side)

    def encode(self, texts: Sequence[Text]) -> list[Tokens]:
        """Tokenizes each text or pair, in order.

        Raises:
            InputError: A text is not valid Unicode or has no tokens.
        """
        return [
            tokens for start in range(0, len(texts), _CHUNK) for tokens in self._chunk(texts, start)
        ]

    def _chunk(self, texts: Sequence[Text], start: int) -> Iterator[Tokens]:
        """Yields the tokens of one chunk of texts, which begins at index `start`."""
        chunk = texts[start : start + _CHUNK]
        try:
            encodings = self._checked.encode_batch(chunk, not self._plain)
        except (TypeError, UnicodeError):
            _check_unicode(chunk, start)
            raise
        for position, encoding in enumerate(encodings, start):
            if not encoding.ids and not self._plain:
                raise InputError(f"Sentence {position} ({texts[position]!r}) has no tokens.")
            ids, types = (np.asarray(x, np.int32) for x in (encoding.ids, encoding.type_ids))
            yield Tokens(ids, types if self._types else np.zeros_like(types))

    def prompt_length(self, prompt: str) -> int:
        """Returns the number of leading tokens of a sentence that belong to its prompt.

        Counts the tokens of the prompt alone, without a special token at the end. Source:
        sentence-transformers, `Transformer._get_prompt_length`.
        """
        if not prompt:
            return 0
        encoding = self._checked.encode(prompt, not self._plain)
        if not encoding.ids:
            return 0
        return len(encoding.ids) - int(bool(encoding.special_tokens_mask[-1]))


def pad(rows: Sequence[NDArray[np.int32]], value: int, length: int, left: bool = False) -> IntArray:
    """Pads rows of token values to one length.

    Args:
        rows: Values of each row, at most `length`.
        value: Padding value.
        length: Length of the result.
        left: Whether padding comes before the values.

    Returns:
        int64 [len(rows), length].
    """
    padded = np.full((len(rows), length), value, np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[length - len(row) if left else 0 :][: len(row)] = row
    return padded


def _load(config: TextConfig) -> CheckedTokenizer:
    """Returns the tokenizer of a model with the settings of its configuration applied."""
    file = tokenizer_file(config)
    text = config.tokenizer or read_text(file)
    checked = load_tokenizer(text, file)
    tokenizer = checked.library
    try:
        _apply(config, tokenizer)
        _add_ends(config.ends, checked)
    except (TypeError, UnicodeError) as error:
        raise ModelError(
            f"The files beside '{file}' have an invalid token ({error}); download the model's "
            "own files."
        ) from error
    if config.lower_case:
        normalizer = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *normalizer])
    return checked


def _apply(config: TextConfig, tokenizer: Tokenizer) -> None:
    """Applies a configuration's normalizer options, prefix space and added tokens to a tokenizer.

    The result tokenizes as the transformers library does.
    """
    normalizer = tokenizer.normalizer
    if config.normalizer and isinstance(normalizer, normalizers.BertNormalizer):
        for name, value in config.normalizer.items():
            setattr(normalizer, name, value)
        tokenizer.normalizer = normalizer
    pre_tokenizer = tokenizer.pre_tokenizer
    if config.prefix_space is not None and isinstance(pre_tokenizer, pre_tokenizers.ByteLevel):
        pre_tokenizer.add_prefix_space = config.prefix_space
        tokenizer.pre_tokenizer = pre_tokenizer
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in config.added_tokens:
        if token["content"] not in known:
            tokenizer.add_tokens([AddedToken(**token)])


def _add_ends(ends: tuple[str, str], checked: CheckedTokenizer) -> None:
    """Adds start and end tokens to each text, as transformers' `add_bos_token` and `add_eos_token`.

    Does nothing if the tokenizer adds them already.

    Args:
        ends: Start and end token; "" for none.
        checked: The tokenizer, whose post-processor is replaced.
    """
    tokenizer = checked.library
    ids = [tokenizer.token_to_id(token) if token else None for token in ends]
    empty_ids = checked.encode("").ids
    missing = [
        token_id is not None and empty_ids[index : index + 1 or None] != [token_id]
        for token_id, index in zip(ids, (0, -1), strict=True)
    ]
    if not any(missing):
        return
    first, last = ([f"{t}:{{0}}"] if i is not None else [] for t, i in zip(ends, ids, strict=True))
    single, pair = (" ".join([*first, f"${x}:{{0}}", *last]) for x in "AB")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single.format(0),
        pair=f"{single.format(0)} {pair.format(1)}",
        special_tokens=[(t, i) for t, i in zip(ends, ids, strict=True) if i is not None],
    )


def tokenizer_file(config: TextConfig) -> Path:
    """Returns the path of the tokenizer: tokenizer.json, or the compiled model that contains it.

    Raises:
        ModelError: The folder has no tokenizer.json.
    """
    if config.tokenizer is not None:
        return config.source
    file = config.folder / "tokenizer.json"
    if not file_exists(file):
        raise ModelError(
            f"'{config.folder}' has no tokenizer.json; download it with the model (models without "
            "one get it from transformers: AutoTokenizer.from_pretrained(…).save_pretrained(…))."
        )
    return file


def _pad_id(tokenizer: Tokenizer, pad_token: str) -> int:
    """Returns the token id of padding; 0 if there is none, since padding is masked anyway.

    Args:
        tokenizer: The tokenizer, whose own padding id is used if `pad_token` is unknown.
        pad_token: The padding token; "" if no file names it.
    """
    named = tokenizer.token_to_id(pad_token) if pad_token else None
    if named is None and tokenizer.padding is not None:
        named = tokenizer.padding["pad_id"]
    return 0 if named is None else int(named)


def _check_unicode(texts: Sequence[Text], start: int) -> None:
    """Checks that texts or pairs are valid Unicode.

    Args:
        texts: Texts to check.
        start: Index of the first text in the call, for the message.

    Raises:
        InputError: A text has a surrogate.
    """
    for position, text in enumerate(texts, start):
        try:
            "".join(text).encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"Sentence {position} is not valid Unicode: {error.reason} at character "
                f"{error.start}."
            ) from error
