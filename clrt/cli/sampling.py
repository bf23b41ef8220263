"""What the commands of text generation have in common: options, and how texts are shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from clrt.cli.adapters import given_adapters
from clrt.errors import InputError
from clrt.generation.result import TextTimings
from clrt.generation.text_generator import TextGenerator
from clrt.models.locate import find_model
from clrt.util.files import expanded, read_regular

Command = TypeVar("Command", bound=Callable[..., None])

_MOST_BYTES = 256 << 20

LanguageModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder of a language model, or its name in a cache."),
]
ContextOption = Annotated[
    int | None, typer.Option(help="The most tokens of a text with its prompt.")
]
CacheOption = Annotated[
    str, typer.Option(help="How keys and values are kept: float32, float16 or int8.")
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="A smaller model with the same tokens, which guesses ahead."
    ),
]
SystemOption = Annotated[str | None, typer.Option(help="The system's message, the first one.")]


def _option(kind: Any, text: str) -> Any:
    # The type that typer shows of a list is so wide that names of options are cut in 80 columns.
    metavar = "<str>" if kind == list[str] | None else None
    return Annotated[kind, typer.Option(help=text, metavar=metavar)]


_NUMBER, _COUNT = float | None, int | None

SAMPLING_OPTIONS: Mapping[str, Any] = {
    "max_new_tokens": _option(_COUNT, "The most tokens of an answer."),
    "temperature": _option(_NUMBER, "0 takes the likeliest token; more draws more freely."),
    "top_k": _option(_COUNT, "Draw among so many of the likeliest tokens; 0 for all."),
    "top_p": _option(_NUMBER, "Draw among the likeliest tokens of this share of probability."),
    "min_p": _option(_NUMBER, "Draw among tokens of this share of the likeliest one's."),
    "typical_p": _option(_NUMBER, "Draw among the most typical tokens of this share."),
    "repetition_penalty": _option(_NUMBER, "Above 1 tokens that were there are less likely."),
    "presence_penalty": _option(_NUMBER, "Subtracted from the logits of the answer's tokens."),
    "frequency_penalty": _option(_NUMBER, "Subtracted as often as the answer has a token."),
    "stop": _option(list[str] | None, "A text that ends the answer; may be repeated."),
    "seed": _option(_COUNT, "Makes drawing repeatable."),
    "logit_bias": _option(list[str] | None, "ID=NUMBER is added to a token's logit; -inf bans it."),
    "num_return_sequences": _option(_COUNT, "Answers to the prompt."),
    "num_beams": _option(_COUNT, "Beams of a beam search."),
    "logprobs": _option(_COUNT, "With --json: so many of the likeliest tokens at each place."),
    # Without a form that says no, whose name would leave the others too little room in a help.
    "include_stop": Annotated[
        bool | None, typer.Option("--include-stop", help="Keep the text that ended the answer.")
    ],
    "lookup_tokens": _option(_COUNT, "Guess so many tokens ahead by what the text says already."),
    "draft_tokens": _option(_COUNT, "Guess so many tokens ahead by the --draft model."),
    "max_length": _option(_COUNT, "The most tokens of prompt and answer; 0 for no such limit."),
    "min_new_tokens": _option(_COUNT, "The fewest tokens of an answer."),
    "no_repeat_ngram_size": _option(_COUNT, "No so many tokens in a row come twice; 0 allows it."),
    "length_penalty": _option(
        _NUMBER, "Above 1 beams prefer longer answers, below 1 shorter ones."
    ),
}
"""Fields of `Sampling` as options. What is not given is as the model proposes."""
NOT_OPTIONS = (
    *("min_length", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"),
    *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias"),
    *("early_stopping", "renormalize_logits"),
)
"""Fields that only calls and the model's files give."""

SEVERAL = ("num_return_sequences", "num_beams", "logprobs")


def with_sampling(*without: str) -> Callable[[Command], Command]:
    """Gives a command, in the place of its `**options`, those of `SAMPLING_OPTIONS`.

    Args:
        without: Names of those that it has not.
    """

    def give(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        kinds = inspect.Parameter
        own = [p for p in signature.parameters.values() if p.kind is not kinds.VAR_KEYWORD]
        more = [
            kinds(name, kinds.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in SAMPLING_OPTIONS.items()
            if name not in without
        ]
        whole = signature.replace(parameters=[*own, *more])
        command.__signature__ = whole  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in whole.parameters.values()}
        return command

    return give


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for `TextGenerator`: those that were given.

    Raises:
        InputError: A bias has not the form ID=NUMBER.
    """
    found = {name: value for name, value in options.items() if value not in (None, [])}
    if "logit_bias" in found:
        found["logit_bias"] = dict(map(_bias, found["logit_bias"]))
    return found


def _bias(text: str) -> tuple[int, float]:
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise InputError(f"'{text}' is no bias; write it as 42=-1.5, or 42=-inf.") from None


def open_generator(
    model: str,
    device: str | None,
    context: int | None,
    cache: str = "float32",
    lora: Sequence[str] | None = None,
    draft: str | None = None,
) -> TextGenerator:
    """The model that a command is given, with its draft model.

    Args:
        lora: Adapters, as PATH or PATH:FACTOR.

    Raises:
        ModelError: There is none, or a file of it is missing or damaged.
        ClrtError: As `TextGenerator`.
    """
    source = find_model(model, organisation="")
    ahead = None if draft is None else find_model(draft, organisation="")
    adapters = given_adapters(lora)
    return TextGenerator(
        source, draft=ahead, device=device, context=context, cache=cache, lora=adapters
    )


def read_text_file(file: Path) -> str:
    """A text file that a user names.

    Raises:
        InputError: It cannot be read, or is not UTF-8.
    """
    try:
        return read_regular(expanded(file), _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{file}' is not UTF-8 text (byte {error.start}); convert it, for example by iconv."
        ) from error
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error.strerror or error}.") from error


def speeds(timings: TextTimings) -> str:
    """How fast an answer came, in a line."""
    parts = [f"{timings.tokens} tokens"]
    if timings.tokens_per_s:
        parts[0] += f", {timings.tokens_per_s:.1f} tokens/s"
    parts.append(
        f"prompt {timings.prompt_tokens} tokens, {timings.prompt_tokens_per_s:.1f} tokens/s"
    )
    parts.append(f"first token after {timings.prompt_s:.2f} s")
    parts += [timings.guesses] if timings.drafted else []
    return "; ".join(parts)


def as_object(value: object) -> Any:
    """A result as JSON has it: objects of dataclasses, lists of tuples."""
    fields: Sequence[str] = getattr(value, "__dataclass_fields__", ())
    if fields:
        return {name: as_object(getattr(value, name)) for name in fields}
    if isinstance(value, tuple):
        return [as_object(one) for one in value]
    return value
