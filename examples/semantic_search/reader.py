"""Reads files in a process of its own: a file that hangs or crashes a parser costs that file only.

The interpreter of the window is left alone meanwhile, too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .extract import extract
from .problems import ProblemError

if TYPE_CHECKING:
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection as Connection
    else:
        from multiprocessing.connection import Connection

LONGEST_S = 60.0
_TICK_S = 0.05


class FileReader:
    """Reads texts of files in a child process, which is restarted if it dies.

    Args:
        longest_s: Maximum time per file, in seconds.
    """

    def __init__(self, longest_s: float = LONGEST_S) -> None:
        self._longest_s = longest_s
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def read(self, path: Path, cancelled: Callable[[], bool] = lambda: False) -> str | None:
        """Returns the text of a file; None if cancelled.

        Args:
            path: The file.
            cancelled: Polled while the file is read.

        Raises:
            ProblemError: The file holds no text, takes too long, or ends the process.
            RuntimeError: The process does not start.
        """
        pipe = self._started()
        try:
            pipe.send(path)
            end = time.monotonic() + self._longest_s
            while not pipe.poll(_TICK_S):
                if cancelled():
                    self.close()
                    return None
                if time.monotonic() > end:
                    self.close()
                    raise ProblemError(f"It cannot be read within {self._longest_s:.0f} s.")
            text, problem = pipe.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise ProblemError("It cannot be read: its reader came to an end.") from error
        if problem:
            raise ProblemError(problem)
        return str(text)

    def close(self) -> None:
        """Ends the child process; `read` starts another."""
        if self._process is not None and self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None

    def _started(self) -> Connection:
        if self._process is None or self._pipe is None or not self._process.is_alive():
            self.close()
            context = multiprocessing.get_context("spawn")
            pipe, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()  # so that both ends hear when the other one is gone
            self._process, self._pipe = process, pipe
            try:
                pipe.recv()
            except (EOFError, OSError) as error:  # no file is to blame
                self.close()
                raise RuntimeError("The process that reads files does not start.") from error
        return self._pipe

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe.send(None)  # it has started
    while True:
        try:
            path = pipe.recv()
        except EOFError:  # the parent is gone
            return
        try:
            answer = extract(path), ""
        except ProblemError as problem:
            answer = "", str(problem)
        except Exception as error:  # of a parser; the next file is another one
            answer = "", f"It cannot be read ({type(error).__name__}: {error})."
        pipe.send(answer)


def _end_with_parent() -> None:
    """Ends this process when its parent ends, even if a parser hangs."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
