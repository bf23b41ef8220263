"""Options, output files and tables of the image commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from clrt.cli.console import echo_json, say_error, stdout
from clrt.errors import InputError
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import check_targets, expanded
from clrt.util.table_text import PlainText
from clrt.vision.image_inputs import Picture, pictures

ImagesArgument = Annotated[list[str], typer.Argument(help="Image files.", show_default=False)]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="Folder, ONNX file, or name in the local cache.")
]
DeviceOption = Annotated[
    str | None, typer.Option(help="auto, cpu, gpu, part of a device name, or an index.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per image.")]
KeepGoingOption = Annotated[
    bool,
    typer.Option("--keep-going/--stop-at-error", help="Skip images that cannot be read."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write a PNG: a file, or a folder for several images."),
]


def each_picture(paths: Sequence[str]) -> Iterator[tuple[str, Picture]]:
    """Yields (path, image) for image files, opened one by one so that only one is in memory."""
    for path in paths:
        yield path, pictures(path)[0][0]


def targets_of(output: Path | None, paths: Sequence[str]) -> list[Path | None]:
    """Returns the PNG file to write for each image; None for each if `output` is None.

    Args:
        output: PNG file, or existing folder; several images need a folder. None for no files.
        paths: Image files.

    Raises:
        InputError: A file cannot be written, or two images would be written to the same file.
    """
    if output is None:
        return [None] * len(paths)
    output = expanded(output)
    if len(paths) == 1 and not output.is_dir():
        targets = [output]
    elif output.is_dir():
        targets = [output / f"{Path(path).stem}.png" for path in paths]
    else:
        raise InputError(
            f"'{output}' is not a folder; --output needs an existing one for {len(paths)} images."
        )
    sources: dict[Path, str] = {}
    for path, target in zip(paths, targets, strict=True):
        if target in sources:
            raise InputError(
                f"'{sources[target]}' and '{path}' would both be written to '{target}'; give "
                "them other names, or one at a time."
            )
        sources[target] = path
        check_targets({"--output": target}, map(expanded, paths), {"--output": (".png",)})
    return [*targets]


def print_json(path: str, values: Mapping[str, Any]) -> None:
    """Prints the results of an image as one JSON object.

    Args:
        path: Path of the image, under the key "image".
        values: Results by key.
    """
    echo_json({"image": path, **values})


class ResultTable:
    """Table with the results of images; only the first row of an image shows its path.

    Args:
        columns: Names of the columns after the first column, which has the image's path.
        nothing: Text of the row of an image without results.
    """

    def __init__(self, *columns: str, nothing: str = "") -> None:
        self._table = Table()
        self._nothing = nothing
        self._table.add_column("image", overflow="fold")
        self._table.add_column(columns[0], overflow="fold")
        for name in columns[1:]:
            self._table.add_column(name, justify="right", no_wrap=True)

    def add(self, path: str, rows: Sequence[Sequence[str]]) -> None:
        """Adds the rows of an image; without rows, a single row with the text `nothing`.

        Args:
            path: Path of the image.
            rows: Cells of each row, without the first cell, which shows the path.
        """
        for number, row in enumerate(rows or [[self._nothing]]):
            last = number == max(len(rows), 1) - 1
            cells = [PlainText(path if number == 0 else ""), *map(PlainText, row)]
            self._table.add_row(*cells, end_section=last)

    def print(self) -> None:
        """Prints the table on standard output."""
        stdout().print(self._table)


@dataclass(frozen=True)
class Shown:
    """Results of one image, as JSON, as table rows and as a drawing.

    Attributes:
        values: JSON values for --json.
        rows: Rows of the image in the result table.
        drawn: Function that returns the image with the results drawn into it; None if there is
            nothing to draw.
    """

    values: Mapping[str, Any]
    rows: Sequence[Sequence[str]]
    drawn: Callable[[], Any] | None = None


def show_findings(
    find: Callable[[Picture], Shown],
    images: Sequence[str],
    table: ResultTable,
    as_json: bool,
    targets: Iterable[Path | None] = (),
    keep_going: bool = True,
) -> None:
    """Runs a model on images one by one, prints the results and writes drawings.

    Args:
        find: Runs the model on one image.
        images: Image files.
        table: Table to print, unless `as_json`.
        as_json: Whether to print one JSON object per image.
        targets: PNG file of each image; empty if nothing is drawn.
        keep_going: Whether to skip unreadable images, with an error on stderr.

    Raises:
        InputError: An image cannot be read, and `keep_going` is False.
        Exit: An image could not be read; raised at the end, with code 1.
    """
    from clrt.vision.drawing import write_png

    failed = 0
    for path, target in zip_longest(images, targets):
        try:
            ((_, picture),) = each_picture([path])
            shown = find(picture)
            if target is not None and shown.drawn is not None:
                write_png(shown.drawn(), target)
        except InputError as error:
            if not keep_going:
                raise
            say_error(str(error))
            failed += 1
            continue
        if as_json:
            print_json(path, shown.values)
        else:
            table.add(path, shown.rows)
    if not as_json and failed < len(images):
        table.print()
    if failed:
        raise typer.Exit(1)
