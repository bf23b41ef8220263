"""Options of the text-generation commands, and helpers to open models and print speeds."""

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

_MAX_FILE_BYTES = 256 << 20  # Text files: prompts, schemas, grammars.

LanguageModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder of a language model, or its name in a cache."),
]
ContextOption = Annotated[
    int | None, typer.Option(help="Maximum tokens of prompt and answer together.")
]
CacheOption = Annotated[
    str, typer.Option(help="Storage of the KV cache: float32, float16 or int8.")
]
DraftOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="A smaller model with the same tokens, for speculative decoding."
    ),
]
SystemOption = Annotated[str | None, typer.Option(help="System message, the first of the chat.")]


def _option(kind: Any, text: str) -> Any:
    """Returns the annotation of a command-line option of type `kind`, with the help `text`."""
    # typer's metavar of a list is so wide that option names are cut in 80 columns.
    metavar = "<str>" if kind == list[str] | None else None
    return Annotated[kind, typer.Option(help=text, metavar=metavar)]


_NUMBER, _COUNT = float | None, int | None

SAMPLING_OPTIONS: Mapping[str, Any] = {
    "max_new_tokens": _option(_COUNT, "Maximum number of generated tokens."),
    "temperature": _option(_NUMBER, "0 always takes the likeliest token; higher is more random."),
    "top_k": _option(_COUNT, "Sample among this number of likeliest tokens; 0 for all."),
    "top_p": _option(_NUMBER, "Sample among the likeliest tokens of this total probability."),
    "min_p": _option(_NUMBER, "Minimum probability relative to the likeliest token's."),
    "typical_p": _option(_NUMBER, "Sample among the most typical tokens of this probability."),
    "repetition_penalty": _option(_NUMBER, "Values above 1 make repeated tokens less likely."),
    "presence_penalty": _option(_NUMBER, "Subtracted from the logits of tokens in the answer."),
    "frequency_penalty": _option(_NUMBER, "Subtracted per occurrence of a token in the answer."),
    "stop": _option(list[str] | None, "A text that ends the answer; may be repeated."),
    "seed": _option(_COUNT, "Seed of the sampling."),
    "logit_bias": _option(list[str] | None, "ID=NUMBER is added to a token's logit; -inf bans it."),
    "num_return_sequences": _option(_COUNT, "Number of answers to the prompt."),
    "num_beams": _option(_COUNT, "Number of beams of a beam search."),
    "logprobs": _option(_COUNT, "With --json: number of likeliest tokens per position."),
    # Without a --no form, whose name would narrow the help column of all options.
    "include_stop": Annotated[
        bool | None, typer.Option("--include-stop", help="Keep the text that ended the answer.")
    ],
    "lookup_tokens": _option(_COUNT, "Maximum draft tokens from earlier in the text."),
    "draft_tokens": _option(_COUNT, "Maximum draft tokens by the --draft model."),
    "max_length": _option(_COUNT, "Maximum tokens of prompt and answer; 0 for no limit."),
    "min_new_tokens": _option(_COUNT, "Minimum number of generated tokens."),
    "no_repeat_ngram_size": _option(_COUNT, "No sequence of this many tokens repeats; 0 for off."),
    "length_penalty": _option(
        _NUMBER, "Above 1 beams prefer longer answers, below 1 shorter ones."
    ),
}
"""Field of `Sampling` -> its command-line option; None keeps the model's own value."""
NOT_OPTIONS = (
    *("min_length", "encoder_no_repeat_ngram_size", "bad_words_ids", "suppress_tokens"),
    *("begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias"),
    *("early_stopping", "renormalize_logits"),
)
"""Fields of `Sampling` without a command-line option."""

SEVERAL = ("num_return_sequences", "num_beams", "logprobs")


def with_sampling(*without: str) -> Callable[[Command], Command]:
    """Returns a decorator that adds the sampling options to a command's command line.

    The sampling options replace the keyword parameter (`**sampling`) of the command.

    Args:
        without: Names of options to leave out.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        kinds = inspect.Parameter
        parameters = [p for p in signature.parameters.values() if p.kind is not kinds.VAR_KEYWORD]
        sampling = [
            kinds(name, kinds.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in SAMPLING_OPTIONS.items()
            if name not in without
        ]
        extended = signature.replace(parameters=[*parameters, *sampling])
        command.__signature__ = extended  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in extended.parameters.values()}
        return command

    return decorate


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sampling options that the user set, in the form `TextGenerator` expects.

    Args:
        options: Value by option name; None or [] if the option is not set.

    Raises:
        InputError: A logit bias is not ID=NUMBER.
    """
    result = {name: value for name, value in options.items() if value not in (None, [])}
    if "logit_bias" in result:
        result["logit_bias"] = dict(map(_bias, result["logit_bias"]))
    return result


def _bias(text: str) -> tuple[int, float]:
    """Parses a logit bias written as `TOKEN=NUMBER`."""
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise InputError(f"'{text}' is not a bias; write it as 42=-1.5, or 42=-inf.") from None


def open_generator(
    model: str,
    device: str | None,
    context: int | None,
    cache: str = "float32",
    lora: Sequence[str] | None = None,
    draft: str | None = None,
) -> TextGenerator:
    """Opens a language model, with its adapters and draft model.

    Args:
        model: Path or name of the model.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        context: Maximum number of tokens of a sequence; None for the model's own limit.
        cache: Dtype of the KV cache: "float32", "float16" or "int8".
        lora: Adapters, as PATH or PATH:FACTOR.
        draft: Path or name of the draft model; None for none.

    Raises:
        ModelError: The model does not exist, or one of its files is missing or damaged.
        ClrtError: The model cannot be loaded, as in `TextGenerator`.
    """
    source = find_model(model, organisation="")
    draft_source = None if draft is None else find_model(draft, organisation="")
    adapters = given_adapters(lora)
    return TextGenerator(
        source, draft=draft_source, device=device, context=context, cache=cache, lora=adapters
    )


def read_text_file(file: Path) -> str:
    """Reads a UTF-8 text file of at most `_MAX_FILE_BYTES`.

    Raises:
        InputError: The file cannot be read, is too large, or is not UTF-8.
    """
    try:
        return read_regular(expanded(file), _MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{file}' is not UTF-8 text (byte {error.start}); convert it, for example by iconv."
        ) from error
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error.strerror or error}.") from error


def speeds(timings: TextTimings) -> str:
    """Describes the speed of a generated answer in one line of text."""
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
    """Converts a value to JSON values: dataclasses to objects, tuples to lists, recursively."""
    fields: Sequence[str] = getattr(value, "__dataclass_fields__", ())
    if fields:
        return {name: as_object(getattr(value, name)) for name in fields}
    if isinstance(value, tuple):
        return [as_object(one) for one in value]
    return value
