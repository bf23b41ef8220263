"""Writes programs to the cache folder: as they are built, or when the device is idle."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Callable
from threading import Event, Lock, Thread

from clrt.errors import InputError
from clrt.runtime.driver import cl

# A program that takes long to write waits until nothing was built and no run ended for so long.
_IDLE_S = 1.0
# For so long programs that take long are written when the process ends. The driver has what it
# compiled in a cache of its own (on PoCL 25 ms a program, where ours takes 2), and what is built
# from that waits to be written again.
_END_S = 2.0
# Programs that wait for a folder which cannot be written.
_MOST_WAITING = 16


class Saver:
    """Programs that are to be written.

    Where writing is costly, a thread does it while the device is idle: the driver may hold up every
    launch meanwhile. It ends when all are written. When the process ends some of what is left is.
    """

    def __init__(
        self,
        write: Callable[[str, cl.Program], None],
        costly: bool,
        idle_s: Callable[[], float],
    ) -> None:
        """Takes:

        write: Writes one program under its key; InputError where it cannot be written.
        costly: Whether that takes long.
        idle_s: For how many seconds the device has had nothing to do.
        """
        self._write = write
        self._costly = costly
        self._idle_s = idle_s
        self._process = os.getpid()
        self._ends = False
        self._waiting: dict[str, cl.Program] = {}
        self._last_s = 0.0
        self.reset()

    def reset(self) -> None:
        """Forgets the thread and what waits: in a fork there is neither."""
        self._waiting.clear()
        self._thread: Thread | None = None
        self._lock = Lock()
        self._writing = Lock()
        self._ended = Event()

    def add(self, key: str, program: cl.Program) -> None:
        """Takes a program that was just built."""
        with self._lock:
            self._last_s = time.perf_counter()
            self._waiting[key] = program
            if self._costly and self._thread is None and not self._ended.is_set():
                self._thread = Thread(target=self._work, name="clrt-saver", daemon=True)
                self._thread.start()
            if self._costly and not self._ends:
                self._ends = True
                atexit.register(self._end)
        if not self._costly:
            self._save_if_possible()

    def save(self) -> None:
        """Writes all that wait, now.

        Raises:
            InputError: One cannot be written; it waits on.
        """
        while self._save_one():
            pass

    def _save_one(self) -> bool:
        """Writes a program; whether there was one."""
        with self._writing:
            with self._lock:
                found = next(iter(self._waiting.items()), None)
            if found is None:
                return False
            key, program = found
            try:
                self._write(key, program)
            except InputError:
                with self._lock:
                    while len(self._waiting) > _MOST_WAITING:
                        self._waiting.pop(next(iter(self._waiting)))
                raise
            with self._lock:
                self._waiting.pop(key, None)
        return True

    def _save_if_possible(self) -> None:
        with contextlib.suppress(InputError):
            self.save()

    def _work(self) -> None:
        """The thread."""
        while True:
            with self._lock:
                if not self._waiting or self._ended.is_set():
                    self._thread = None
                    return
                wait_s = self._wait_s()
            if wait_s > 0:
                self._ended.wait(wait_s)
                continue
            try:
                self._save_one()
            except InputError:  # the next program that is built starts it again
                with self._lock:
                    self._thread = None
                return

    def _wait_s(self) -> float:
        """How long the next program waits yet."""
        return _IDLE_S - min(time.perf_counter() - self._last_s, self._idle_s())

    def _end(self) -> None:
        """When the process ends: waits for what is being written, and writes some of the rest."""
        if self._process != os.getpid():
            return
        end = time.perf_counter() + _END_S
        self._ended.set()
        if (thread := self._thread) is not None:
            thread.join()
        with contextlib.suppress(InputError):
            while time.perf_counter() < end and self._save_one():
                pass
