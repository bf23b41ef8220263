"""`clrt generate`."""

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

EXIT_INTERRUPTED = 130


@with_sampling()
def generate(
    model: LanguageModelArgument,
    prompt: Annotated[
        str | None, typer.Argument(help="The text to go on with; - or none reads stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a UTF-8 file.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a message to the chat template.")
    ] = False,
    system: SystemOption = None,
    stream: Annotated[bool, typer.Option(help="Print the text as it comes.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per answer, at the end.")
    ] = False,
    json_schema: Annotated[
        Path | None, typer.Option(help="A JSON schema that the answer keeps to: its file.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="A regular expression that the answer keeps to.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="A grammar that the answer keeps to: its file.")
    ] = None,
    lora: LoraOption = None,
    context: ContextOption = None,
    cache: CacheOption = "float32",
    draft: DraftOption = None,
    device: DeviceOption = None,
    timings: Annotated[
        bool, typer.Option("--timings", help="Say at the end how fast it was, on stderr.")
    ] = False,
    **sampling: Any,
) -> None:
    """Let a language model go on with a text.

    Ctrl-C ends the text where it is. Control characters are shown as escapes such as \\x1b; --json
    has the text as it is. Sampling options that are left out are as the model proposes.
    """
    options = given_options(sampling)
    options |= {name: read_text_file(f) for name, f in _rules(json_schema, grammar) if f}
    if regex is not None:
        options["regex"] = regex
    text = _prompt(prompt, file)
    if system is not None and not chat:
        raise InputError("--system goes with --chat: a text has no messages.")
    messages = [{"role": "system", "content": system}] if system is not None else []
    given = [*messages, {"role": "user", "content": text}] if chat else text
    with open_generator(model, device, context, cache, lora, draft) as generator:
        if max(options.get("num_return_sequences", 1), options.get("num_beams", 1)) > 1:
            made = generator.generate(given, **options)
            found = made if isinstance(made, list) else [made]
        else:
            found = [_stream(generator, given, options, shown=stream and not as_json)]
    _print(found, as_json, came=stream and len(found) == 1)
    for one in found:
        if timings and one.timings is not None:
            stderr().print(PlainText(speeds(one.timings), style="dim"), soft_wrap=True)
    if any(one.finish_reason == "cancelled" for one in found):
        raise typer.Exit(EXIT_INTERRUPTED)


def _rules(*files: Path | None) -> Sequence[tuple[str, Path | None]]:
    return list(zip(("json_schema", "grammar"), files, strict=True))


def _prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt, wherever it is.

    Raises:
        InputError: There is none, or two; or it is not UTF-8.
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
    """One answer; its text is printed as it comes."""
    with generator.stream(prompt, **options) as pieces, ending_by_interrupt(pieces):
        for piece in pieces:
            if shown:
                echo(piece, end="")
        return pieces.result


def _print(found: Sequence[GeneratedText], as_json: bool, came: bool) -> None:
    """What was not yet printed.

    Args:
        came: Whether the text was printed as it came.
    """
    for number, one in enumerate(found, start=1):
        if as_json:
            echo_json(as_object(one))
            continue
        if len(found) > 1:
            echo(f"[{number}]")
        if not came:
            echo(one.text, end="")
        echo()
