"""How text is generated: what a user may choose, and what a model folder proposes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from clrt.generation.speculation_policy import MOST_GUESSES
from clrt.models.huggingface.model_files import read_optional


class _Numbers(NamedTuple):
    """The numbers that an option may have.

    Attributes:
        open_low: Whether `low` itself is not allowed.
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
        # What only keeps numbers in their type is no range to tell of.
        end = "" if self.high >= _LARGEST else f" {'and at most' if self.open_low else 'to'} "
        return f"{kind} {start}{end}{self.high if end else ''}"


_LARGEST = (1 << 31) - 1
_MOST_NGRAM = 1 << 10  # tokens; each is compared with all of a text at each step
_SEEDS = (1 << 64) - 1
_SHARE = _Numbers(0, 1, open_low=True)
_PENALTY = _Numbers(-2, 2)
_COUNT = _Numbers(1, _LARGEST, whole=True)
_RANGES = {
    "max_new_tokens": _COUNT,
    "temperature": _Numbers(0, math.inf),
    "top_k": _Numbers(0, _LARGEST, whole=True),
    "top_p": _SHARE,
    "min_p": _Numbers(0, 1),
    "typical_p": _SHARE,
    "repetition_penalty": _Numbers(0, math.inf, open_low=True),
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    # All of them are kept at once.
    "num_return_sequences": _Numbers(1, 1 << 16, whole=True),
    "max_length": _Numbers(0, _LARGEST, whole=True),
    "min_length": _Numbers(0, _LARGEST, whole=True),
    "min_new_tokens": _Numbers(0, _LARGEST, whole=True),
    "no_repeat_ngram_size": _Numbers(0, _MOST_NGRAM, whole=True),
    "encoder_no_repeat_ngram_size": _Numbers(0, _MOST_NGRAM, whole=True),
    "length_penalty": _Numbers(-1e3, 1e3),
    "num_beams": _Numbers(1, 1 << 10, whole=True),
    "logprobs": _Numbers(0, 20, whole=True),
    "lookup_tokens": _Numbers(0, MOST_GUESSES, whole=True),
    "draft_tokens": _Numbers(0, MOST_GUESSES, whole=True),
}
# What llama.cpp calls options.
_GGUF_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and where a text ends.

    Attributes:
        max_new_tokens: The most tokens of an answer.
        temperature: Logits are divided by it and a token is drawn. 0 takes the likeliest token;
            then `top_k`, `top_p`, `min_p`, `typical_p` and `seed` do not count.
        top_k: Draws among so many of the likeliest tokens; 0 for all.
        top_p: Draws among the fewest likeliest tokens that have this share of the probability.
        min_p: Draws among tokens that have this share of the likeliest one's probability.
        typical_p: Draws among the fewest tokens nearest to the expected information that have
            this share of the probability.
        repetition_penalty: Divides positive logits of tokens that the prompt or the answer has,
            and multiplies negative ones.
        presence_penalty: Subtracted from logits of tokens that the answer has.
        frequency_penalty: Subtracted as often as the answer has the token.
        stop: Texts that end the answer; one text or several.
        seed: Makes drawing repeatable; None draws anew each time.
        logit_bias: What is added to the logits of tokens, by id; -inf bans one.
        num_return_sequences: Answers to each prompt.
        num_beams: Beams of a beam search; 1 for none.
        logprobs: 0 for none; else each token comes with its log probability, and with so many of
            the likeliest ones.
        include_stop: Whether the answer keeps the text that ended it.
        lookup_tokens: The most tokens that are guessed at a time by what prompt and answer say
            already; 0 for none. The answer is the same, and comes in fewer steps.
        draft_tokens: The same, by the draft model of the generator.
        max_length: Maximum number of tokens of prompt and answer; 0 for no limit besides
            `max_new_tokens`, which comes before it where a call gives it.
        min_length: Minimum number of tokens of prompt and answer: before, no token ends the text.
        min_new_tokens: Minimum number of tokens of the answer.
        no_repeat_ngram_size: No sequence of so many tokens comes twice in prompt and answer; 0 for
            no such rule.
        encoder_no_repeat_ngram_size: The answer has no sequence of so many tokens that the prompt,
            or what the encoder reads, has; 0 for no such rule.
        bad_words_ids: Sequences of tokens that the answer does not have.
        suppress_tokens: Tokens that the answer does not have.
        begin_suppress_tokens: Tokens that the answer does not begin with.
        forced_bos_token_id: Second token of a text of one token; None for any.
        forced_eos_token_id: Last token of an answer of the maximum length; the lowest of several;
            None for any.
        sequence_bias: Pairs of a sequence of tokens and a number, which is added to the logit of
            its last token behind the others; a mapping from tuples of tokens is taken, too.
        length_penalty: Beams are chosen by the sum of log-probabilities divided by the number of
            tokens to this power.
        early_stopping: True ends a beam search once there are `num_beams` results; False once none
            of the running ones is better; "never" once none can become better.
        renormalize_logits: Whether beams add log-probabilities of what the rules leave.

    Raises:
        InputError: A value is of a wrong type or out of its range.
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
                raise InputError(f"{name} is {getattr(self, name)!r}; it is True or False.")
        for name, check in _TOKEN_LISTS.items():
            self._set(name, check(name, getattr(self, name)))
        if self.early_stopping != "never" and not isinstance(self.early_stopping, bool):
            raise InputError(
                f'early_stopping is {self.early_stopping!r}; it is True, False or "never".'
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
        """`sequence_bias` as pairs, whatever form it was given in."""
        found = self.sequence_bias
        return () if isinstance(found, Mapping) else found

    @property
    def is_greedy(self) -> bool:
        """Whether no token is drawn."""
        return self.temperature == 0

    @classmethod
    def from_folder(cls, folder: Path, **given: Any) -> Sampling:
        """What the folder's generation_config.json proposes, as transformers reads it.

        Without that file, what genai_config.json or config.json does (`read_proposed`).

        Without `do_sample` tokens are not drawn. Values of null count as absent.

        Args:
            given: Options that the file does not decide.

        Raises:
            ModelError: The file is damaged, or proposes what no option may be.
            UnsupportedError: It asks for what clrt does not follow.
            InputError: A given option is wrong.
        """
        proposed = read_proposed(folder)
        if proposed.refusal:
            raise UnsupportedError(proposed.refusal)
        cls.checked(proposed.options, proposed.file)
        return cls(**{**proposed.options, **given})

    @classmethod
    def from_gguf(cls, metadata: Metadata) -> Sampling:
        """What a GGUF file proposes. Without a temperature tokens are not drawn.

        Raises:
            ModelError: It proposes what no option may be.
        """
        keys = {name: f"general.sampling.{key}" for name, key in _GGUF_KEYS.items()}
        return cls.checked(
            {n: metadata[k] for n, k in keys.items() if k in metadata}, metadata.file
        )

    @classmethod
    def checked(cls, proposed: Mapping[str, Any], file: Path) -> Sampling:
        """Options that a file proposes.

        Raises:
            ModelError: One of them is of a wrong type or out of its range.
        """
        try:
            return cls(**proposed)
        except InputError as error:
            raise ModelError(f"'{file}': {error}") from error


def eos_tokens(folder: Path) -> tuple[int, ...]:
    """The ids that end an answer: those of generation_config.json, or else of genai_config.json,
    or else of config.json.

    Returns:
        Ids in the order of the file, each once; none where neither file has one.

    Raises:
        ModelError: A file is damaged, or holds what is no id.
    """
    for name in (GENERATION_CONFIG, GENAI_CONFIG, "config.json"):
        found = _object(folder / name, "model" if name == GENAI_CONFIG else "").get("eos_token_id")
        ids = found if isinstance(found, list) else [] if found is None else [found]
        for one in ids:
            if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one <= _LARGEST:
                raise ModelError(
                    f"'{folder / name}' has the eos_token_id {one!r}; it is the id of a token, or "
                    "a list of ids."
                )
        if ids:
            return tuple(dict.fromkeys(ids))
    return ()


def unfollowed_keys(config: Mapping[str, Any], followed: Collection[str]) -> list[str]:
    """Keys of a generation_config.json that change texts and are not followed.

    Args:
        followed: Options of `Sampling` that are.
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
    """The id that an encoder-decoder's texts begin with, of generation_config.json or config.json.

    Raises:
        ModelError: A file is damaged, or none has an id of a token.
    """
    file = folder / "config.json"
    for key in ("decoder_start_token_id", "bos_token_id"):
        for name in (GENERATION_CONFIG, "config.json"):
            file = folder / name
            found = read_optional(file).get(key)
            if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _LARGEST:
                return found
            if found is not None:
                raise ModelError(f"'{file}' has the {key} {found!r}; it is the id of a token.")
    raise ModelError(
        f"'{file}' has no decoder_start_token_id; add it: the token that answers begin with."
    )


def _object(file: Path, part: str) -> Mapping[str, Any]:
    """A JSON object, or the object of that name in it; an empty one where there is none."""
    found = read_optional(file)
    value = found.get(part, {}) if part else found
    return value if isinstance(value, dict) else {}


def _number(name: str, value: object, allowed: _Numbers) -> float:
    kind = Integral if allowed.whole else Real
    if isinstance(value, kind) and not isinstance(value, bool):
        number = int(value) if isinstance(value, Integral) else float(value)
        if allowed.has(number):
            return number if allowed.whole else float(number)
    raise InputError(f"{name} is {value!r}; it is {allowed}.")


def whole_number(name: str, value: object, most: int) -> int:
    """An argument that is a whole number from 1 to `most`.

    Raises:
        InputError: It is not.
    """
    return int(_number(name, value, _Numbers(1, most, whole=True)))


def _seed(value: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= _SEEDS:
        return int(value)
    raise InputError(f"seed is {value!r}; it is None or a whole number from 0 to 2**64 - 1.")


def _stops(value: object) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(x, str) and x for x in texts):
        raise InputError(f"stop is {value!r}; it is a text or a list of texts, none of them empty.")
    return tuple(texts)


def _bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InputError(f"logit_bias is {value!r}; it is a mapping from token ids to numbers.")
    made = {}
    for token, bias in value.items():
        if isinstance(token, bool) or not isinstance(token, Integral) or int(token) < 0:
            raise InputError(f"logit_bias has the key {token!r}; keys are token ids.")
        if isinstance(bias, bool) or not isinstance(bias, Real) or not float(bias) < math.inf:
            raise InputError(
                f"logit_bias of token {token} is {bias!r}; it is a finite number, or -inf."
            )
        made[int(token)] = float(bias)
    return made


def _token(name: str, value: object) -> int:
    if isinstance(value, Integral) and not isinstance(value, bool) and 0 <= int(value) <= _LARGEST:
        return int(value)
    raise InputError(f"{name} has the token {value!r}; tokens are whole numbers from 0 on.")


def _token_list(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; it is a list of tokens.")
    return tuple(_token(name, token) for token in value)


def _token_lists(name: str, value: object) -> tuple[tuple[int, ...], ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; it is a list of lists of tokens.")
    found = tuple(_token_list(name, one) for one in value)
    if () in found:
        raise InputError(f"{name} has a list without tokens; leave it out.")
    return found


def _token_or_none(name: str, value: object) -> int | None:
    return None if value is None else _token(name, value)


def _tokens_or_none(name: str, value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return (_token(name, value),) if isinstance(value, Integral) else _token_list(name, value)


def _biased_lists(name: str, value: object) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise InputError(f"{name} is {value!r}; it is a list of pairs of tokens and a number.")
    made = []
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"{name} has {pair!r}; each is a pair of tokens and a number.")
        ids, bias = pair
        if isinstance(bias, bool) or not isinstance(bias, Real) or not float(bias) < math.inf:
            raise InputError(f"{name} has the number {bias!r}; it is a finite number, or -inf.")
        made.append((_token_lists(name, [ids])[0], float(bias)))
    return tuple(made)


_TOKEN_LISTS: Mapping[str, Callable[[str, object], object]] = {
    "bad_words_ids": _token_lists,
    "suppress_tokens": _token_list,
    "begin_suppress_tokens": _token_list,
    "forced_bos_token_id": _token_or_none,
    "forced_eos_token_id": _tokens_or_none,
    "sequence_bias": _biased_lists,
}
