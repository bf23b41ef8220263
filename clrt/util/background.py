"""Work in a thread that gives way to runs: short slices, mostly while no run is active.

The thread works in slices of `_SLICE_S`, after each of which it releases the interpreter's lock for
`_SHORT_PAUSE_S`. Work calls `yield_point` often, which ends a slice once its time is over. While
runs are active, a slice begins only if a run has begun since the last slice, or after `_MAX_WAIT_S`
without a slice. So a run shorter than `_MAX_WAIT_S` is delayed by little more than one slice.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import RLock, Thread, get_ident
from typing import Any

from clrt.util.active_calls import ActiveCall
from clrt.util.gc_control import SLICED_THREADS, YOUNG_ONLY

_LOG = logging.getLogger(__name__)
# Length in seconds of a slice, of the pause after it, and of further pauses while runs are active.
_SLICE_S = 0.0015
_SHORT_PAUSE_S = 0.001
_PAUSE_S = 0.004
# Time in seconds after which a slice begins although the same runs are still active.
_MAX_WAIT_S = 0.25
# Maximum time in seconds that the end of the process waits for a job: drivers may take this long
# to load a program.
_MAX_END_S = 2.0


class _ProcessEnds(BaseException):
    """Ends a job because the process ends; no handler of errors catches it.

    The job lets go of its locks, which code that runs at the end of the process may need.
    """


class _Slice:
    """Owner of the setting `YOUNG_ONLY` during a slice: a full garbage collection takes 30 ms."""

    is_over = False

    def __init__(self) -> None:
        self.thread = get_ident()


class BackgroundThread:
    """Does jobs one after another in a daemon thread, which ends when no job is left.

    The next `submit` starts a new thread.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._lock: Any = RLock()
        self._jobs: deque[Callable[[], object]] = deque()
        self._runs: set[ActiveCall] = set()
        self._served: set[ActiveCall] = set()
        self._thread = 0
        self._worker: Thread | None = None
        self._is_running = False
        self._stopped = self._registered = False
        self._slice_end_s = 0.0
        self._slice = _Slice()

    def after_fork_in_child(self) -> None:
        """Forgets the thread, its jobs and the runs, which a forked child process does not have."""
        self._reset()

    def enter(self, call: ActiveCall) -> None:
        """Registers a run, to which jobs give way until `leave`."""
        self._runs.add(call)

    def leave(self, call: ActiveCall) -> None:
        """Ends a registered run."""
        self._runs.discard(call)

    def submit(self, job: Callable[[], object]) -> None:
        """Queues a job; its exceptions are logged."""
        with self._lock:
            self._jobs.append(job)
            if not self._is_running and not self._stopped:
                self._is_running = True
                if not self._registered:
                    self._registered = True
                    atexit.register(self._stop)
                worker = Thread(target=self._work, name="clrt-background", daemon=True)
                try:
                    worker.start()
                    self._worker = worker
                except RuntimeError:  # no thread can start, for instance at the end of the process
                    self._is_running = False

    def _stop(self) -> None:
        """Ends work for good at the next `yield_point`, because the process ends.

        Waits for it, since the job may be in a call of a driver, whose memory is freed soon.
        """
        self._stopped = True
        if self._worker is not None and self._is_running:
            self._worker.join(_MAX_END_S)

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is this one."""
        return get_ident() == self._thread

    def yield_point(self) -> None:
        """Pauses until the next slice may begin, if this slice has lasted `_SLICE_S`.

        Returns at once in other threads. Raises `_ProcessEnds` if the process ends.
        """
        if get_ident() == self._thread and time.perf_counter() > self._slice_end_s:
            self._pause()

    def _work(self) -> None:
        try:
            with suppress(_ProcessEnds):
                self._do_jobs()
        finally:
            SLICED_THREADS.discard(get_ident())

    def _do_jobs(self) -> None:
        self._thread = get_ident()
        SLICED_THREADS.add(self._thread)
        while True:
            self._pause()
            if not self._jobs:
                self.collect()
            with self._lock:
                if not self._jobs:
                    self._end_slice()
                    self._is_running, self._thread = False, 0
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception:
                _LOG.debug("a background job failed", exc_info=True)
            del job

    def collect(self) -> None:
        """Runs a full garbage collection if one is due and no run, which would wait, is active.

        Also ends the slice, and pauses until the next one. Does nothing in other threads.
        """
        if get_ident() == self._thread:
            self._end_slice()
            is_due = gc.isenabled() and gc.get_count()[2] > gc.get_threshold()[2]
            if is_due and not self._active():
                gc.collect()
            self._pause()

    def _active(self) -> set[ActiveCall]:
        return {call for call in tuple(self._runs) if not call.is_over}

    def _pause(self) -> None:
        """Ends the slice, waits until the next one may begin, and begins it.

        It may begin once no run is active, once a run has begun since the last slice, or after
        `_MAX_WAIT_S`.

        Raises:
            _ProcessEnds: The process ends.
        """
        self._end_slice()
        if self._stopped:
            raise _ProcessEnds
        end_s = time.perf_counter() + _MAX_WAIT_S
        time.sleep(_SHORT_PAUSE_S)
        while active := self._active():
            if active - self._served or time.perf_counter() > end_s:
                break
            time.sleep(_PAUSE_S)
        self._served = active
        self._slice = _Slice()
        YOUNG_ONLY.begin(self._slice)
        self._slice_end_s = time.perf_counter() + _SLICE_S

    def _end_slice(self) -> None:
        self._slice.is_over = True
        YOUNG_ONLY.end()


BACKGROUND = BackgroundThread()
"""The only background thread of the process."""

yield_point = BACKGROUND.yield_point

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=BACKGROUND.after_fork_in_child)
