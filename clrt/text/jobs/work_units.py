"""Splits files into units of work: rows that one part of the output is made of."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clrt.text.jobs.extras import need
from clrt.text.jobs.inputs import bounded_lines, is_parquet, open_lines

# A part is made in memory, whatever its lines hold.
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class WorkUnit:
    """Successive rows of a file.

    Attributes:
        section: Where reading starts: a row group of Parquet; in JSON lines a byte.
        skip: Rows of the row group that come before.
        first: Number of the first row in the file, from 0.
        rows: How many; None where that is unknown.
        problem: Why none of them can be encoded; empty where they can.
    """

    path: str
    section: int
    skip: int
    first: int
    rows: int | None
    problem: str = ""


@dataclass(frozen=True)
class ReadLimits:
    """Maximum sizes of rows and files; a few compressed bytes may unpack to any size.

    Attributes:
        row_bytes: Longest line or text in bytes.
        file_bytes: Largest file in bytes once it is unpacked.
    """

    row_bytes: int = 16 << 20
    file_bytes: int = 64 << 30


LIMITS = ReadLimits()


def split(path: str, column: str, rows: int, limits: ReadLimits = LIMITS) -> Iterator[WorkUnit]:
    """The units of a file, in order. Of JSON lines the whole file is read, of Parquet its footer.

    Args:
        column: The one that holds the texts.
        rows: The most that a unit has.
    """
    return (_split_parquet if is_parquet(path) else _split_lines)(path, column, rows, limits)


def damage() -> tuple[type[Exception], ...]:
    """What reading a damaged file raises."""
    return (need("pyarrow").ArrowException, OSError, EOFError, zlib.error)


def one_line(error: Exception) -> str:
    """What an error says, without its line breaks and full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def parquet_file(path: str) -> Any:
    """An open `pyarrow.parquet.ParquetFile`."""
    return need("pyarrow.parquet").ParquetFile(path)


def _split_parquet(path: str, column: str, rows: int, limits: ReadLimits) -> Iterator[WorkUnit]:
    try:
        file = parquet_file(path)
    except damage() as error:
        yield WorkUnit(path, 0, 0, 0, None, f"'{path}' is no Parquet: {one_line(error)}.")
        return
    with file:
        footer, schema = file.metadata, file.schema_arrow
        if problem := _column_problem(path, schema, column):
            if footer.num_rows:
                yield WorkUnit(path, 0, 0, 0, footer.num_rows, problem)
            return
        before = read = 0
        for index in range(footer.num_row_groups):
            group = footer.row_group(index)
            size = _text_bytes(group, column)
            read += size
            if read > limits.file_bytes:
                yield WorkUnit(path, index, 0, before, None, _too_large(path, before, limits))
                return
            if size > max(group.num_rows, 1) * limits.row_bytes:
                problem = f"The texts of '{path}' from row {before} on have {size} bytes; raise "
                yield WorkUnit(
                    path, index, 0, before, group.num_rows, f"{problem}--max-row-mb to read them."
                )
                before += group.num_rows
                continue
            step = min(rows, _rows_that_fit(group, column))
            for skip in range(0, group.num_rows, step):
                count = min(step, group.num_rows - skip)
                yield WorkUnit(path, index, skip, before + skip, count)
            before += group.num_rows


def _rows_that_fit(group: Any, column: str) -> int:
    """Rows of a row group whose texts are no more than a part may hold, as they are on average."""
    return max(1, int(group.num_rows) * _MOST_BYTES // max(_text_bytes(group, column), 1))


def _text_bytes(group: Any, column: str) -> int:
    """Bytes of the texts of a row group, unpacked."""
    chunks = map(group.column, range(group.num_columns))
    return sum(int(c.total_uncompressed_size) for c in chunks if c.path_in_schema == column)


def _too_large(path: str, row: int, limits: ReadLimits) -> str:
    return (
        f"'{path}' has more than {limits.file_bytes} bytes once it is unpacked and is read to row "
        f"{row} alone; raise --max-file-gb."
    )


def _column_problem(path: str, schema: Any, column: str) -> str:
    """Why no row of a file has a text."""
    types = need("pyarrow").types
    if schema.names.count(column) != 1:
        there = ", ".join(map(repr, schema.names)) or "none"
        count = "no" if column not in schema.names else "more than one"
        return f"'{path}' has {count} column {column!r}; there are: {there}."
    kind = schema.field(column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    if not any(fits(kind) for fits in texts):
        return f"Column {column!r} of '{path}' holds {kind}, not strings."
    return ""


def _split_lines(path: str, column: str, rows: int, limits: ReadLimits) -> Iterator[WorkUnit]:
    start = at = first = count = 0
    try:
        with open_lines(path) as stream:
            for line, size in bounded_lines(stream, limits.row_bytes):
                if count and (count == rows or at + len(line) - start > _MOST_BYTES):
                    yield WorkUnit(path, start, 0, first, count)
                    start, first, count = at, first + count, 0
                if at + size > limits.file_bytes:
                    if count:
                        yield WorkUnit(path, start, 0, first, count)
                    row = first + count
                    yield WorkUnit(path, at, 0, row, None, _too_large(path, row, limits))
                    return
                at += size
                count += 1
    except damage() as error:
        problem = f"'{path}' cannot be read from row {first} on: {one_line(error)}."
        yield WorkUnit(path, start, 0, first, None, problem)
        return
    if count:
        yield WorkUnit(path, start, 0, first, count)
