"""Splits input files into work units: consecutive rows that become one part file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from clrt.text.jobs.extras import need
from clrt.text.jobs.inputs import bounded_lines, is_parquet, open_lines
from clrt.util.fast_dataclass import dataclass

ROWS_PER_PART = 16_384
"""Default maximum rows per part file. Texts are sorted by length within a part: parts of 4,096 rows
cost 3-5 % more time per text."""
# Maximum bytes of text per work unit: a unit is encoded in memory.
_MAX_UNIT_BYTES = 64 << 20


@dataclass(frozen=True)
class WorkUnit:
    """Work unit of an embedding job: consecutive rows of an input file.

    Attributes:
        path: Absolute path of the file.
        section: Start of reading: index of the row group in Parquet, byte offset in JSON lines.
        skip: Rows of the row group before the unit; 0 in JSON lines.
        first: Number of the unit's first row in the file, from 0.
        rows: Number of rows of the unit; None if unknown.
        problem: Why no row of the unit can be encoded; "" if its rows can be read.
    """

    path: str
    section: int
    skip: int
    first: int
    rows: int | None
    problem: str = ""


@dataclass(frozen=True)
class ReadLimits:
    """Maximum sizes of rows and files; they bound the memory and time of compressed inputs.

    Attributes:
        row_bytes: Maximum bytes per line or text.
        file_bytes: Maximum bytes per file, decompressed.
    """

    row_bytes: int = 16 << 20
    file_bytes: int = 64 << 30


LIMITS = ReadLimits()


def split(path: str, column: str, rows: int, limits: ReadLimits = LIMITS) -> Iterator[WorkUnit]:
    """Yields the work units of an input file, in order.

    Reads JSON lines to the end, but only the footer of Parquet.

    Args:
        path: The file.
        column: Name of the text column.
        rows: Maximum rows per unit.
        limits: Maximum sizes; rows beyond `file_bytes` become one unit with a problem.
    """
    return (_split_parquet if is_parquet(path) else _split_lines)(path, column, rows, limits)


def damage() -> tuple[type[Exception], ...]:
    """Returns the exception classes that reading a damaged Parquet or gzip file raises."""
    return (need("pyarrow").ArrowException, OSError, EOFError, zlib.error)


def one_line(error: Exception) -> str:
    """Returns an error's message on one line without full stop; its class name if it is empty."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def parquet_file(path: str) -> Any:
    """Opens a Parquet file; returns a `pyarrow.parquet.ParquetFile`."""
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
    """Returns how many rows of a row group fit into a work unit, by average text size; at least 1.

    Args:
        group: pyarrow metadata of the row group.
        column: Name of the text column.
    """
    return max(1, int(group.num_rows) * _MAX_UNIT_BYTES // max(_text_bytes(group, column), 1))


def _text_bytes(group: Any, column: str) -> int:
    """Returns the uncompressed size in bytes of a text column in a row group.

    Args:
        group: pyarrow metadata of the row group.
        column: Name of the text column.
    """
    chunks = map(group.column, range(group.num_columns))
    return sum(int(c.total_uncompressed_size) for c in chunks if c.path_in_schema == column)


def _too_large(path: str, row: int, limits: ReadLimits) -> str:
    return (
        f"'{path}' has more than {limits.file_bytes} bytes once it is unpacked and is read to row "
        f"{row} alone; raise --max-file-gb."
    )


def _column_problem(path: str, schema: Any, column: str) -> str:
    """Returns why the text column of a Parquet file cannot be read; "" if it can.

    Args:
        path: The file, for the message.
        schema: Arrow schema of the file.
        column: Name of the text column.
    """
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
                if count and (count == rows or at + len(line) - start > _MAX_UNIT_BYTES):
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
