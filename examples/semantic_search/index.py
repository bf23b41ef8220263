"""Updates an index: reads and embeds the new and changed files of its folder only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .folder import Entry, scan
from .passages import split_passages
from .problems import ProblemError
from .reader import FileReader
from .store import Store

if TYPE_CHECKING:
    from .store import FloatArray

BATCH = 16  # passages per run of the model and per transaction
# Files are read until there are so many passages: the longest of them then share batches.
_READ_AHEAD = 64


@dataclass(frozen=True)
class Progress:
    """Progress of an update.

    Attributes:
        done: Number of files indexed; fractional while a file is in progress.
        total: Number of files that are new, changed or not done yet.
        current: The file read last; "" before the first.
    """

    done: float
    total: int
    current: str = ""


Report = Callable[[Progress], None]
Cancelled = Callable[[], bool]
Encode = Callable[[Sequence[str]], "FloatArray"]


def update_index(
    store: Store,
    root: Path,
    encode: Encode,
    report: Report = lambda progress: None,
    cancelled: Cancelled = lambda: False,
    reader: FileReader | None = None,
) -> bool:
    """Indexes new and changed files of a folder, and removes deleted ones.

    It may end at any time, also by a crash: the next call goes on where it ended.

    Args:
        store: The index, whose model is that of `encode`.
        root: The folder.
        encode: Gives the vectors [n, dimension] of n texts.
        report: Called after each step.
        cancelled: Asked before each step.
        reader: By default one that ends with the call.

    Returns:
        Whether all is done: False after a cancel.

    Raises:
        OSError: The folder cannot be listed. The index stays as it is.
    """
    with reader or FileReader() as files:
        return _Update(store, root, encode, report, cancelled, files).run()


class _Update:
    """One call of `update_index`."""

    def __init__(
        self,
        store: Store,
        root: Path,
        encode: Encode,
        report: Report,
        cancelled: Cancelled,
        reader: FileReader,
    ) -> None:
        self._store = store
        self._root = root
        self._encode = encode
        self._report = report
        self._cancelled = cancelled
        self._reader = reader
        self._done = 0.0
        self._total = 0
        self._current = ""

    def run(self) -> bool:
        changed = self._changed()
        if changed is None:
            return False
        unfinished = int(self._store.counts().left > 0)
        self._total = len(changed) + unfinished
        self._advance(0)
        if not self._embed(unfinished):
            return False
        read = 0
        for entry in changed:
            if self._cancelled() or not self._read(entry):
                return False
            read += 1
            if self._store.counts().left >= _READ_AHEAD:
                if not self._embed(read):
                    return False
                read = 0
        return self._embed(read)

    def _changed(self) -> list[Entry] | None:
        """Returns the files to read; stores problems of folders, and removes deleted files."""
        known = self._store.stamps()
        found: dict[str, Entry] = {}
        for entry in scan(self._root):
            if self._cancelled():
                return None
            found[entry.path] = entry
        unlisted = tuple(str(Path(e.path, "_"))[:-1] for e in found.values() if e.stamp is None)
        gone = [p for p in known if p not in found and not (unlisted and p.startswith(unlisted))]
        self._store.remove(gone)
        for entry in found.values():
            if entry.stamp is None:
                self._store.put_problem(entry.path, None, entry.problem)
        files = (entry for entry in found.values() if entry.stamp is not None)
        return [e for e in files if known.get(e.path) != e.stamp]

    def _read(self, entry: Entry) -> bool:
        """Stores the text of a file, or why it has none; False if cancelled."""
        assert entry.stamp is not None
        self._current = entry.path
        self._advance(0)
        path = self._root / entry.path
        try:
            text = self._reader.read(path, self._cancelled)
            if text is None:
                return False
            self._store.put(entry.path, entry.stamp, text, split_passages(text))
        except ProblemError as problem:
            if path.exists():
                self._store.put_problem(entry.path, entry.stamp, str(problem))
            else:  # it vanished meanwhile
                self._store.remove([entry.path])
        return True

    def _embed(self, files: int) -> bool:
        """Embeds all passages that have no vector. False if cancelled.

        Args:
            files: Number of files that the passages belong to.
        """
        start, total = self._done, self._store.counts().left
        while passages := self._store.left(BATCH):
            if self._cancelled():
                return False
            self._store.put_vectors(passages, self._encode([p.text for p in passages]))
            self._advance(files * len(passages) / total)
        self._done = start + files
        self._advance(0)
        return True

    def _advance(self, files: float) -> None:
        self._done = min(self._done + files, self._total)
        self._report(Progress(self._done, self._total, self._current))
