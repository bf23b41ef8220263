"""The command `clrt embed`: computes vectors of sentences and images."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table

from clrt.cli.console import STDOUT, echo, json_text, renamed, stderr, stdout
from clrt.cli.embed_files import (
    ColumnOption,
    FileLimitOption,
    InputsOption,
    KeepOption,
    OldInputsOption,
    RayOption,
    RowLimitOption,
    RowsOption,
    check_files_alone,
    embed_files,
)
from clrt.cli.embed_images import ImageOption, embed_images
from clrt.cli.images import KeepGoingOption
from clrt.errors import InputError, counted
from clrt.models.locate import find_model
from clrt.models.sources import model_files
from clrt.text import SentenceEncoder
from clrt.text.jobs.options import EmbedOptions
from clrt.text.jobs.work_units import LIMITS, ROWS_PER_PART, ReadLimits
from clrt.util.files import atomic_write, check_targets
from clrt.util.table_text import PlainText

FloatArray = NDArray[np.float32]
_SHOWN_NUMBERS = 4  # Elements shown per vector.
_SHOWN_ROWS = 20  # Vectors shown.
_MAX_COMPARED = 8  # Vectors up to which the similarity table is printed.


def embed(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Folder, ONNX file, or name in the local cache.")
    ],
    texts: Annotated[list[str] | None, typer.Argument(help="Sentences to embed.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="UTF-8 text, one sentence per line; - reads stdin.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the vectors to this .npy file; - for stdout."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per sentence.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu, gpu, part of a device name, or an index.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="mean, cls, max, mean_sqrt_len or sum.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences per run.")] = 32,
    max_length: Annotated[int | None, typer.Option(help="Maximum tokens per text.")] = None,
    truncate_dim: Annotated[int | None, typer.Option(help="Elements kept per vector.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Prepended to each sentence.")] = None,
    normalize: Annotated[bool, typer.Option(help="L2-normalize vectors.")] = True,
    inputs: InputsOption = None,
    old_inputs: OldInputsOption = None,
    column: ColumnOption = "text",
    keep: KeepOption = None,
    rows_per_part: RowsOption = ROWS_PER_PART,
    max_row_mb: RowLimitOption = LIMITS.row_bytes >> 20,
    max_file_gb: FileLimitOption = LIMITS.file_bytes >> 30,
    ray: RayOption = None,
    image: ImageOption = None,
    keep_going: KeepGoingOption = True,
) -> None:
    """Compute the vectors of sentences or images."""
    inputs = renamed("--input", old_inputs or None, "--inputs", inputs or None)
    if inputs:
        # If the shell expanded a pattern, all files but the first are arguments.
        folder = check_files_alone(output, {"--file": file, "--json": as_json})
        job = EmbedOptions(
            *(model, device, pooling, max_length, batch_size, truncate_dim, prompt, normalize),
            ReadLimits(max_row_mb << 20, max_file_gb << 30),
        )
        names = [n for part in keep or () for n in part.split(",")]
        embed_files([*inputs, *(texts or [])], folder, job, column, names, rows_per_part, ray)
        return
    if ray is not None:
        raise InputError("--ray needs files; name them by --inputs.")
    sentences = [*(texts or []), *(_read_lines(file) if file is not None else [])]
    if not sentences and not image:
        raise InputError("There is nothing to embed; give sentences, or --file with one per line.")
    source = find_model(model)
    if output == STDOUT:
        _check_stdout(as_json)
    target = None if output == STDOUT else output
    read = [*model_files(source), *([file] if file else [])]
    check_targets({"--output": target}, read, {"--output": (".npy",)})
    options: dict[str, Any] = {"pooling": pooling, "max_length": max_length}
    words: dict[str, Any] = {"prompt": prompt, "truncate_dim": truncate_dim}
    if image:
        asked = len(image) + len(sentences)
        how = (batch_size, normalize, device, options | words, keep_going)
        sentences, vectors, name = embed_images(str(source), image, sentences, *how)
    else:
        with SentenceEncoder(source, device=device, **options) as encoder:
            vectors = encoder.encode(
                sentences, batch_size=batch_size, normalize_embeddings=normalize, **words
            )
            name = encoder.model.device.name
    _show(sentences, vectors, output, as_json, name)
    if image and len(sentences) < asked:
        raise typer.Exit(1)


def _show(
    sentences: Sequence[str], vectors: FloatArray, output: Path | None, as_json: bool, device: str
) -> None:
    """Outputs vectors: to a .npy file or standard output, as JSON lines, or as a summary.

    Args:
        sentences: Sentences, or paths of images.
        vectors: Vector of each sentence, float32 [sentences, dimension].
        output: The .npy file; `STDOUT` for standard output, None for none.
        as_json: Whether to print JSON lines, also if `output` is a file.
        device: Name of the device, for messages.
    """
    if output == STDOUT:
        typer.echo(npy_bytes(vectors), nl=False)
    elif output is not None:
        save_npy(output, vectors)
    if output is not None:
        count, dimension = vectors.shape
        place = "standard output" if output == STDOUT else output
        size = f"{counted(count, 'vector')} of {counted(dimension, 'number')}"
        stderr().print(PlainText(f"{size} in {place} (made on {device})"), soft_wrap=True)
    if as_json:
        for line in json_lines(sentences, vectors):
            echo(line)
    elif output is None:
        stdout().print(summary(sentences, vectors))


def json_lines(sentences: Sequence[str], vectors: FloatArray) -> list[str]:
    """Returns a line of JSON per sentence: an object with the keys "text" and "embedding".

    float32 elements have their shortest decimal form.
    """
    return [
        json_text({"text": text, "embedding": [float(str(x)) for x in vector]})
        for text, vector in zip(sentences, vectors, strict=True)
    ]


def summary(sentences: Sequence[str], vectors: FloatArray) -> RenderableType:
    """Returns a table with the first elements of the vectors of the first sentences.

    For 2 to `_MAX_COMPARED` sentences a table of their cosine similarities follows.
    """
    table = Table(
        title=f"{counted(len(vectors), 'vector')} of {counted(vectors.shape[1], 'number')}"
    )
    table.add_column("#", justify="right")
    table.add_column("sentence", ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column("vector", no_wrap=True)
    for i, (text, vector) in enumerate(zip(sentences[:_SHOWN_ROWS], vectors, strict=False)):
        numbers = "  ".join(f"{x:+.4f}" for x in vector[:_SHOWN_NUMBERS])
        table.add_row(str(i), PlainText(text), f"{numbers}  …")
    parts: list[RenderableType] = [table]
    if len(sentences) > _SHOWN_ROWS:
        parts.append(f"… and {len(sentences) - _SHOWN_ROWS} more; --output or --json gives all.")
    if 2 <= len(sentences) <= _MAX_COMPARED:
        parts.append(_similarities(vectors))
    return Group(*parts)


def _similarities(vectors: FloatArray) -> Table:
    """Returns a table of the cosine similarities of all pairs of vectors."""
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    unit = vectors / lengths
    table = Table(title="cosine similarity")
    table.add_column("#", justify="right")
    for i in range(len(vectors)):
        table.add_column(str(i), justify="right")
    for i, row in enumerate(unit @ unit.T):
        table.add_row(str(i), *(f"{x:.3f}" for x in row))
    return table


def save_npy(path: Path, vectors: FloatArray) -> None:
    """Writes vectors to a .npy file, atomically.

    Raises:
        InputError: The file cannot be written.
    """
    with atomic_write(path) as stream:
        stream.write(npy_bytes(vectors))


def npy_bytes(vectors: FloatArray) -> bytes:
    """Returns vectors as the contents of a .npy file, which a pipe can receive."""
    stream = io.BytesIO()
    np.save(stream, vectors, allow_pickle=False)
    return stream.getvalue()


def _check_stdout(as_json: bool) -> None:
    """Checks that vectors can be written to standard output.

    Raises:
        InputError: Standard output is a terminal or closed, or also receives JSON.
    """
    if as_json:
        raise InputError("--json and --output - both write to standard output; give one of them.")
    if sys.stdout is None or sys.stdout.isatty():
        raise InputError(
            "--output - writes binary vectors, which need a pipe; name a file, or give --json."
        )


def _read_lines(file: Path) -> list[str]:
    if str(file) == "-" and sys.stdin is None:
        raise InputError("Standard input is closed; name a file, or pipe lines in.")
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"'{file}' cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"'{file}' is not UTF-8 text (byte {error.start}); convert it, for example by iconv."
        ) from error
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines
