"""`clrt embed --inputs`: embedding jobs over files, locally or on a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clrt.cli.console import STDOUT, stderr
from clrt.errors import InputError, counted
from clrt.util.files import expanded
from clrt.util.table_text import PlainText

if TYPE_CHECKING:
    from clrt.text.jobs.job import EmbedJob
    from clrt.text.jobs.options import EmbedOptions

InputsOption = Annotated[
    list[str] | None,
    typer.Option("--inputs", "-i", help="Parquet or JSON lines: files, folders or patterns."),
]
OldInputsOption = Annotated[list[str] | None, typer.Option("--input", hidden=True)]
ColumnOption = Annotated[str, typer.Option(help="With --inputs: the text column.")]
KeepOption = Annotated[
    list[str] | None,
    typer.Option(help="With --inputs: columns to copy, such as id,lang; else file and row."),
]
RowsOption = Annotated[int, typer.Option(help="With --inputs: maximum rows per part.")]
RowLimitOption = Annotated[
    int, typer.Option(min=1, max=1024, help="With --inputs: maximum line or text size, in MiB.")
]
FileLimitOption = Annotated[
    int, typer.Option(min=1, help="With --inputs: maximum decompressed file size, in GiB.")
]
RayOption = Annotated[
    str | None,
    typer.Option(help="With --inputs: the Ray cluster: auto, local or its address."),
]


def embed_files(
    inputs: Sequence[str],
    output: Path,
    options: EmbedOptions,
    column: str,
    keep: Sequence[str],
    rows_per_part: int,
    ray: str | None,
) -> None:
    """Starts or resumes an embedding job, and runs it to the end.

    Args:
        inputs: Files, folders or patterns.
        output: Output folder.
        options: Model and encoding options.
        column: Name of the text column.
        keep: Columns to copy to the output.
        rows_per_part: Maximum rows per part file.
        ray: Address of a Ray cluster; None runs in this process.

    Raises:
        InputError: No input can be read, no row has a valid text, or the folder has a job with
            different options or files.
        ClrtError: The model cannot be loaded, or a run failed.
    """
    from tqdm.auto import tqdm

    from clrt.text.jobs.job import start_job  # imported late to speed up the start

    options = replace(options, model=_shared_name(options.model))
    job = start_job(inputs, expanded(output), options, column, keep, rows_per_part)
    done = {i: record for i, record in job.records() if record}
    pending = [i for i in range(len(job.units)) if i not in done]
    if done and pending:
        count = counted(len(done), "part")
        stderr().print(f"{count} of {len(job.units)} are done; the rest follows.", highlight=False)
    with tqdm(
        total=sum(u.rows or 0 for u in job.units),
        initial=sum(r.rows for r in done.values()),
        unit="row",
        disable=not sys.stderr.isatty(),
    ) as bar:
        for rows in _work(job, options, pending, ray):
            bar.update(rows)
    _report(job)


def check_files_alone(output: Path | None, others: Mapping[str, object]) -> Path:
    """Checks the options of `clrt embed` with --inputs, and returns the output folder.

    Args:
        output: Value of --output.
        others: Value by option name, for options that exclude --inputs.

    Raises:
        InputError: `output` is None, standard output or a file, or an option of `others` is set.
    """
    for name, value in others.items():
        if value:
            raise InputError(f"{name} cannot be combined with --inputs; leave one of them out.")
    if output is None or output == STDOUT:
        raise InputError("--inputs needs a folder for vectors; name one by --output.")
    if output.exists() and not output.is_dir():
        raise InputError(f"'{output}' is a file; with --inputs --output is a folder.")
    return output


def _work(
    job: EmbedJob, options: EmbedOptions, pending: Sequence[int], ray: str | None
) -> Iterator[int]:
    """Does pending units of a job in this process or on Ray; yields the number of rows of each.

    Args:
        job: The embedding job, split into units.
        options: Model and encoding options.
        pending: Indices of the units to do.
        ray: Address of a Ray cluster; None for this process.
    """
    if not pending:
        return iter(())
    if ray is None:
        from clrt.text.jobs.shards import make_parts

        return make_parts(job, options, pending)
    from clrt.ray.cluster import make_parts_on_ray

    return make_parts_on_ray(job, options, pending, ray)


def _shared_name(model: str) -> str:
    """Returns an existing path in absolute form, for workers in other folders; else the name."""
    path = expanded(model)
    return str(path.absolute()) if path.exists() else model


def _report(job: EmbedJob) -> None:
    """Prints the number of a job's vectors and omitted rows; raises InputError if it has none."""
    records = [record for _, record in job.records() if record]
    vectors = sum(r.vectors for r in records)
    parts = counted(sum(r.vectors > 0 for r in records), "part")
    message = f"{counted(vectors, 'vector')} in {parts} in {job.folder}"
    errors = job.write_errors()
    if errors is not None:
        left_out = sum(r.left_out for r in records)
        message += f"; {counted(left_out, 'row')} left out, see {errors}"
    stderr().print(PlainText(message), soft_wrap=True)
    if errors is not None and not vectors:
        raise InputError(f"No row has a text that can be encoded; '{errors}' lists the reasons.")
