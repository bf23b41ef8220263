"""The command `clrt transcribe`: transcribes speech to text or subtitles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from clrt.audio import TemperatureFallback, Transcriber
from clrt.audio.subtitles import srt_entries, vtt_entries
from clrt.audio.transcript_stream import TranscriptStream
from clrt.audio.transcripts import TranscriptSegment
from clrt.cli.console import echo, json_text, say_error
from clrt.cli.ctrl_c import ending_by_interrupt
from clrt.cli.generate import EXIT_INTERRUPTED
from clrt.cli.shapes import DeviceOption
from clrt.errors import InputError, UnsupportedError
from clrt.util.files import atomic_write, check_targets, expanded


class Form(str, Enum):
    """Format of a transcript; its value is also the suffix of its file."""

    txt = "txt"
    srt = "srt"
    vtt = "vtt"
    json = "json"


FormOption = Annotated[
    Form | None,
    typer.Option(
        "--format",
        "-f",
        help="txt; srt or vtt, which have times; or json. By default the suffix of --output, or "
        "txt.",
    ),
]
TemperatureOption = Annotated[
    list[float] | None,
    typer.Option(help="Sampling temperatures, in the order of trials; may be repeated."),
]


def transcribe(
    files: Annotated[
        list[str], typer.Argument(help="WAV files, or other formats that soundfile reads.")
    ],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Folder of Whisper, or of a CTC model.")
    ],
    form: FormOption = None,
    language: Annotated[
        str | None, typer.Option("--language", "-l", help="Spoken language, as en or English.")
    ] = None,
    task: Annotated[
        str, typer.Option(help="transcribe; or translate, into English.")
    ] = "transcribe",
    prompt: Annotated[
        str | None, typer.Option(help="Preceding text that hints at names and spelling.")
    ] = None,
    timestamps: Annotated[bool, typer.Option(help="Predict times within each 30 s.")] = True,
    condition: Annotated[
        bool, typer.Option(help="Condition each window on the previous text.")
    ] = True,
    temperature: TemperatureOption = None,
    compression_ratio: Annotated[
        float,
        typer.Option("--compression", help="Retry text with a higher compression ratio."),
    ] = 2.4,
    logprob: Annotated[
        float, typer.Option(help="Retry text with a lower mean log-probability.")
    ] = -1.0,
    no_speech: Annotated[
        float,
        typer.Option(help="Skip a window with more no-speech probability that fails --logprob."),
    ] = 0.6,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write a file, or a folder with one file per input."),
    ] = None,
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going/--stop-at-error", help="Skip files that cannot be read."),
    ] = True,
) -> None:
    """Transcribe speech, by Whisper or a CTC model such as wav2vec2.

    Text is printed while it is recognized. Ctrl-C ends a transcript early.
    """
    form = _form(files, output, Form.json if as_json else form)
    if output is None and len(files) > 1 and form in (Form.srt, Form.vtt):
        raise InputError(f"Several files as {form.value} need --output, a folder for them.")
    options: dict[str, Any] = {"language": language, "task": task, "prompt": prompt}
    options |= {"timestamps": timestamps, "condition_on_previous_text": condition}
    temperatures = TemperatureFallback().temperatures if temperature is None else tuple(temperature)
    options["fallback"] = TemperatureFallback(temperatures, compression_ratio, logprob, no_speech)
    targets = _targets(files, output, form)
    with Transcriber(model, device=device) as transcriber:
        failed = 0
        for file, target in zip(files, targets, strict=True):
            first = f"{file}: " if len(files) > 1 and target is None else ""
            try:
                with transcriber.stream(file, **options) as stream, ending_by_interrupt(stream):
                    _write(_pieces(stream, form, file, first, target is not None), target)
                    if stream.is_cancelled:
                        raise typer.Exit(EXIT_INTERRUPTED)
            except (
                InputError,
                UnsupportedError,
            ) as error:  # UnsupportedError: another audio format.
                if not keep_going:
                    raise
                is_named = len(files) == 1 or file in str(error)
                say_error(str(error) if is_named else f"{file}: {error}")
                failed += 1
    if failed:
        raise typer.Exit(1)


def _form(files: Sequence[str], output: Path | None, form: Form | None) -> Form:
    """Returns the format of transcripts: `form`, else the output file's suffix, else txt.

    Args:
        files: Audio files.
        output: Output file or folder; None for standard output.
        form: Requested format; None if no format is requested.

    Raises:
        InputError: The output file's suffix is not the suffix of the format, or of any format.
    """
    if output is None or not _is_file(files, output):
        return form or Form.txt
    suffix = expanded(output).suffix.lower()
    allowed = [f for f in Form if form in (None, f)]
    match = next((f for f in allowed if suffix == f".{f.value}"), None)
    if match is None:
        known = " or ".join(f".{f.value}" for f in allowed)
        raise InputError(f"'{output}' does not end in {known}, which --output is written as.")
    return match


def _is_file(files: Sequence[str], output: Path) -> bool:
    """Returns whether `output` is a file to write; if not, it is a folder.

    `output` is a file if it has a suffix, is no existing folder, and there is one audio file.
    """
    return len(files) == 1 and bool(output.suffix) and not expanded(output).is_dir()


def _targets(files: Sequence[str], output: Path | None, form: Form) -> list[Path | None]:
    """Returns the file to write for each audio file; None for each if `output` is None.

    Args:
        files: Audio files.
        output: Output file or folder; None for standard output.
        form: Format, which is the suffix of files in a folder.

    Raises:
        InputError: Two audio files have the same output file, or an output file cannot be written.
    """
    if output is None:
        return [None for _ in files]
    path = expanded(output)
    if _is_file(files, output):
        targets = [path]
    else:
        targets = [path / f"{Path(file).stem}.{form.value}" for file in files]
    read = [expanded(file) for file in files]
    check_targets({f"--output of {f}": t for f, t in zip(files, targets, strict=True)}, read)
    return [*targets]


def _write(pieces: Iterator[str], target: Path | None) -> None:
    """Prints pieces of text as they arrive, or writes them to the file `target`."""
    if target is None:
        for piece in pieces:
            echo(piece, end="")
        return
    with atomic_write(target) as file:
        for piece in pieces:
            file.write(piece.encode("utf-8"))


def _pieces(
    stream: TranscriptStream, form: Form, file: str, first: str, to_file: bool
) -> Iterator[str]:
    """Yields a transcript in chunks, in the requested format.

    Args:
        stream: Segments of the transcript.
        form: Format of the transcript.
        file: Name of the audio file, for JSON.
        first: Text to put before a transcript in format txt.
        to_file: Whether the chunks are written to a UTF-8 file, not to standard output.
    """
    if form is Form.srt:
        yield from srt_entries(stream)
    elif form is Form.vtt:
        yield from vtt_entries(stream)
    elif form is Form.json:
        for _ in stream:
            pass
        values = {"file": file, **stream.result.to_dict()}
        yield (json.dumps(values, ensure_ascii=False) if to_file else json_text(values)) + "\n"
    else:
        yield first
        yield from _texts(stream)
        yield "\n"


def _texts(segments: Iterable[TranscriptSegment]) -> Iterator[str]:
    """Yields the text of each segment, the first one without leading space."""
    is_first = True
    for segment in segments:
        yield segment.text.lstrip() if is_first else segment.text
        is_first = False
