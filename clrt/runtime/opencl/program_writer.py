"""Writes program binaries to the cache folder: right after the build, or at process exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable
from threading import RLock
from typing import Any

from clrt.errors import InputError
from clrt.runtime.opencl.driver import cl

# Time limit, in seconds, for writing costly programs at process exit. Programs that are not
# written are rebuilt from the driver's own cache (on PoCL 40 ms each, instead of 10), and queued
# again.
_END_S = 2.0
# Maximum number of programs kept for another attempt after a write failed.
_MAX_WAITING = 16


class Saver:
    """Queue of compiled programs to write to the cache folder.

    If writing is costly, it is done at process exit. PoCL compiles each kernel again for its
    binary, which blocks every launch for 0.2 s and more. If a process is killed before it has
    written, later processes have only the driver's own cache.
    """

    def __init__(self, write: Callable[[str, cl.Program], None], costly: bool) -> None:
        """Creates an empty queue.

        Args:
            write: Writes one program under its cache key; raises InputError if it cannot.
            costly: Whether to defer writing to process exit.
        """
        self._write = write
        self._costly = costly
        self._process = os.getpid()
        self._ends = False
        self._waiting: dict[str, cl.Program] = {}
        self.reset()

    def reset(self) -> None:
        """Empties the queue and replaces its lock, in a forked child process.

        The parent process writes the programs that it has queued.
        """
        self._waiting.clear()
        self._lock: Any = RLock()

    def add(self, key: str, program: cl.Program) -> None:
        """Queues a program that was just built; writes it at once unless writing is costly.

        A program that cannot be written stays in the queue; the oldest of more than `_MAX_WAITING`
        such programs are dropped.

        Args:
            key: Cache key of the program.
        """
        with self._lock:
            self._waiting[key] = program
            if self._costly and not self._ends:
                atexit.register(self._end)
                self._ends = True
        if not self._costly:
            with contextlib.suppress(InputError):
                self.save()

    def save(self) -> None:
        """Writes all queued programs to the cache folder now.

        Raises:
            InputError: A program cannot be written; it stays in the queue.
        """
        while self._save_one():
            pass

    def _save_one(self) -> bool:
        """Writes the oldest queued program; returns False if the queue is empty.

        Raises:
            InputError: The program cannot be written; it stays in the queue.
        """
        with self._lock:
            key = next(iter(self._waiting), None)
            if key is None:
                return False
            try:
                self._write(key, self._waiting[key])
            except InputError:
                while len(self._waiting) > _MAX_WAITING:
                    self._waiting.pop(next(iter(self._waiting)))
                raise
            self._waiting.pop(key, None)
        return True

    def _end(self) -> None:
        """Writes queued programs at process exit, for at most `_END_S`."""
        if self._process != os.getpid():
            return
        end = time.perf_counter() + _END_S
        with contextlib.suppress(InputError):
            while time.perf_counter() < end and self._save_one():
                pass
