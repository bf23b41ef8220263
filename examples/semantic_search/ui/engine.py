"""Background threads of the window: one loads the model, one indexes, one searches.

The window calls methods, which return at once, and hears by signals.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, Qt, QThread, Signal, Slot

from ..encoder import Encoder
from ..index import Progress, update_index
from ..search import Result, find
from ..store import Counts, Store, mend

_REPORT_S = 0.05  # between two reports of progress: more would only cost the window time
_POLL_S = 0.05

MakeEncoder = Callable[[], Encoder]


@dataclass(frozen=True)
class Answer:
    """Results of a search.

    Attributes:
        query: The query.
        results: Matching files, best first.
        seconds: Time of the model and the index, in seconds.
    """

    query: str
    results: tuple[Result, ...]
    seconds: float


@dataclass(frozen=True)
class Content:
    """Text of a file as indexed; "" if it is no longer in the index."""

    path: str
    text: str


def index_file(data: Path, root: Path) -> Path:
    """Returns the path of a folder's index.

    Args:
        data: The program's own folder.
        root: The folder that is searched.
    """
    return data / "indexes" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.sqlite"


class Engine(QObject):
    """Indexes one folder at a time and searches it.

    Args:
        data: The program's own folder.
        make_encoder: Loads the model; called in a thread.
    """

    model_ready = Signal(object)  # Encoder
    model_failed = Signal(str)
    opened = Signal(object)  # Counts: of what is there at the start
    progress = Signal(object, object)  # Progress, Counts
    indexed = Signal(bool, object)  # whether all was done, Counts
    index_failed = Signal(str)
    answered = Signal(object)  # Answer
    read = Signal(object)  # Content

    def __init__(self, data: Path, make_encoder: MakeEncoder) -> None:
        super().__init__()
        self._data = data
        self._encoder: Future[Encoder] = Future()
        self._root: Path | None = None
        self._job: _IndexJob | None = None
        self._next: tuple[Path, bool] | None = None
        self._searcher = _Searcher(self._encoder)
        self._thread = QThread()
        self._searcher.moveToThread(self._thread)
        self._searcher.answered.connect(self.answered)
        self._searcher.read.connect(self.read)
        self._searcher.failed.connect(self.index_failed)
        self._thread.start()
        self._loading = threading.Thread(target=self._load, args=(make_encoder,), daemon=True)

    def load(self) -> None:
        """Loads the model; called once, by who hears the signals."""
        self._loading.start()

    @property
    def root(self) -> Path | None:
        """The folder that is searched."""
        return self._root

    @property
    def busy(self) -> bool:
        """Whether the folder is being indexed."""
        return self._job is not None

    def open(self, root: Path) -> None:
        """Searches another folder; what is not indexed yet is indexed."""
        self._root = root
        self._searcher.ask_to_leave()
        self._start(root, True)

    def update(self) -> None:
        """Indexes what is new in the folder."""
        if self._root is not None and self._job is None:
            self._start(self._root, False)

    def cancel(self) -> None:
        """Ends indexing after the step that is on its way; what is done stays."""
        self._next = None
        if self._job is not None:
            self._job.cancelled.set()

    def search(self, query: str) -> None:
        """Searches for a query; only the newest one is answered."""
        self._searcher.ask(query)

    def read_file(self, path: str) -> None:
        """Gives the text of a file; only the newest one asked for is read."""
        self._searcher.ask_for_text(path)

    def problems(self) -> dict[str, str]:
        """Why files of the folder could not be read, by their paths."""
        if self._root is None:
            return {}
        with Store(index_file(self._data, self._root)) as store:
            return store.problems()

    def close(self) -> None:
        """Ends all threads."""
        self.cancel()
        if self._job is not None:
            self._job.wait()
        self._searcher.ask_to_leave()
        self._thread.quit()
        self._thread.wait()
        self._loading.join()
        if not self._encoder.exception():
            self._encoder.result().close()

    def _load(self, make_encoder: MakeEncoder) -> None:
        try:
            encoder = make_encoder()
        except Exception as error:  # shown in the window, which can do nothing else
            self._encoder.set_exception(error)
            self.model_failed.emit(str(error) or type(error).__name__)
        else:
            self._encoder.set_result(encoder)
            self.model_ready.emit(encoder)

    def _start(self, root: Path, first: bool) -> None:
        if self._job is not None:  # it goes on when that has ended
            self._job.cancelled.set()
            self._next = root, first
            return
        job = _IndexJob(index_file(self._data, root), root, self._encoder, first)
        job.opened.connect(self._open_index)
        job.progress.connect(self.progress)
        job.failed.connect(self.index_failed)
        job.ended.connect(self.indexed)
        job.finished.connect(self._finish)
        self._job = job
        job.start()

    @Slot(object, object)
    def _open_index(self, file: Path, counts: Counts) -> None:
        if self._next is None:
            self._searcher.enter(file)
            self.opened.emit(counts)

    @Slot()
    def _finish(self) -> None:
        if self._job is not None:
            self._job.wait()
        self._job = None
        if self._next is not None:
            root, first = self._next
            self._next = None
            self._start(root, first)


class _IndexJob(QThread):
    """One update of an index.

    Args:
        file: The index.
        root: The folder.
        encoder: The model, perhaps not loaded yet.
        first: Whether nothing has the index open yet.
    """

    opened = Signal(object, object)  # the index, Counts
    progress = Signal(object, object)
    ended = Signal(bool, object)
    failed = Signal(str)

    def __init__(self, file: Path, root: Path, encoder: Future[Encoder], first: bool) -> None:
        super().__init__()
        self.cancelled = threading.Event()
        self._file = file
        self._root = root
        self._encoder = encoder
        self._first = first
        self._reported = 0.0

    def run(self) -> None:
        """What the thread does."""
        try:
            if self._first:
                mend(self._file)
            with Store(self._file) as store:
                self.opened.emit(self._file, store.counts())
                self._update(store)
        except OSError as error:
            self.failed.emit(f"The folder cannot be read: {error.strerror or error}.")
        except Exception as error:  # the window stays
            self.failed.emit(f"{type(error).__name__}: {error}")

    def _update(self, store: Store) -> None:
        while not self._encoder.done():
            if self.cancelled.wait(_POLL_S):
                self.ended.emit(False, store.counts())
                return
        if self._encoder.exception():  # the window says so already
            self.ended.emit(False, store.counts())
            return
        encoder = self._encoder.result()
        store.accept_model(encoder.probe)

        def report(progress: Progress) -> None:
            now = time.monotonic()
            if now > self._reported + _REPORT_S or progress.done >= progress.total:
                self._reported = now
                self.progress.emit(progress, store.counts())

        done = update_index(
            store, self._root, encoder.encode_passages, report, self.cancelled.is_set
        )
        self.ended.emit(done, store.counts())


class _Searcher(QObject):
    """Answers queries and reads texts, one after the other, in a thread of its own."""

    answered = Signal(object)
    read = Signal(object)
    failed = Signal(str)
    _asked = Signal(int, str)
    _asked_for_text = Signal(int, str)
    _entered = Signal(object)
    _left = Signal()

    def __init__(self, encoder: Future[Encoder]) -> None:
        super().__init__()
        self._encoder = encoder
        self._store: Store | None = None
        self._newest_query = 0
        self._newest_text = 0
        self._asked.connect(self._search)
        self._asked_for_text.connect(self._read)
        self._entered.connect(self._enter)
        self._left.connect(self._leave, Qt.ConnectionType.QueuedConnection)

    def ask(self, query: str) -> None:
        """Called in the window's thread, as are those below."""
        self._newest_query += 1
        self._asked.emit(self._newest_query, query)

    def ask_for_text(self, path: str) -> None:
        self._newest_text += 1
        self._asked_for_text.emit(self._newest_text, path)

    def enter(self, file: Path) -> None:
        self._entered.emit(file)

    def ask_to_leave(self) -> None:
        self._newest_query += 1
        self._newest_text += 1
        self._left.emit()

    @Slot(object)
    def _enter(self, file: Path) -> None:
        self._leave()
        try:
            self._store = Store(file)
        except Exception as error:
            self.failed.emit(f"{type(error).__name__}: {error}")

    @Slot()
    def _leave(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    @Slot(int, str)
    def _search(self, number: int, query: str) -> None:
        if number < self._newest_query or self._store is None or not self._encoder.done():
            return
        if self._encoder.exception():
            return
        encoder = self._encoder.result()
        start = time.perf_counter()
        try:
            known = self._store.is_of_model(encoder.probe)
            found = find(self._store, encoder.encode_query(query)) if known else []
        except Exception as error:  # the window stays
            self.failed.emit(f"{type(error).__name__}: {error}")
            return
        seconds = time.perf_counter() - start
        if number == self._newest_query:
            self.answered.emit(Answer(query, tuple(found), seconds))

    @Slot(int, str)
    def _read(self, number: int, path: str) -> None:
        if number < self._newest_text or self._store is None:
            return
        try:
            text = self._store.text(path) or ""
        except Exception as error:
            self.failed.emit(f"{type(error).__name__}: {error}")
        else:
            self.read.emit(Content(path, text))
