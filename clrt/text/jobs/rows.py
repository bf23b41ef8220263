"""Reads the rows of work units: texts, columns to copy, and errors of unreadable rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import Any

from clrt.errors import InputError
from clrt.text.jobs.extras import need
from clrt.text.jobs.inputs import bounded_lines, is_parquet, open_lines
from clrt.text.jobs.options import text_problem
from clrt.text.jobs.work_units import LIMITS, ReadLimits, WorkUnit, damage, one_line, parquet_file
from clrt.util.fast_dataclass import dataclass

_SAMPLED_ROWS = 1000  # Lines of a JSON lines file that column types are inferred from.


@dataclass
class WorkUnitRows:
    """Rows of a work unit.

    Attributes:
        texts: Valid texts, in file order.
        numbers: Row number of each text in its file, from 0.
        kept: Column name -> Arrow array of the values to copy, one per text.
        errors: (row number, message) of each row without a valid text.
        problem: Why the unit could not be read; "" if it was.
    """

    texts: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)
    errors: list[tuple[int, str]] = field(default_factory=list)
    problem: str = ""


class RowReader:
    """Reads the rows of work units; consecutive units of a file share one pass over the file.

    Args:
        column: Name of the text column.
        kept: Arrow schema of the columns to copy.
        limits: Maximum sizes of rows and files.
    """

    def __init__(self, column: str, kept: Any, limits: ReadLimits = LIMITS) -> None:
        self._column = column
        self._limits = limits
        self._kept = kept
        self._group: _RowGroup | None = None
        self._lines: tuple[str, Any] | None = None

    def read(self, unit: WorkUnit) -> WorkUnitRows:
        """Reads the rows of a unit.

        Damage of the file raises no error; `problem` of the result describes it.

        Raises:
            InputError: The file cannot be opened, or has fewer rows than when the job began.
        """
        if unit.problem:
            return WorkUnitRows(problem=unit.problem)
        read = self._from_parquet if is_parquet(unit.path) else self._from_lines
        try:
            raw, columns = read(unit)
        except damage() as error:
            self._group = self._lines = None
            if (
                isinstance(error, OSError) and error.errno is not None
            ):  # An OS error, not damaged contents.
                raise InputError(f"'{unit.path}' cannot be read: {error.strerror}.") from error
            return WorkUnitRows(problem=f"'{unit.path}' is damaged: {one_line(error)}.")
        rows = WorkUnitRows()
        for number, value in raw:
            problem = value.reason if isinstance(value, _Bad) else ""
            if not problem and (reason := text_problem(value)):
                problem = f"{self._column!r} {reason}"
            if problem:
                rows.errors.append((number, problem))
            else:
                rows.texts.append(value)
                rows.numbers.append(number)
        good = [n - unit.first for n in rows.numbers]
        self._keep(rows, {name: _select(columns[name], good) for name in self._kept.names})
        return rows

    def _keep(self, rows: WorkUnitRows, columns: Mapping[str, Any]) -> None:
        """Adds the columns to copy to `rows`, converted to the types of the schema.

        A row with a value that cannot be converted is removed and becomes an error.

        Args:
            rows: Rows to complete.
            columns: Column name -> values, one per text.
        """
        bad: dict[int, str] = {}
        for column in self._kept:
            values = columns[column.name]
            rows.kept[column.name], misfits = _typed(values, column.type)
            bad |= {i: f"{column.name!r} is no {column.type}" for i in misfits}
        if bad:
            good = [i for i in range(len(rows.texts)) if i not in bad]
            rows.errors += [(rows.numbers[i], reason) for i, reason in bad.items()]
            rows.errors.sort()
            rows.texts = [rows.texts[i] for i in good]
            rows.numbers = [rows.numbers[i] for i in good]
            rows.kept = {name: _select(array, good) for name, array in rows.kept.items()}

    def _from_parquet(self, unit: WorkUnit) -> tuple[Iterable[tuple[int, Any]], dict[str, Any]]:
        arrow = need("pyarrow")
        if self._group is None or not self._group.comes_before(unit):
            self._group = _RowGroup(unit, [self._column, *self._kept.names])
        table = self._group.read(unit)
        columns = {
            name: table.column(name).combine_chunks()
            if name in table.column_names
            else arrow.nulls(len(table))
            for name in self._kept.names
        }
        values = [v for c in table.column(self._column).chunks for v in self._texts(c)]
        return enumerate(values, start=unit.first), columns

    def _texts(self, chunk: Any) -> Iterable[Any]:
        """Decodes an Arrow array of strings.

        Entries of dictionary-encoded arrays are decoded once and shared.

        Returns:
            For each entry a str, None for null, or `_Bad` for text that is too long or not UTF-8.
        """
        arrow = need("pyarrow")
        if arrow.types.is_dictionary(chunk.type):
            known = list(self._texts(chunk.dictionary))
            return (None if i is None else known[i] for i in chunk.indices.to_pylist())
        raw = chunk.cast(arrow.large_binary())
        sizes = need("pyarrow.compute").binary_length(raw).to_pylist()
        # Cast to bytes, since to_pylist raises at the first string that is not UTF-8.
        return (
            self._too_long("text", size)
            if size is not None and size > self._limits.row_bytes
            else _decoded(value.as_py())
            for value, size in zip(raw, sizes, strict=True)
        )

    def _object(self, line: bytes, size: int) -> dict[str, Any] | _Bad | None:
        """Parses a line of JSON lines.

        Args:
            line: The line; a line over the size limit may be cut.
            size: Full length of the line in bytes.

        Returns:
            The object; None for a blank line; a `_Bad` for a line that is too long or no JSON
            object.
        """
        if size > self._limits.row_bytes:
            return self._too_long("line", size)
        return parse_line(line)

    def _too_long(self, what: str, size: int) -> _Bad:
        limit = self._limits.row_bytes
        return _Bad(f"the {what} has {size} bytes, more than {limit}; raise --max-row-mb")

    def _from_lines(self, unit: WorkUnit) -> tuple[Iterable[tuple[int, Any]], dict[str, Any]]:
        if self._lines is None or self._lines[0] != unit.path:
            self._lines = (unit.path, open_lines(unit.path))
        stream = self._lines[1]
        stream.seek(unit.section)
        lines = bounded_lines(stream, self._limits.row_bytes)
        objects = [self._object(line, size) for line, size in islice(lines, unit.rows)]
        if len(objects) != unit.rows:
            raise InputError(f"'{unit.path}' has lost rows since the job began.")
        absent = _Bad(f"there is no {self._column!r}")
        values = (
            (unit.first + i, x.get(self._column, absent) if isinstance(x, dict) else x)
            for i, x in enumerate(objects)
            if x is not None
        )
        columns = {
            name: [x.get(name) if isinstance(x, dict) else None for x in objects]
            for name in self._kept.names
        }
        return values, columns


class _RowGroup:
    """Reader of the rows of a Parquet row group, in ascending order only."""

    def __init__(self, unit: WorkUnit, columns: Sequence[str]) -> None:
        self._key = unit.path, unit.section
        # Keeps dictionary encoding: a few bytes may repeat a long text.
        self._file = need("pyarrow.parquet").ParquetFile(unit.path, read_dictionary=[columns[0]])
        present = [c for c in dict.fromkeys(columns) if c in self._file.schema_arrow.names]
        self._batches = self._file.iter_batches(
            batch_size=unit.rows or 1, row_groups=[unit.section], columns=present
        )
        self._rest: Any = None
        self._at = 0

    def comes_before(self, unit: WorkUnit) -> bool:
        """Returns whether the unit is in this row group, at or after the current row."""
        return self._key == (unit.path, unit.section) and self._at <= unit.skip

    def read(self, unit: WorkUnit) -> Any:
        """Reads the rows of a unit as an Arrow table, skipping earlier rows of the row group.

        Raises:
            InputError: The row group has fewer rows than when the job began.
        """
        rows = unit.rows or 0
        while self._at < unit.skip:
            self._advance(min(rows, unit.skip - self._at))
        return self._advance(rows)

    def _advance(self, rows: int) -> Any:
        """Reads the next `rows` rows as an Arrow table.

        Raises:
            InputError: The row group has fewer rows than when the job began.
        """
        arrow = need("pyarrow")
        parts = [] if self._rest is None else [self._rest]
        while sum(map(len, parts)) < rows:
            batch = next(self._batches, None)
            if batch is None:
                raise InputError(f"'{self._key[0]}' has lost rows since the job began.")
            parts.append(arrow.Table.from_batches([batch]))
        table = arrow.concat_tables(parts)
        self._rest = table.slice(rows)
        self._at += rows
        return table.slice(0, rows)


@dataclass(frozen=True)
class _Bad:
    """Placeholder for a row that cannot be read.

    Attributes:
        reason: Why the row cannot be read, for the error message.
    """

    reason: str


def _decoded(raw: bytes | None) -> str | _Bad | None:
    """Returns a text from UTF-8; _Bad with the reason if it is invalid."""
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError as error:
        return _Bad(f"the text is not UTF-8 (byte {error.start})")


def parse_line(line: bytes) -> dict[str, Any] | _Bad | None:
    """Parses a line of JSON lines.

    Returns:
        The JSON object; None for a blank line; a `_Bad` for any other line.
    """
    try:
        text = line.decode("utf-8-sig").strip()
        value = json.loads(text) if text else None
    except UnicodeDecodeError as error:
        return _Bad(f"the line is not UTF-8 (byte {error.start})")
    except (ValueError, RecursionError) as error:
        return _Bad(f"the line is no JSON ({error})")
    if text and not isinstance(value, dict):
        return _Bad("the line is no JSON object")
    return value


def _select(values: Any, rows: Sequence[int]) -> Any:
    """Returns the values of an Arrow array or a list at indices `rows`, in the same form."""
    if isinstance(values, list):
        return [values[i] for i in rows]
    arrow = need("pyarrow")
    return values.take(arrow.array(rows, arrow.int64()))


def _typed(values: Any, kind: Any) -> tuple[Any, list[int]]:
    """Converts values to an Arrow array of type `kind`, with nulls for failed conversions.

    Args:
        values: Arrow array or list.
        kind: Arrow type.

    Returns:
        The array, and the indices of the values that cannot be converted.
    """
    arrow = need("pyarrow")
    try:
        return _converted(values, kind), []
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        if len(values) == 1:
            return arrow.nulls(1, kind), [0]
    middle = len(values) // 2
    (left, bad), (right, more) = _typed(values[:middle], kind), _typed(values[middle:], kind)
    return arrow.concat_arrays([left, right]), [*bad, *(middle + i for i in more)]


def _converted(values: Any, kind: Any) -> Any:
    """Converts values to an Arrow array of type `kind`.

    Args:
        values: Arrow array or list.
        kind: Arrow type. For the string type, values of a list that are not strings become JSON.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: A value cannot be converted.
    """
    arrow = need("pyarrow")
    if isinstance(values, list):
        if kind == arrow.string():
            values = [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
        values = arrow.array(values)  # Not `kind` at once: that would turn 2.5 into 2.
        types = arrow.types
        if not types.is_null(values.type) and (
            types.is_boolean(values.type) != types.is_boolean(kind)
            or (types.is_string(values.type) and types.is_primitive(kind))
        ):
            raise ValueError(f"a {values.type} is not a {kind}")
    return values if values.type == kind else values.cast(kind)


def kept_schema(paths: Sequence[str], keep: Sequence[str]) -> Any:
    """Infers the Arrow schema of the columns to copy.

    A column gets the type that it has in the first file that has the column with a type other than
    null; string if there is none. Parquet files store types. In JSON lines, the first rows
    determine the type: int64, float64, bool or string. Mixed and nested values are copied as JSON
    strings.

    Args:
        paths: Input files.
        keep: Names of the columns to copy.

    Raises:
        InputError: No file has a column of `keep`.
    """
    arrow = need("pyarrow")
    types: dict[str, Any] = {}
    for path in paths:
        missing = [n for n in keep if types.get(n) in (None, arrow.null())]
        if not missing:
            break
        types |= _types_in(path, missing)
    for name in keep:
        if name not in types:
            raise InputError(f"No file has a column {name!r}; pass the name of an existing column.")
    return arrow.schema(
        [(n, arrow.string() if types[n] == arrow.null() else types[n]) for n in keep]
    )


def _types_in(path: str, names: Sequence[str]) -> dict[str, Any]:
    """Returns column name -> Arrow type for the columns of `names` that a file has.

    Returns {} if the file is damaged. Leaves out a name that several columns of the file have.
    """
    try:
        if is_parquet(path):
            with parquet_file(path) as file:
                schema = file.schema_arrow
            return {n: schema.field(n).type for n in names if schema.names.count(n) == 1}
        with open_lines(path) as stream:
            lines = islice(bounded_lines(stream, LIMITS.row_bytes), _SAMPLED_ROWS)
            rows = [parse_line(line) for line, size in lines if size <= LIMITS.row_bytes]
    except damage():
        return {}
    objects = [x for x in rows if isinstance(x, dict)]
    return {n: _type_of([x.get(n) for x in objects]) for n in names if any(n in x for x in objects)}


def _type_of(values: Sequence[Any]) -> Any:
    arrow = need("pyarrow")
    kinds = {type(v) for v in values if v is not None}
    if not kinds:
        return arrow.null()
    if kinds == {bool}:
        return arrow.bool_()
    if not kinds <= {int, float} or any(type(v) is int and v >> 63 not in (0, -1) for v in values):
        return arrow.string()
    return arrow.int64() if kinds == {int} else arrow.float64()
