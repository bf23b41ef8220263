"""`clrt transcribe`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from clrt.audio import Transcriber
from clrt.printing import output_encoding


def transcribe(
    files: Annotated[list[str], typer.Argument(help="WAV files, or what soundfile reads.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Folder of a CTC model.")],
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, gpu, part of a device name, or an index.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per file.")
    ] = False,
) -> None:
    """Turn speech into text by a CTC model such as wav2vec2."""
    with Transcriber(model, device=device) as transcriber:
        for file in files:
            text = transcriber(file)
            if as_json:
                line = json.dumps(
                    {"file": file, "text": text}, ensure_ascii=output_encoding() != "utf-8"
                )
            else:
                line = f"{file}: {text}" if len(files) > 1 else str(text)
            typer.echo(line)
