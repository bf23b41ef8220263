"""The command `clrt generate`: generates text with a language model."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from clrt.cli.adapters import LoraOption
from clrt.cli.console import echo, echo_json, stderr
from clrt.cli.ctrl_c import ending_by_interrupt
from clrt.cli.sampling import (
    CacheOption,
    ContextOption,
    DraftOption,
    LanguageModelArgument,
    SystemOption,
    as_object,
    given_options,
    open_generator,
    read_text_file,
    speeds,
    with_sampling,
)
from clrt.cli.shapes import DeviceOption
from clrt.errors import InputError
from clrt.generation.result import GeneratedText
from clrt.generation.text_generator import TextGenerator
from clrt.util.table_text import PlainText

# Exit code after Ctrl-C, as of shells: 128 plus the number of SIGINT.
EXIT_INTERRUPTED = 130


@with_sampling()
def generate(
    model: LanguageModelArgument,
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue; - or none reads stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a UTF-8 file.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message to the chat template.")
    ] = False,
    system: SystemOption = None,
    stream: Annotated[bool, typer.Option(help="Print the text while it is generated.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per answer, at the end.")
    ] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON schema that constrains the answer.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression that constrains the answer.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="File with a grammar that constrains the answer.")
    ] = None,
    lora: LoraOption = None,
    context: ContextOption = None,
    cache: CacheOption = "float32",
    draft: DraftOption = None,
    device: DeviceOption = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Print the speed at the end, on stderr.")
    ] = False,
    **sampling: Any,
) -> None:
    """Generate text with a language model.

    Ctrl-C ends the text. Control characters are shown as escapes such as \\x1b; --json has the
    unchanged text. Sampling options default to the model's own.
    """
    options = given_options(sampling)
    options |= {name: read_text_file(f) for name, f in _rules(json_schema, grammar) if f}
    if regex is not None:
        options["regex"] = regex
    text = _prompt(prompt, file)
    if system is not None and not chat:
        raise InputError("--system needs --chat; give both.")
    messages = [{"role": "system", "content": system}] if system is not None else []
    request = [*messages, {"role": "user", "content": text}] if chat else text
    with open_generator(model, device, context, cache, lora, draft) as generator:
        if max(options.get("num_return_sequences", 1), options.get("num_beams", 1)) > 1:
            results = generator.generate(request, **options)
            answers = results if isinstance(results, list) else [results]
        else:
            answers = [_stream(generator, request, options, shown=stream and not as_json)]
    _print(answers, as_json, streamed=stream and len(answers) == 1)
    for answer in answers:
        if timings and answer.timings is not None:
            stderr().print(PlainText(speeds(answer.timings), style="dim"), soft_wrap=True)
    if any(answer.finish_reason == "cancelled" for answer in answers):
        raise typer.Exit(EXIT_INTERRUPTED)


def _rules(*files: Path | None) -> Sequence[tuple[str, Path | None]]:
    return list(zip(("json_schema", "grammar"), files, strict=True))


def _prompt(prompt: str | None, file: Path | None) -> str:
    """Returns the prompt of `clrt generate`.

    Args:
        prompt: Argument of the command; "-" or None reads standard input.
        file: UTF-8 file with the prompt; None for no file.

    Raises:
        InputError: There is no prompt, or both an argument and a file; or the prompt is not UTF-8.
    """
    if file is not None:
        if prompt is not None:
            raise InputError("The prompt is given twice, as a text and by --file; leave one out.")
        return read_text_file(file)
    if prompt is not None and prompt != "-":
        return prompt
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        raise InputError("There is no prompt; give a text, --file, or pipe one in.")
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"The prompt is not UTF-8 text (byte {error.start}); convert it, for example by iconv."
        ) from error


def _stream(
    generator: TextGenerator, prompt: Any, options: dict[str, Any], shown: bool
) -> GeneratedText:
    """Generates one answer; Ctrl-C ends it early.

    Args:
        generator: The language model.
        prompt: Text, or messages of a chat.
        options: Sampling options.
        shown: Whether to print the text while it is generated.
    """
    with generator.stream(prompt, **options) as chunks, ending_by_interrupt(chunks):
        for chunk in chunks:
            if shown:
                echo(chunk, end="")
        return chunks.result


def _print(answers: Sequence[GeneratedText], as_json: bool, streamed: bool) -> None:
    """Prints the answers as JSON, or the texts that were not streamed.

    Args:
        answers: Generated answers.
        as_json: Whether to print one JSON object per answer.
        streamed: Whether the texts were printed while they were generated.
    """
    for number, answer in enumerate(answers, start=1):
        if as_json:
            echo_json(as_object(answer))
            continue
        if len(answers) > 1:
            echo(f"[{number}]")
        if not streamed:
            echo(answer.text, end="")
        echo()
