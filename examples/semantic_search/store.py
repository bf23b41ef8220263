"""SQLite index of texts, passages and vectors.

Each step is a transaction: after a crash, stored data remain, and the passages without a vector
are the remaining work.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw

from .folder import Stamp
from .passages import Span

if TYPE_CHECKING:  # the window stands before NumPy is imported
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float32]

# Another number makes the index anew: texts are extracted or cut in another way.
FORMAT = 1
_WAIT_MS = 30_000  # for another process that writes

_TABLES = """
CREATE TABLE documents (
    id INTEGER PRIMARY KEY,
    path BLOB NOT NULL UNIQUE,  -- as the system has it: not all are valid Unicode
    size INTEGER,
    modified_ns INTEGER,
    text TEXT NOT NULL,
    problem TEXT NOT NULL
);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY,
    document INTEGER NOT NULL REFERENCES documents,
    first INTEGER NOT NULL,
    past INTEGER NOT NULL,
    page INTEGER NOT NULL,
    text TEXT NOT NULL,  -- twice, but found without reading all of a long text
    embedded INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX passages_of ON passages (document);
CREATE INDEX passages_left ON passages (id) WHERE NOT embedded;
-- The vector of a text that is always the same: another model gives another one.
CREATE TABLE model (probe BLOB NOT NULL);
"""
_LEAST_LIKENESS = 0.99  # of one model's vectors on two devices


@dataclass(frozen=True)
class Passage:
    """A passage of a text.

    Attributes:
        id: Row id in the index.
        text: What it says.
    """

    id: int
    text: str


@dataclass(frozen=True)
class Hit:
    """A passage similar to a query.

    Attributes:
        path: Path of its file, relative to the folder.
        span: Its range in the file's text.
        text: What it says.
        page: Page number, from 1.
        score: Cosine similarity to the query, -1 to 1.
    """

    path: str
    span: Span
    text: str
    page: int
    score: float


@dataclass(frozen=True)
class Counts:
    """Numbers of entries of an index.

    Attributes:
        files: Files with a text.
        passages: Passages of all files.
        left: Passages without a vector yet.
        problems: Files and folders that could not be read.
    """

    files: int
    passages: int
    left: int
    problems: int


class Store:
    """Connection to an index, which is created if absent; one per thread.

    Args:
        file: The SQLite file; see `mend`.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._connection = _opened(file)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_sound(self) -> bool:
        """Returns whether the file is undamaged and of this format."""
        checked = self._connection.execute("PRAGMA quick_check(1)").fetchall()
        return checked == [("ok",)] and self._connection.pragma("user_version") == FORMAT

    def stamps(self) -> dict[str, Stamp | None]:
        """Returns path -> stamp of the indexed files; None for folders that could not be listed."""
        rows = self._connection.execute("SELECT path, size, modified_ns FROM documents")
        return {os.fsdecode(p): None if size is None else Stamp(size, at) for p, size, at in rows}

    def counts(self) -> Counts:
        """Returns the numbers of files, passages and problems."""
        return Counts(
            self._number("SELECT count(*) FROM documents WHERE problem = ''"),
            self._number("SELECT count(*) FROM passages"),
            self._number("SELECT count(*) FROM passages WHERE NOT embedded"),
            self._number("SELECT count(*) FROM documents WHERE problem != ''"),
        )

    def problems(self) -> dict[str, str]:
        """Returns path -> reason for the files and folders that could not be read."""
        rows = self._connection.execute(
            "SELECT path, problem FROM documents WHERE problem != '' ORDER BY path"
        )
        return {os.fsdecode(path): problem for path, problem in rows}

    def text(self, path: str) -> str | None:
        """Returns the text of a file as indexed; None if it is not in the index."""
        rows = self._connection.execute(
            "SELECT text FROM documents WHERE path = ?", (os.fsencode(path),)
        )
        return next((text for (text,) in rows), None)

    def put(self, path: str, stamp: Stamp, text: str, spans: Sequence[Span]) -> None:
        """Inserts or replaces a file.

        A file that was written again with the same text keeps its vectors.

        Args:
            path: Relative to the folder.
            stamp: Its size and modification time when read.
            text: The whole text.
            spans: Its passages.
        """
        with self._connection:
            self._connection.execute(
                "UPDATE documents SET size = ?, modified_ns = ?"
                " WHERE path = ? AND text = ? AND problem = ''",
                (stamp.size, stamp.modified_ns, os.fsencode(path), text),
            )
            if self._connection.changes():
                return
            document = self._insert(path, stamp, text, "")
            page, seen = 1, 0
            for start, end in ((span.start, span.end) for span in spans):
                page, seen = page + text.count("\f", seen, start), start
                self._connection.execute(
                    "INSERT INTO passages (document, first, past, page, text)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (document, start, end, page, text[start:end]),
                )

    def put_problem(self, path: str, stamp: Stamp | None, problem: str) -> None:
        """Stores why a file or folder cannot be read; it is read again once it has changed.

        Args:
            path: Relative to the folder.
            stamp: Size and modification time of the file; None for a folder.
            problem: One sentence.
        """
        with self._connection:
            self._insert(path, stamp, "", problem)

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files.

        Args:
            paths: Relative to the folder.
        """
        with self._connection:
            for path in paths:
                self._delete(path)

    def left(self, most: int) -> list[Passage]:
        """Returns passages without a vector, in order of insertion.

        Args:
            most: How many at most.
        """
        rows = self._connection.execute(
            "SELECT id, text FROM passages WHERE NOT embedded ORDER BY id LIMIT ?", (most,)
        )
        return [Passage(*row) for row in rows]

    def put_vectors(self, passages: Sequence[Passage], vectors: FloatArray) -> None:
        """Stores the vectors of passages that still exist.

        Args:
            passages: Result of `left`.
            vectors: [len(passages), dimension].
        """
        with self._connection:
            for passage, vector in zip(passages, vectors, strict=True):
                self._connection.execute(
                    "UPDATE passages SET embedded = 1 WHERE id = ? AND NOT embedded", (passage.id,)
                )
                if self._connection.changes():
                    self._connection.execute(
                        "INSERT INTO vectors (rowid, vector) VALUES (?, ?)",
                        (passage.id, _blob(vector)),
                    )

    def accept_model(self, probe: FloatArray) -> None:
        """Deletes all vectors if another model computed them.

        Args:
            probe: The model's vector of a fixed text, [dimension].
        """
        with self._connection:
            if self.is_of_model(probe):
                return
            self._connection.execute("DROP TABLE IF EXISTS vectors")
            self._connection.execute(
                f"CREATE VIRTUAL TABLE vectors USING vec0"
                f"(vector float[{len(probe)}] distance_metric=cosine)"
            )
            self._connection.execute("UPDATE passages SET embedded = 0")
            self._connection.execute("DELETE FROM model")
            self._connection.execute("INSERT INTO model VALUES (?)", (_blob(probe),))

    def is_of_model(self, probe: FloatArray) -> bool:
        """Returns whether the model of `probe` computed the vectors.

        Args:
            probe: As in `accept_model`.
        """
        import numpy as np

        known = [
            np.frombuffer(cast(bytes, blob), np.float32)
            for (blob,) in self._connection.execute("SELECT probe FROM model").fetchall()
        ]
        return any(k.shape == probe.shape and _likeness(k, probe) >= _LEAST_LIKENESS for k in known)

    def nearest(self, query: FloatArray, most: int) -> list[Hit]:
        """Returns the passages most similar to a query, best first.

        Args:
            query: Vector of the query, [dimension].
            most: How many at most.
        """
        rows = self._connection.execute(
            "WITH found AS (SELECT rowid, distance FROM vectors WHERE vector MATCH ? AND k = ?)"
            " SELECT d.path, p.first, p.past, p.text, p.page, found.distance FROM found"
            " JOIN passages p ON p.id = found.rowid JOIN documents d ON d.id = p.document"
            " ORDER BY found.distance",
            (_blob(query), most),
        )
        return [
            Hit(os.fsdecode(path), Span(first, past), text, page, 1.0 - distance)
            for path, first, past, text, page, distance in rows
        ]

    def _insert(self, path: str, stamp: Stamp | None, text: str, problem: str) -> int:
        self._delete(path)
        size, at = (None, None) if stamp is None else (stamp.size, stamp.modified_ns)
        self._connection.execute(
            "INSERT INTO documents (path, size, modified_ns, text, problem) VALUES (?, ?, ?, ?, ?)",
            (os.fsencode(path), size, at, text, problem),
        )
        return self._connection.last_insert_rowid()

    def _delete(self, path: str) -> None:
        key = (os.fsencode(path),)
        of_it = "IN (SELECT id FROM documents WHERE path = ?)"
        embedded = f"SELECT id FROM passages WHERE embedded AND document {of_it}"
        for (passage,) in self._connection.execute(embedded, key).fetchall():
            self._connection.execute("DELETE FROM vectors WHERE rowid = ?", (passage,))
        self._connection.execute(f"DELETE FROM passages WHERE document {of_it}", key)
        self._connection.execute("DELETE FROM documents WHERE path = ?", key)

    def _number(self, statement: str) -> int:
        ((number,),) = self._connection.execute(statement).fetchall()
        return int(cast(int, number))


def vector_extension() -> str:
    """Returns the path of the sqlite-vec library, without its suffix.

    The package is not imported: it imports NumPy, which another thread does at this time, and that
    two threads do not import at once.
    """
    spec = importlib.util.find_spec("sqlite_vec")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("sqlite-vec is missing; install it by: pip install sqlite-vec.")
    return os.path.join(os.path.dirname(spec.origin), "vec0")


def mend(file: Path) -> bool:
    """Renames a damaged index, or one of another format; no connection may be open.

    Args:
        file: The SQLite file, which need not exist. It gets the name `….old`.

    Returns:
        Whether the index was renamed.
    """
    if not file.exists():
        return False
    try:
        with Store(file) as store:
            if store.is_sound():
                return False
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
        pass
    file.replace(file.with_name(f"{file.name}.old"))
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    return True


def _opened(file: Path) -> apsw.Connection:
    connection = apsw.Connection(os.fspath(file))
    try:
        connection.set_busy_timeout(_WAIT_MS)
        connection.transaction_mode = "IMMEDIATE"
        connection.enable_load_extension(True)
        connection.load_extension(vector_extension())
        connection.enable_load_extension(False)
        connection.pragma("journal_mode", "wal")  # readers do not wait for the writer
        connection.pragma("synchronous", "normal")
        if connection.pragma("user_version") == 0:
            _create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _create_tables(connection: apsw.Connection) -> None:
    with connection:
        if connection.pragma("user_version") == 0:  # or another thread was faster
            connection.execute(_TABLES)
            connection.pragma("user_version", FORMAT)


def _blob(vector: FloatArray) -> bytes:
    return vector.astype("f4").tobytes()


def _likeness(a: FloatArray, b: FloatArray) -> float:
    return float(a @ b) / max(math.sqrt(float(a @ a) * float(b @ b)), 1e-12)
