"""What the commands for images have in common: options, files and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from clrt.cli.console import echo_json, say_error, stdout
from clrt.errors import InputError
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
    typer.Option("--keep-going/--stop-at-error", help="Go on after an image that cannot be read."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write a PNG: a file, or of several images a folder."),
]


def each_picture(paths: Sequence[str]) -> Iterator[tuple[str, Picture]]:
    """The images one after the other, so that many need no more memory than one."""
    for path in paths:
        yield path, pictures(path)[0][0]


def targets_of(output: Path | None, paths: Sequence[str]) -> list[Path | None]:
    """The PNG of each image.

    Raises:
        InputError: One cannot be written, or two images would have the same.
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
            f"'{output}' is no folder; --output needs one that exists for {len(paths)} images."
        )
    taken: dict[Path, str] = {}
    for path, target in zip(paths, targets, strict=True):
        if target in taken:
            raise InputError(
                f"'{taken[target]}' and '{path}' would both be written to '{target}'; give "
                "them other names, or one at a time."
            )
        taken[target] = path
        check_targets({"--output": target}, map(expanded, paths), {"--output": (".png",)})
    return [*targets]


def print_json(path: str, values: Mapping[str, Any]) -> None:
    """One line for an image."""
    echo_json({"image": path, **values})


class ResultTable:
    """A table that has the name of an image in its first row alone.

    Args:
        nothing: What to say of an image that has no rows.
    """

    def __init__(self, *columns: str, nothing: str = "") -> None:
        self._table = Table()
        self._nothing = nothing
        self._table.add_column("image", overflow="fold")
        self._table.add_column(columns[0], overflow="fold")
        for name in columns[1:]:
            self._table.add_column(name, justify="right", no_wrap=True)

    def add(self, path: str, rows: Sequence[Sequence[str]]) -> None:
        """The rows of an image."""
        for number, row in enumerate(rows or [[self._nothing]]):
            last = number == max(len(rows), 1) - 1
            cells = [PlainText(path if number == 0 else ""), *map(PlainText, row)]
            self._table.add_row(*cells, end_section=last)

    def print(self) -> None:
        """Prints it."""
        stdout().print(self._table)


@dataclass(frozen=True)
class Shown:
    """What a model finds in an image.

    Attributes:
        values: What --json prints.
        rows: Of the table.
        drawn: Makes the image with what was found, as `write_png` takes it.
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
    """Prints what is in images, one after the other, and draws it.

    An image that cannot be read is an error on stderr and, at the end, exit code 1.

    Args:
        targets: The PNG of each image; none at all where nothing is drawn.
        keep_going: Whether the images after a bad one are looked at.

    Raises:
        InputError: An image is bad, and `keep_going` is false.
        Exit: One was bad.
    """
    from clrt.vision.drawing import write_png

    failed = 0
    for path, target in zip_longest(images, targets):
        try:
            ((_, picture),) = each_picture([path])
            found = find(picture)
            if target is not None and found.drawn is not None:
                write_png(found.drawn(), target)
        except InputError as error:
            if not keep_going:
                raise
            say_error(str(error))
            failed += 1
            continue
        if as_json:
            print_json(path, found.values)
        else:
            table.add(path, found.rows)
    if not as_json and failed < len(images):
        table.print()
    if failed:
        raise typer.Exit(1)
