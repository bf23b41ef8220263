"""Sampling options: types, ranges, and defaults from a model's files."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.formats.gguf.metadata import Metadata
from clrt.generation.generation_config import (
    GENAI_CONFIG,
    GENERATION_CONFIG,
    KEYS,
    active_keys,
    read_proposed,
)
from clrt.generation.speculation_policy import MAX_DRAFT_TOKENS
from clrt.models.huggingface.model_files import read_optional
from clrt.util.fast_dataclass import dataclass


class _NumberRange(NamedTuple):
    """Range of the finite numbers that a sampling option accepts.

    Attributes:
        low: Lower bound, inclusive unless `open_low`.
        high: Upper bound, inclusive; infinity for none.
        whole: Whether only integers are accepted.
        open_low: Whether `low` itself is excluded.
    """

    low: float
    high: float
    whole: bool = False
    open_low: bool = False

    def has(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high and math.isfinite(value)

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        start = f"above {self.low}" if self.open_low else f"from {self.low}"
        if self.high == math.inf:
            return f"{kind} {start}" if self.open_low else f"{kind} of {self.low} or more"
        # An upper bound of 2**31 - 1 only keeps the value in int32: messages omit it.
        end = "" if self.high >= _MAX_INT32 else f" {'and at most' if self.open_low else 'to'} "
        return f"{kind} {start}{end}{self.high if end else ''}"


_MAX_INT32 = (1 << 31) - 1
_MAX_NGRAM = 1 << 10  # tokens; each n-gram is compared with the whole text at each step
_MAX_SEED = (1 << 64) - 1
_FRACTION = _NumberRange(0, 1, open_low=True)
_PENALTY = _NumberRange(-2, 2)
_COUNT = _NumberRange(1, _MAX_INT32, whole=True)
_RANGES = {
    "max_new_tokens": _COUNT,
    "temperature": _NumberRange(0, math.inf),
    "top_k": _NumberRange(0, _MAX_INT32, whole=True),
    "top_p": _FRACTION,
    "min_p": _NumberRange(0, 1),
    "typical_p": _FRACTION,
    "repetition_penalty": _NumberRange(0, math.inf, open_low=True),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    # All results of a call are in memory at once.
    "num_return_sequences": _NumberRange(1, 1 << 16, whole=True),
    "max_length": _NumberRange(0, _MAX_INT32, whole=True),
    "min_length": _NumberRange(0, _MAX_INT32, whole=True),
    "min_new_tokens": _NumberRange(0, _MAX_INT32, whole=True),
    "no_repeat_ngram_size": _NumberRange(0, _MAX_NGRAM, whole=True),
    "encoder_no_repeat_ngram_size": _NumberRange(0, _MAX_NGRAM, whole=True),
    "length_penalty": _NumberRange(-1e3, 1e3),
    "num_beams": _NumberRange(1, 1 << 10, whole=True),
    "logprobs": _NumberRange(0, 20, whole=True),
    "lookup_tokens": _NumberRange(0, MAX_DRAFT_TOKENS, whole=True),
    "draft_tokens": _NumberRange(0, MAX_DRAFT_TOKENS, whole=True),
}
# Names of options in GGUF metadata (`general.sampling.…`).
_GGUF_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass(frozen=True)
class Sampling:
    """Options of text generation: how tokens are chosen, and what ends a text.

    Attributes:
        max_new_tokens: Maximum number of generated tokens.
        temperature: Divisor of the logits before a token is drawn. 0 selects the most likely token
            and ignores `top_k`, `top_p`, `min_p`, `typical_p` and `seed`.
        top_k: Number of most likely tokens to draw from; 0 for all.
        top_p: Draws from the smallest set of most likely tokens whose probabilities sum to at
            least this.
        min_p: Minimum probability of a drawn token, relative to the most likely token's.
        typical_p: Draws from the smallest set of tokens nearest to the expected information
            (locally typical sampling) whose probabilities sum to at least this.
        repetition_penalty: Penalty for tokens that occur in the prompt or the generated text: their
            logit is divided by this if positive, and multiplied if negative.
        presence_penalty: Subtracted from logits of tokens that occur in the generated text.
        frequency_penalty: Subtracted from a token's logit once per occurrence in the generated
            text.
        stop: Stop string or strings, which end the text.
        seed: Seed of the random draws; None for a random seed.
        logit_bias: Numbers added to logits, by token id; -inf bans a token.
        num_return_sequences: Number of texts per prompt.
        num_beams: Number of beams of a beam search; 1 for none.
        logprobs: Number of most likely tokens reported with each token and its log-probability; 0
            for no log-probabilities.
        include_stop: Whether the text keeps the stop string that ended it.
        lookup_tokens: Maximum number of draft tokens per step by prompt lookup; 0 for none. Texts
            are the same, in fewer steps.
        draft_tokens: Maximum number of draft tokens per step by the generator's draft model.
        max_length: Maximum number of tokens of prompt and generated text; 0 for no limit besides
            `max_new_tokens`. A call that passes `max_new_tokens` overrides a `max_length` in the
            model's files.
        min_length: Minimum number of tokens of prompt and generated text; end tokens are banned in
            shorter texts.
        min_new_tokens: Minimum number of generated tokens.
        no_repeat_ngram_size: Length of n-grams that may occur only once in prompt and generated
            text; 0 for no such rule.
        encoder_no_repeat_ngram_size: Length of n-grams of the prompt, or of the encoder input, that
            the generated text may not contain; 0 for no such rule.
        bad_words_ids: Token sequences that the generated text may not contain.
        suppress_tokens: Tokens that the generated text may not contain.
        begin_suppress_tokens: Tokens that the generated text may not start with.
        forced_bos_token_id: Second token of a text whose prompt is one token; None for any.
        forced_eos_token_id: Last token of a text of the maximum length; of several ids, the lowest
            is used; None for any token.
        sequence_bias: Pairs (token sequence, number), or a mapping from tuples of tokens to
            numbers. If the text ends with all but the last token of a sequence, the number is added
            to the logit of its last token.
        length_penalty: Beam scores are divided by the number of tokens to this power.
        early_stopping: When a beam search with `num_beams` results ends. True: at once. False: if
            no running beam has a better score than the worst result. "never": if no running beam
            can still reach a better score.
        renormalize_logits: Whether beams sum log-probabilities renormalized after the rules.

    Raises:
        InputError: A value has a wrong type or is out of its range.
    """

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: str | Sequence[str] = ()
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    num_return_sequences: int = 1
    num_beams: int = 1
    logprobs: int = 0
    include_stop: bool = False
    lookup_tokens: int = 0
    draft_tokens: int = 16
    max_length: int = 0
    min_length: int = 0
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: Sequence[Sequence[int]] = ()
    suppress_tokens: Sequence[int] = ()
    begin_suppress_tokens: Sequence[int] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = ()
    sequence_bias: Sequence[tuple[Sequence[int], float]] | Mapping[tuple[int, ...], float] = ()
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            self._set(name, _number(name, getattr(self, name), allowed))
        self._set("stop", _stops(self.stop))
        self._set("logit_bias", _bias(self.logit_bias))
        if self.seed is not None:
            self._set("seed", _seed(self.seed))
        for name in ("include_stop", "renormalize_logits"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is {getattr(self, name)!r}; expected True or False.")
        for name, check in _TOKEN_LISTS.items():
            self._set(name, check(name, getattr(self, name)))
        if self.early_stopping != "never" and not isinstance(self.early_stopping, bool):
            raise InputError(
                f'early_stopping is {self.early_stopping!r}; expected True, False or "never".'
            )
        if 1 < self.num_beams < self.num_return_sequences:
            raise InputError(
                f"num_return_sequences is {self.num_return_sequences}, and {self.num_beams} beams "
                "give no more answers than beams; raise num_beams."
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def biased_sequences(self) -> Sequence[tuple[Sequence[int], float]]:
        """`sequence_bias` as pairs (token sequence, number), also if it was passed as a mapping."""
        pairs = self.sequence_bias
        return () if isinstance(pairs, Mapping) else pairs

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always selected, so that nothing is drawn."""
        return self.temperature == 0

    @classmethod
    def from_folder(cls, folder: Path, **given: Any) -> Sampling:
        """Reads the sampling options that a model folder proposes, as transformers does.

        The options come from generation_config.json, or else genai_config.json, or else config.json
        (`read_proposed`). Tokens are drawn only if `do_sample` is true in the file. An option of
        value null counts as absent.

        Args:
            folder: Model folder.
            given: Options that override the options of the file, by name.

        Raises:
            ModelError: The file is damaged, or an option in it is invalid.
            UnsupportedError: The file requires a feature that clrt does not support.
            InputError: An option of `given` has a wrong type or is out of its range.
        """
        proposed = read_proposed(folder)
        if proposed.refusal:
            raise UnsupportedError(proposed.refusal)
        cls.checked(proposed.options, proposed.file)
        return cls(**{**proposed.options, **given})

    @classmethod
    def from_gguf(cls, metadata: Metadata) -> Sampling:
        """Reads the sampling options that a GGUF file proposes.

        Tokens are drawn only if the file proposes a temperature.

        Args:
            metadata: Metadata of the GGUF file.

        Raises:
            ModelError: An option in the metadata is invalid.
        """
        keys = {name: f"general.sampling.{key}" for name, key in _GGUF_KEYS.items()}
        return cls.checked(
            {n: metadata[k] for n, k in keys.items() if k in metadata}, metadata.file
        )

    @classmethod
    def checked(cls, proposed: Mapping[str, Any], file: Path) -> Sampling:
        """Creates options from values that a model's file proposes.

        Args:
            proposed: Values by name of the option.
            file: Path of the model's file, for error messages.

        Raises:
            ModelError: An option has a wrong type or is out of its range.
        """
        try:
            return cls(**proposed)
        except InputError as error:
            raise ModelError(f"'{file}': {error}") from error


def eos_tokens(folder: Path) -> tuple[int, ...]:
    """Reads the end token ids from generation_config.json, genai_config.json or config.json.

    Uses the first of these files that has any.

    Returns:
        Unique ids in the order of the file; empty if no file has any.

    Raises:
        ModelError: A file is damaged, or holds an invalid id.
    """
    for name in (GENERATION_CONFIG, GENAI_CONFIG, "config.json"):
        value = _object(folder / name, "model" if name == GENAI_CONFIG else "").get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for id_ in ids:
            if isinstance(id_, bool) or not isinstance(id_, int) or not 0 <= id_ <= _MAX_INT32:
                raise ModelError(
                    f"'{folder / name}' has the eos_token_id {id_!r}; expected the id of a token, "
                    "or a list of ids."
                )
        if ids:
            return tuple(dict.fromkeys(ids))
    return ()


def unfollowed_keys(config: Mapping[str, Any], followed: Collection[str]) -> list[str]:
    """Returns the keys of a generation_config.json that affect texts without being supported.

    Args:
        config: Contents of the file.
        followed: Names of the options of `Sampling` that the caller supports.
    """
    plain, draws = Sampling(), bool(config.get("do_sample"))
    left_out = set(followed)
    if config.get("num_beams") in (None, 1):
        left_out |= {"length_penalty", "early_stopping", "renormalize_logits"}
    options = [
        name
        for name, key in KEYS.items()
        if key.treatment == "option" and name not in left_out and not key.drawing
        if config.get(name) not in (None, [], getattr(plain, name))
    ]
    return [*active_keys(config, draws), *options, *(["do_sample"] if draws else [])]


def start_token(folder: Path) -> int:
    """Reads the decoder's start token id from generation_config.json or config.json.

    The id is that of `decoder_start_token_id`, or of `bos_token_id` if no file has the former.

    Raises:
        ModelError: A file is damaged or has an invalid id, or no file has an id.
    """
    file = folder / "config.json"
    for key in ("decoder_start_token_id", "bos_token_id"):
        for name in (GENERATION_CONFIG, "config.json"):
            file = folder / name
            token = read_optional(file).get(key)
            if isinstance(token, int) and not isinstance(token, bool) and 0 <= token <= _MAX_INT32:
                return token
            if token is not None:
                raise ModelError(f"'{file}' has the {key} {token!r}; expected the id of a token.")
    raise ModelError(
        f"'{file}' has no decoder_start_token_id; add it: the token that answers begin with."
    )


def _object(file: Path, part: str) -> Mapping[str, Any]:
    """Reads an object from a JSON file; returns {} if there is none.

    Args:
        file: Path of the file, which may be missing.
        part: Member of the file's object to return; "" for the object itself.
    """
    contents = read_optional(file)
    value = contents.get(part, {}) if part else contents
    return value if isinstance(value, dict) else {}


def _number(name: str, value: object, allowed: _NumberRange) -> float:
    kind = Integral if allowed.whole else Real
    if isinstance(value, kind) and not isinstance(value, bool):
        number = int(value) if isinstance(value, Integral) else float(value)
        if allowed.has(number):
            return number if allowed.whole else float(number)
    raise InputError(f"{name} is {value!r}; expected {allowed}.")


def whole_number(name: str, value: object, most: int) -> int:
    """Returns an argument as an int from 1 to `most`.

    Args:
        name: Name of the argument, for the error message.
        value: Value of the argument.
        most: Largest allowed value.

    Raises:
        InputError: The value is not an integer in that range.
    """
    return int(_number(name, value, _NumberRange(1, most, whole=True)))


def _seed(value: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= _MAX_SEED:
        return int(value)
    raise InputError(f"seed is {value!r}; expected None or a whole number from 0 to 2**64 - 1.")


def _stops(value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(x, str) and x for x in texts):
        raise InputError(
            f"stop is {value!r}; expected a text or a list of texts, none of them empty."
        )
    return tuple(texts)


def _bias(value: object) -> dict[int, float]:
    """Returns `logit_bias` as a checked dict from token ids to numbers."""
    if not isinstance(value, Mapping):
        raise InputError(f"logit_bias is {value!r}; expected a mapping from token ids to numbers.")
    biases = {}
    for token, bias in value.items():
        if isinstance(token, bool) or not isinstance(token, Integral) or int(token) < 0:
            raise InputError(f"logit_bias has the key {token!r}; keys are token ids.")
        if isinstance(bias, bool) or not isinstance(bias, Real) or not float(bias) < math.inf:
            raise InputError(
                f"logit_bias of token {token} is {bias!r}; expected a finite number, or -inf."
            )
        biases[int(token)] = float(bias)
    return biases


def _token(name: str, value: object) -> int:
    """Returns a token id as an int; raises if it is no id."""
    if (
        isinstance(value, Integral)
        and not isinstance(value, bool)
        and 0 <= int(value) <= _MAX_INT32
    ):
        return int(value)
    raise InputError(f"{name} has the token {value!r}; tokens are whole numbers from 0 on.")


def _token_list(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; expected a list of tokens.")
    return tuple(_token(name, token) for token in value)


def _token_lists(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; expected a list of lists of tokens.")
    lists = tuple(_token_list(name, one) for one in value)
    if () in lists:
        raise InputError(f"{name} has a list without tokens; leave it out.")
    return lists


def _token_or_none(name: str, value: object) -> int | None:
    return None if value is None else _token(name, value)


def _tokens_or_none(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return (_token(name, value),) if isinstance(value, Integral) else _token_list(name, value)


def _biased_lists(name: str, value: object) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise InputError(f"{name} is {value!r}; expected a list of pairs of tokens and a number.")
    biased = []
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"{name} has {pair!r}; each is a pair of tokens and a number.")
        ids, bias = pair
        if isinstance(bias, bool) or not isinstance(bias, Real) or not float(bias) < math.inf:
            raise InputError(f"{name} has the number {bias!r}; expected a finite number, or -inf.")
        biased.append((_token_lists(name, [ids])[0], float(bias)))
    return tuple(biased)


_TOKEN_LISTS: Mapping[str, Callable[[str, object], object]] = {
    "bad_words_ids": _token_lists,
    "suppress_tokens": _token_list,
    "begin_suppress_tokens": _token_list,
    "forced_bos_token_id": _token_or_none,
    "forced_eos_token_id": _tokens_or_none,
    "sequence_bias": _biased_lists,
}
