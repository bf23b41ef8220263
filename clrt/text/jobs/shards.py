"""Writes the part files of a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.text.jobs.extras import need
from clrt.text.jobs.job import FILE, ROW, VECTOR, EmbedJob, WorkUnitStatus
from clrt.text.jobs.options import EmbedOptions
from clrt.text.jobs.rows import RowReader, WorkUnitRows
from clrt.text.jobs.work_units import WorkUnit
from clrt.util.files import atomic_write


class ShardWriter:
    """Encodes work units and writes their part files, with a model that is loaded once.

    Args:
        job: The job.
        options: Model and encoding options.

    Raises:
        ClrtError: The model cannot be loaded, as in `SentenceEncoder`.
    """

    def __init__(self, job: EmbedJob, options: EmbedOptions) -> None:
        self._job = job
        self._options = options
        self._reader = RowReader(job.settings["column"], job.kept_columns, options.limits)
        self._encoder = options.make_encoder()

    def make(self, index: int) -> WorkUnitStatus:
        """Writes the part file and status of unit `index`, and returns the status.

        Does not write a unit that is done already.

        Raises:
            InputError: The unit's file cannot be read.
            ClrtError: A run failed.
        """
        done = self._job.record(index)
        if done is not None:
            return done
        unit = self._job.units[index]
        rows = self._reader.read(unit)
        if rows.texts:
            vectors = self._options.encode(self._encoder, rows.texts)
            self._write(index, unit, rows, vectors)
        record = WorkUnitStatus(len(rows.texts), tuple(_errors(unit, rows)))
        self._job.finish_unit(index, record)
        return record

    def close(self) -> None:
        """Releases the model's device memory."""
        self._encoder.close()

    def _write(self, index: int, unit: WorkUnit, rows: WorkUnitRows, vectors: NDArray[Any]) -> None:
        """Writes the vectors of a work unit as Parquet part `index`."""
        arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
        columns = rows.kept or {
            FILE: arrow.array([unit.path] * len(rows.texts)),
            ROW: arrow.array(rows.numbers, arrow.int64()),
        }
        flat = arrow.array(np.ascontiguousarray(vectors).reshape(-1))
        table = arrow.table(
            {**columns, VECTOR: arrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1])}
        )
        with atomic_write(self._job.part(index)) as stream:
            parquet.write_table(table, stream, use_dictionary=list(columns))


def make_parts(job: EmbedJob, options: EmbedOptions, pending: Iterable[int]) -> Iterator[int]:
    """Writes part files in this process; yields the number of rows of each finished unit.

    Args:
        job: The job.
        options: Model and encoding options.
        pending: Indices of the units to do.

    Raises:
        ClrtError: The model cannot be loaded, or a run failed.
    """
    writer = ShardWriter(job, options)
    try:
        for index in pending:
            yield writer.make(index).rows
    finally:
        writer.close()


def _errors(unit: WorkUnit, rows: WorkUnitRows) -> Iterator[dict[str, Any]]:
    """Yields the errors of a unit's rows, in the form of `WorkUnitStatus.errors`."""
    if rows.problem:
        yield _error(unit, unit.first if unit.rows else None, unit.rows, rows.problem)
    for number, what in rows.errors:
        yield _error(unit, number, 1, what)


def _error(unit: WorkUnit, row: int | None, rows: int | None, what: str) -> dict[str, Any]:
    return {"file": unit.path, "row": row, "rows": rows, "error": what}
