"""Compiler process: builds the optimized programs of another process, most valuable first.

`background_compiler.py` starts it. Standard input and output carry one JSON object per line:

    in:  {"platform": …, "device": …, "driver": …, "folder": …}                 first line
         {"key": …, "source": …, "options": […], "value": …, "launches": […]}   a job
         {"cancel": key}                                                        not needed any more
    out: {"ready": true}, then per job {"begun": key} and
         {"key": key, "error": "", "compiles": true}

A built program is in the cache folder, or, if the driver compiles at the first launch, in the
driver's own cache. When its input ends, the process completes the jobs that it has; it ends
`_IDLE_S` after the last one.
"""

from __future__ import annotations

import heapq
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import Any, BinaryIO

import numpy as np

from clrt.errors import ClrtError, DeviceError, InputError
from clrt.runtime.opencl import program_files
from clrt.runtime.opencl.devices import devices
from clrt.runtime.opencl.driver import BUILD_ERROR_CODES, cl, new_context
from clrt.runtime.opencl.programs import ProgramCache
from clrt.runtime.opencl.session import aligned
from clrt.util.files import claimed

# Added to the nice value of the process (Unix). It competes with the runs of the parent process,
# which are several times slower until it is done, so it gets a third of a core that both want (by
# Linux's weights; 10 would be a tenth). If Linux shares cores between sessions (autogroups), the
# value only matters beside other compiler processes: 0, 3 and 10 took the same time.
_NICE = 3
# Nice value while costly binaries are written: the parent's runs have all their programs.
_NICE_LAST = 19
# Seconds without a job after which the process ends.
_IDLE_S = 3.0
# Time in seconds until a job is tried again that another process works on, and until it is done all
# the same.
_RETRY_S = 0.1
_MAX_CLAIM_S = 30.0
# Maximum time, in seconds, that the process goes on without its parent.
_ORPHAN_S = 120.0


class _Jobs:
    """Priority queue of jobs, read from a stream by a thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._changed = Condition()
        self._heap: list[tuple[float, int, dict[str, Any]]] = []
        self._cancelled: set[str] = set()
        self._postponed: list[tuple[float, int, dict[str, Any]]] = []
        self.ended_s: float | None = None
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Reads jobs until the stream ends."""
        for count, line in enumerate(self._stream):
            job = json.loads(line)
            with self._changed:
                if "cancel" in job:
                    self._cancelled.add(job["cancel"])
                else:
                    self._cancelled.discard(job["key"])
                    heapq.heappush(self._heap, (-job["value"], count, job))
                self._changed.notify()
        with self._changed:
            self.ended_s = time.monotonic()
            self._changed.notify()

    def postpone(self, job: dict[str, Any]) -> None:
        """Puts back a job, to be done after the others and not at once."""
        with self._changed:
            self._postponed.append((0.0, -len(self._postponed) - 1, job))

    def pop(self, wait_s: float) -> dict[str, Any] | None:
        """Returns the most valuable job; None if there is none after `wait_s` seconds."""
        end = time.monotonic() + wait_s
        with self._changed:
            while True:
                while self._heap:
                    job = heapq.heappop(self._heap)[2]
                    if job["key"] not in self._cancelled:
                        return job
                if self._postponed:
                    self._changed.wait(_RETRY_S)
                    for entry in self._postponed:
                        heapq.heappush(self._heap, entry)
                    self._postponed.clear()
                    continue
                left = end - time.monotonic()
                if self.ended_s is not None or left <= 0:
                    return None
                self._changed.wait(left)


class _Compiler:
    """Builds programs for the device of the parent process."""

    def __init__(self, header: Mapping[str, str], jobs: _Jobs, replies: BinaryIO) -> None:
        wanted = header["platform"], header["device"], header["driver"]
        known = devices()
        for info in (*known, *(d.twin for d in known if d.twin is not None)):
            if (info.caps.platform, info.caps.name, info.caps.driver) == wanted:
                break
        else:
            raise DeviceError(f"This process has no device {wanted}.")
        self._context = new_context(info.handle)
        self._cache = ProgramCache(self._context, info.handle, info.caps, Path(header["folder"]))
        self._jobs = jobs
        self._replies = replies
        self._compiles_at_launch = "compiles-at-launch" in info.caps.quirks
        # Programs whose binaries are costly, to be written when there is no job.
        self._unwritten: list[tuple[str, cl.Program]] = []

    def reply(self, **message: Any) -> None:
        """Sends a message to the parent process, if that still exists."""
        with suppress(OSError):
            self._replies.write(json.dumps(message).encode() + b"\n")

    def run(self) -> None:
        """Does all jobs; returns when there have been none for a while.

        Returns at a job that comes while binaries are written: priority cannot rise again, so the
        parent process gives the job to a new process. Binaries that are not written then are in the
        driver's own cache, and are written in a later process that needs them.
        """
        self.reply(ready=True)
        is_last = False
        while True:
            job = self._jobs.pop(0 if self._unwritten else _IDLE_S)
            ended_s = self._jobs.ended_s
            if ended_s is not None and time.monotonic() - ended_s > _ORPHAN_S:
                return
            if job is not None and is_last:
                return
            if job is not None:
                self._do(job)
            elif self._unwritten:
                if not is_last:
                    _set_least_priority()
                is_last = True
                self._write(*self._unwritten.pop(0))
            else:
                return

    def _do(self, job: dict[str, Any]) -> None:
        """Does a job, unless another process works on the same program: then it comes later."""
        folder, key = self._cache.folder, job["key"]
        with suppress(InputError):  # storing the program will report it
            program_files.prepare(folder)
        since_s = job.setdefault("since_s", time.monotonic())
        with claimed(folder / f".{key}.lock") as is_free:
            if is_free or time.monotonic() - since_s > _MAX_CLAIM_S:
                self._build(job)
                return
        self._jobs.postpone(job)

    def _build(self, job: Mapping[str, Any]) -> None:
        """Builds the program of a job, unless another process has stored it, and replies."""
        key = job["key"]
        self.reply(begun=key)
        error, compiles = "", True
        try:
            if self._compiles_at_launch:
                program = self._cache.compile_source(job["source"], job["options"])
                for launch in job["launches"]:
                    self._launch(program, **launch)
                self._unwritten.append((key, program))
            elif program_files.read(self._cache.folder, key) is None:
                program = self._cache.compile_source(job["source"], job["options"])
                self._cache.store(key, program)
        except (cl.Error, ClrtError, MemoryError) as failure:
            error = str(failure) or type(failure).__name__
            compiles = not (isinstance(failure, cl.Error) and failure.code in BUILD_ERROR_CODES)
        self.reply(key=key, error=error, compiles=compiles)

    def _launch(
        self,
        program: cl.Program,
        entry: str,
        arguments: list[int | str],
        global_size: list[int],
        local_size: list[int],
    ) -> None:
        """Runs a kernel once on zeros, so that the driver compiles it for its work-group size.

        Args:
            entry: Name of the kernel.
            arguments: Per argument the size of a buffer in bytes, or the bytes of a number in hex.
        """
        kernel = cl.Kernel(program, entry)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        buffers = {  # pages that no work-item writes take no memory
            index: cl.Buffer(self._context, flags, hostbuf=aligned(argument, np.zeros))
            for index, argument in enumerate(arguments)
            if isinstance(argument, int)
        }
        for index, argument in enumerate(arguments):
            number = bytes.fromhex(argument) if isinstance(argument, str) else b""
            kernel.set_arg(index, buffers.get(index, number))
        queue = cl.CommandQueue(self._context)
        cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)
        queue.finish()

    def _write(self, key: str, program: cl.Program) -> None:
        """Writes a program to the cache folder, unless that has gone."""
        if self._cache.folder.parent.exists():
            with suppress(ClrtError, cl.Error, MemoryError):
                self._cache.store(key, program)


def _lower_priority() -> None:
    """Lowers the priority of this process, as far as the system allows."""
    if sys.platform == "win32":
        return  # the parent process asked for a lower priority
    with suppress(OSError):
        os.nice(_NICE)
    if sys.platform == "linux":  # a batch process interrupts no other one
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _set_least_priority() -> None:
    """Lowers the priority of this process further, so that it uses idle cores only."""
    if sys.platform == "win32":
        return
    with suppress(OSError):
        os.nice(_NICE_LAST)  # the system ends at its maximum
    with suppress(OSError):  # Linux shares cores between sessions first
        Path("/proc/self/autogroup").write_text(f"{_NICE_LAST}", "utf-8")


def main() -> None:
    """Runs the compiler process until its input has ended, or until it has been idle."""
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drivers print
    _lower_priority()
    stream = sys.stdin.buffer
    header = json.loads(stream.readline())
    _Compiler(header, _Jobs(stream), replies).run()
    os._exit(0)  # the driver's destructors could only fail


if __name__ == "__main__":
    main()
