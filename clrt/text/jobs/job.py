"""State of an embedding job: its inputs, options and work units, and which units are done.

The output folder stores the state, so that a restarted job resumes:

- `_job.json`: options, files and units, written once;
- `part-000000.parquet`, …: the vectors of each unit;
- `_units/000000.json`, …: the status of each unit, written after its part file;
- `_errors.jsonl`: the errors of rows without a vector, written at the end.

Readers of Parquet datasets skip names that begin with `_`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from functools import cached_property
from pathlib import Path
from typing import Any

from clrt.errors import InputError
from clrt.text.jobs.extras import need
from clrt.text.jobs.inputs import InputFile, find_inputs
from clrt.text.jobs.options import EmbedOptions, model_digest
from clrt.text.jobs.rows import kept_schema
from clrt.text.jobs.work_units import ROWS_PER_PART, WorkUnit, split
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import atomic_write, parse_json

VECTOR, FILE, ROW = "vector", "file", "row"
_FORMAT = 1
_PLAN = "_job.json"
_ERRORS = "_errors.jsonl"
# Remedy at the end of error messages.
_ANEW = "give another --output, or remove that folder to start anew"


@dataclass(frozen=True)
class WorkUnitStatus:
    """Status of a finished work unit.

    Attributes:
        vectors: Number of vectors in the unit's part file; 0 if there is no part file.
        errors: Errors of rows without a vector. Each is an object with the keys "file", "row"
            (first row; null if the file cannot be read), "rows" (number of rows; null if unknown)
            and "error" (message).
    """

    vectors: int
    errors: tuple[Mapping[str, Any], ...] = ()

    @property
    def left_out(self) -> int:
        """Number of rows without a vector; errors of an unknown number of rows count as 0 rows."""
        return sum(e["rows"] or 0 for e in self.errors)

    @property
    def rows(self) -> int:
        """Number of rows processed, with and without a vector."""
        return self.vectors + self.left_out


@dataclass(frozen=True)
class EmbedJob:
    """Embedding job in an output folder: the contents of its `_job.json`.

    Attributes:
        folder: Output folder.
        settings: Digest of the model, and options that change the output, by name. A job resumes
            only with equal settings.
        kept: Arrow schema of the columns copied to the output, serialized and in base64.
        files: Fingerprints of the input files.
        units: Work units; unit i writes part file i.
    """

    folder: Path
    settings: Mapping[str, Any]
    kept: str
    files: tuple[InputFile, ...]
    units: tuple[WorkUnit, ...]

    @classmethod
    def open(cls, folder: Path) -> EmbedJob:
        """Reads the job of an output folder.

        Raises:
            InputError: `_job.json` is missing, damaged or of another version of clrt.
        """
        try:
            values = parse_json((folder / _PLAN).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"'{folder / _PLAN}' cannot be read ({error}); {_ANEW}. All machines of a job must "
                "see its folders under the same paths."
            ) from error
        if not isinstance(values, dict) or values.get("format") != _FORMAT:
            raise InputError(f"'{folder}' contains a job of another version of clrt; {_ANEW}.")
        try:
            files = tuple(InputFile(*entry) for entry in values["files"])
            units = tuple(WorkUnit(files[at].path, *entry) for at, *entry in values["units"])
            return cls(folder, values["settings"], values["kept"], files, units)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"'{folder / _PLAN}' is damaged ({error!r}); {_ANEW}.") from error

    def write(self) -> None:
        """Writes `_job.json` to the output folder."""
        file_index = {f.path: i for i, f in enumerate(self.files)}
        values = {
            "format": _FORMAT,
            "settings": self.settings,
            "kept": self.kept,
            "files": [astuple(f) for f in self.files],
            "units": [[file_index[u.path], *astuple(u)[1:]] for u in self.units],
        }
        with atomic_write(self.folder / _PLAN) as stream:
            stream.write(json.dumps(values).encode())

    @cached_property
    def kept_columns(self) -> Any:
        """The Arrow schema of the columns copied to the output."""
        arrow = need("pyarrow")
        return arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(self.kept)))

    def part(self, index: int) -> Path:
        """Returns the path of the part file of unit `index`."""
        return self.folder / f"part-{index:06}.parquet"

    def record(self, index: int) -> WorkUnitStatus | None:
        """Reads the status of unit `index`; None if the unit is not done."""
        try:
            values = parse_json(self._record_file(index).read_text("utf-8"))
            status = WorkUnitStatus(values["vectors"], tuple(values["errors"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return None if status.vectors and not self.part(index).is_file() else status

    def finish_unit(self, index: int, record: WorkUnitStatus) -> None:
        """Writes the status of a unit, which makes the unit done; its part file must exist already.

        Args:
            index: Index of the unit.
            record: Status of the unit.
        """
        with atomic_write(self._record_file(index)) as stream:
            stream.write(json.dumps(asdict(record)).encode())

    def records(self) -> Iterator[tuple[int, WorkUnitStatus | None]]:
        """Yields the index and status of each unit; the status is None if the unit is not done."""
        return ((i, self.record(i)) for i in range(len(self.units)))

    def write_errors(self) -> Path | None:
        """Writes `_errors.jsonl`; returns its path, or None (and no file) if no unit has errors."""
        path = self.folder / _ERRORS
        errors = (e for _, record in self.records() if record for e in record.errors)
        with atomic_write(path) as stream:
            for error in errors:
                stream.write(json.dumps(error, ensure_ascii=False).encode() + b"\n")
            has_errors = stream.tell() > 0
        if not has_errors:
            path.unlink()
        return path if has_errors else None

    def _record_file(self, index: int) -> Path:
        return self.folder / "_units" / f"{index:06}.json"


def start_job(
    patterns: Iterable[str],
    folder: Path,
    options: EmbedOptions,
    column: str,
    keep: Sequence[str] = (),
    rows_per_part: int = ROWS_PER_PART,
) -> EmbedJob:
    """Starts an embedding job, or resumes the job in `folder`.

    Args:
        patterns: Input files, as in `find_inputs`.
        folder: Output folder; created if absent.
        options: Model and encoding options.
        column: Name of the text column.
        keep: Names of columns to copy to the output; if empty, part files hold each vector's input
            file and row number instead.
        rows_per_part: Maximum rows per part file.

    Raises:
        InputError: No input can be read, or the folder has a job with different options or files.
    """
    if rows_per_part < 1:
        raise InputError(f"rows_per_part is {rows_per_part}; expected at least 1.")
    if VECTOR in keep or len({*keep}) < len(keep):
        raise InputError(
            f"The columns to keep are {', '.join(keep)}; each may occur once, and none may be "
            f"called {VECTOR!r}, the name of the vector column."
        )
    settings = {
        "model": model_digest(options.model),
        "column": column,
        "keep": list(keep),
        "rows_per_part": rows_per_part,
        **options.lasting(),
    }
    files = tuple(map(InputFile.of, find_inputs(patterns, folder)))
    if (folder / _PLAN).exists():
        job = EmbedJob.open(folder)
        _check_settings(job, settings)
        _check_files(job, files)
        return job
    units = tuple(u for f in files for u in split(f.path, column, rows_per_part, options.limits))
    if units and all(u.problem for u in units):
        raise InputError(units[0].problem)
    paths = [f.path for f in files]
    kept = kept_schema(paths, keep).serialize().to_pybytes()
    job = EmbedJob(folder, settings, base64.b64encode(kept).decode(), files, units)
    _make_folder(folder)
    job.write()
    return job


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        leftovers = ("_units", f".{_PLAN}.")  # of a process that died before it wrote the job
        if not all(entry.name.startswith(leftovers) for entry in folder.iterdir()):
            raise InputError(f"'{folder}' is not empty and contains no job; give another --output.")
        (folder / "_units").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be created: {error.strerror}.") from error


def _check_settings(job: EmbedJob, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        before = job.settings.get(name)
        if value == before:
            continue
        if name == "model":
            raise InputError(f"'{job.folder}' contains vectors of another model; {_ANEW}.")
        raise InputError(
            f"The job in '{job.folder}' began with {name}={before!r}, not {value!r}; give that, "
            f"or {_ANEW}."
        )


def _check_files(job: EmbedJob, files: Sequence[InputFile]) -> None:
    before, now = ({f.path: f for f in x} for x in (job.files, files))
    for path in sorted(before.keys() | now.keys()):
        if before.get(path) != now.get(path):
            what = "is new" if path not in before else "is missing"
            what = "has changed" if path in before and path in now else what
            raise InputError(f"'{path}' {what} since the job in '{job.folder}' began; {_ANEW}.")
