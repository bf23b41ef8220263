"""Writes programs to the cache folder: as they are built, or when the process ends."""

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

# For so long programs that take long are written when the process ends. The driver has what it
# compiled in a cache of its own (on PoCL 40 ms a program, where ours takes 10), and what is built
# from that waits to be written again.
_END_S = 2.0
# Programs that wait to be written.
_MOST_WAITING = 16


class Saver:
    """Programs that are to be written.

    Where writing is costly, that is done when the process ends: the driver holds up every launch
    meanwhile, 0.2 s and more on PoCL, which compiles each kernel anew for it. A process that is
    killed, or that never ends, leaves the next one the driver's cache.
    """

    def __init__(self, write: Callable[[str, cl.Program], None], costly: bool) -> None:
        """Takes:

        write: Writes one program under its key; InputError where it cannot be written.
        costly: Whether that takes long.
        """
        self._write = write
        self._costly = costly
        self._process = os.getpid()
        self._ends = False
        self._waiting: dict[str, cl.Program] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets what waits: a fork leaves it to the process that it came from."""
        self._waiting.clear()
        self._lock: Any = RLock()

    def add(self, key: str, program: cl.Program) -> None:
        """Takes a program that was just built."""
        with self._lock:
            self._waiting[key] = program
            if self._costly and not self._ends:
                atexit.register(self._end)
                self._ends = True
        if not self._costly:
            with contextlib.suppress(InputError):
                self.save()

    def save(self) -> None:
        """Writes all that wait, now.

        Raises:
            InputError: One cannot be written; it waits on.
        """
        while self._save_one():
            pass

    def _save_one(self) -> bool:
        """Writes a program; whether there was one."""
        with self._lock:
            key = next(iter(self._waiting), None)
            if key is None:
                return False
            try:
                self._write(key, self._waiting[key])
            except InputError:
                while len(self._waiting) > _MOST_WAITING:
                    self._waiting.pop(next(iter(self._waiting)))
                raise
            self._waiting.pop(key, None)
        return True

    def _end(self) -> None:
        """When the process ends: writes some of what is left."""
        if self._process != os.getpid():
            return
        end = time.perf_counter() + _END_S
        with contextlib.suppress(InputError):
            while time.perf_counter() < end and self._save_one():
                pass
