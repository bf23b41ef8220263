"""How text is generated: what a user may choose, and what a model folder proposes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from clrt.container.gguf_metadata import Metadata
from clrt.errors import InputError, ModelError
from clrt.generation.folder import read_object
from clrt.generation.pace import MOST_GUESSES


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


_GENAI = "genai_config.json"  # of onnxruntime-genai, in place of transformers' files
_LARGEST = (1 << 31) - 1
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
    "num_beams": _Numbers(1, 1 << 10, whole=True),
    "logprobs": _Numbers(0, 20, whole=True),
    "lookup_tokens": _Numbers(0, MOST_GUESSES, whole=True),
    "draft_tokens": _Numbers(0, MOST_GUESSES, whole=True),
}
# What transformers picks among where a folder that samples does not say.
_USUAL_TOP_K = 50
# What llama.cpp calls options.
_GGUF_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# Options that no file proposes.
_OF_CALLS = {
    *("logprobs", "presence_penalty", "frequency_penalty"),
    *("lookup_tokens", "draft_tokens"),
}
# Options that only count where tokens are drawn.
_OF_DRAWING = {"temperature", "top_k", "top_p", "min_p", "typical_p"}


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

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            self._set(name, _number(name, getattr(self, name), allowed))
        self._set("stop", _stops(self.stop))
        self._set("logit_bias", _bias(self.logit_bias))
        if self.seed is not None:
            self._set("seed", _seed(self.seed))
        if not isinstance(self.include_stop, bool):
            raise InputError(f"include_stop is {self.include_stop!r}; it is True or False.")
        if 1 < self.num_beams < self.num_return_sequences:
            raise InputError(
                f"num_return_sequences is {self.num_return_sequences}, and {self.num_beams} beams "
                "give no more answers than beams; raise num_beams."
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether no token is drawn."""
        return self.temperature == 0

    @classmethod
    def from_folder(cls, folder: Path, **given: Any) -> Sampling:
        """What the folder's generation_config.json proposes, as transformers reads it.

        Without that file, what genai_config.json does.

        Without `do_sample` tokens are not drawn. Values of null count as absent.

        Args:
            given: Options that the file does not decide.

        Raises:
            ModelError: The file is damaged, or proposes what no option may be.
            InputError: A given option is wrong.
        """
        file = folder / "generation_config.json"
        found = read_object(file)
        if not file.exists():
            file, found = folder / _GENAI, _object(folder / _GENAI, "search")
        proposed = _proposed(found, file)
        cls._checked(proposed, file)
        return cls(**{**proposed, **given})

    @classmethod
    def from_gguf(cls, metadata: Metadata) -> Sampling:
        """What a GGUF file proposes. Without a temperature tokens are not drawn.

        Raises:
            ModelError: It proposes what no option may be.
        """
        keys = {name: f"general.sampling.{key}" for name, key in _GGUF_KEYS.items()}
        return cls._checked(
            {n: metadata[k] for n, k in keys.items() if k in metadata}, metadata.file
        )

    @classmethod
    def _checked(cls, proposed: Mapping[str, Any], file: Path) -> Sampling:
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
    for name in ("generation_config.json", _GENAI, "config.json"):
        found = _object(folder / name, "model" if name == _GENAI else "").get("eos_token_id")
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


def start_token(folder: Path) -> int:
    """The id that an encoder-decoder's texts begin with, of generation_config.json or config.json.

    Raises:
        ModelError: A file is damaged, or none has an id of a token.
    """
    file = folder / "config.json"
    for key in ("decoder_start_token_id", "bos_token_id"):
        for name in ("generation_config.json", "config.json"):
            file = folder / name
            found = read_object(file).get(key)
            if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= _LARGEST:
                return found
            if found is not None:
                raise ModelError(f"'{file}' has the {key} {found!r}; it is the id of a token.")
    raise ModelError(
        f"'{file}' has no decoder_start_token_id; add it: the token that answers begin with."
    )


def _object(file: Path, part: str) -> Mapping[str, Any]:
    """A JSON object, or the object of that name in it; an empty one where there is none."""
    found = read_object(file)
    value = found.get(part, {}) if part else found
    return value if isinstance(value, dict) else {}


def _proposed(config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Options of a generation_config.json, by our names."""
    names = set(_RANGES) - _OF_CALLS
    found = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("stop_strings") is not None:
        found["stop"] = config["stop_strings"]
    draws = config.get("do_sample") or False
    if not isinstance(draws, bool):
        raise ModelError(f"'{file}' has do_sample {draws!r}; it is true or false.")
    if draws:
        return {"temperature": 1.0, "top_k": _USUAL_TOP_K, **found}
    return {name: value for name, value in found.items() if name not in _OF_DRAWING}


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
