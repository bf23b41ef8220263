"""`BackgroundCompiler`: builds optimized programs in another process, and takes them over."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, field
from threading import RLock, Thread
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from clrt.device.caps import DeviceCaps
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl.tiers import interpreter
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    import subprocess

# Maximum number of compiler processes per device; at most one for two cores.
_MAX_PROCESSES = 4
# Maximum time in seconds that the end of this process waits for threads of a `BackgroundCompiler`:
# for one that hands over jobs (0.3 s), and one that takes over a program (10 ms; 40 ms on PoCL).
_END_S = 2.0
# Runs the compiler process with the import path of this one.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from clrt.runtime.opencl.compiler_process import main; main()"
)


@dataclass(frozen=True)
class SampleLaunch:
    """A launch for the compiler process to run on zeros.

    Attributes:
        entry: Name of the kernel.
        arguments: Per argument the size of a buffer in bytes, or the bytes of a number in hex.
        global_size: Work-items per dimension.
        local_size: Work-items per work-group, per dimension.
    """

    entry: str
    arguments: tuple[int | str, ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]


@dataclass(frozen=True)
class CompileJob:
    """A program to compile in the background.

    Attributes:
        spec: Kernel of the program.
        key: Cache key of the program.
        source: Source text.
        options: Compiler options.
        value: Relative run time of the kernel's launches; the most valuable program comes first.
        launches: Launches to run, on devices that compile at the first launch.
    """

    spec: KernelSpec
    key: str
    source: str
    options: tuple[str, ...]
    value: float = 0.0
    launches: tuple[SampleLaunch, ...] = ()

    def line(self) -> bytes:
        """Returns the job as a line for the compiler process."""
        message = {
            "key": self.key,
            "source": self.source,
            "options": self.options,
            "value": self.value,
            "launches": [asdict(launch) for launch in self.launches],
        }
        return json.dumps(message).encode() + b"\n"


@dataclass(eq=False)
class _Process:
    """A compiler process, and the jobs that it has not answered, by key.

    Attributes:
        ready: Whether it has found the device.
        begun: Key of the job that it works on; "" for none.
    """

    popen: subprocess.Popen[bytes]
    jobs: dict[str, CompileJob] = field(default_factory=dict)
    ready: bool = False
    begun: str = ""
    writing: Any = field(default_factory=RLock)

    def write(self, lines: Sequence[bytes]) -> None:
        """Writes lines to the process; stops without an error if the process has ended.

        `BackgroundCompiler._read` then handles the jobs of the process.
        """
        with self.writing, suppress(OSError, ValueError):
            for line in lines:
                rest = memoryview(line)
                while rest:
                    rest = rest[cast(BinaryIO, self.popen.stdin).write(rest) :]


class BackgroundCompiler:
    """Compiles optimized programs of a device in processes of low priority.

    A process that ends before it has found the device is not started again; its jobs are compiled
    by a thread of this process. If it crashes in a job, that job has failed, and another process
    does the rest. At the end of this process, compiler processes complete their jobs, and write
    them to the cache.
    """

    def __init__(
        self,
        caps: DeviceCaps,
        folder: os.PathLike[str],
        finish: Callable[[CompileJob, bool], None],
        fail: Callable[[CompileJob, str], None],
    ) -> None:
        """Creates a compiler without a process.

        Args:
            caps: Capabilities of the device.
            folder: Cache folder of the programs.
            finish: Takes over a program, or compiles it here if its second argument is False.
            fail: Notes that a program does not compile, and why.
        """
        header = {
            "platform": caps.platform,
            "device": caps.name,
            "driver": caps.driver,
            "folder": os.fspath(folder),
        }
        self._header = json.dumps(header).encode() + b"\n"
        self._most = max(1, min(_MAX_PROCESSES, (os.cpu_count() or 1) // 2))
        self._finish = finish
        self._fail = fail
        self.reset()

    def reset(self) -> None:
        """Forgets all jobs and processes, in a forked child process, whose parent has them."""
        for process in getattr(self, "_processes", ()):  # else they would not see our end
            for stream in (process.popen.stdin, process.popen.stdout):
                cast(BinaryIO, stream).close()
            process.popen.returncode = 0
        self._processes: list[_Process] = []
        self._threads: list[Thread] = []
        self._works_here = False
        self._registered = False
        self._lock: Any = RLock()
        # Held while a thread calls the driver. `_end` keeps it: the process must not end meanwhile.
        self._driver: Any = RLock()

    @property
    def jobs(self) -> int:
        """Number of programs that are not compiled yet."""
        with self._lock:
            return sum(len(process.jobs) for process in self._processes)

    def submit(self, jobs: Sequence[CompileJob]) -> None:
        """Queues programs; returns at once.

        A program that is queued already is not queued again.
        """
        with self._lock:
            queued = {key for process in self._processes for key in process.jobs}
            new = [job for job in jobs if job.key not in queued]
            if new:
                if not self._registered:
                    self._registered = True
                    atexit.register(self._end, os.getpid())
                self._start_thread(self._hand_over, new)

    def cancel(self, key: str) -> None:
        """Removes a program that was compiled otherwise, unless it is being compiled."""
        with self._lock:
            for process in [p for p in self._processes if key in p.jobs and p.begun != key]:
                del process.jobs[key]
                self._start_thread(process.write, [json.dumps({"cancel": key}).encode() + b"\n"])

    def _start_thread(self, work: Callable[..., None], *args: Any) -> None:
        thread = Thread(target=work, args=args, name="clrt-compiler", daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()]
        thread.start()
        self._threads.append(thread)

    def _hand_over(self, jobs: Sequence[CompileJob]) -> None:
        """Distributes jobs to processes, and starts these if needed."""
        ordered = sorted(jobs, key=lambda job: -job.value)
        with self._lock:
            try:
                while len(self._processes) < min(self._most, len(jobs)) and not self._works_here:
                    self._start_process()
            except OSError:
                self._works_here = True
            count = len(self._processes)
            parts = [(p, ordered[i::count]) for i, p in enumerate(self._processes)]
            for process, part in parts:
                process.jobs.update((job.key, job) for job in part)
        if not parts:
            self._work_here(ordered)
        for process, part in parts:
            process.write([job.line() for job in part])

    def _start_process(self) -> None:
        import subprocess  # late, since most processes find all programs in the cache

        flags = 0
        if sys.platform == "win32":
            flags = subprocess.CREATE_NO_WINDOW | subprocess.BELOW_NORMAL_PRIORITY_CLASS
        popen = subprocess.Popen(
            [str(interpreter()), "-c", _START, json.dumps(sys.path)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            creationflags=flags,
            start_new_session=True,  # Ctrl-C in the terminal is for this process only
        )
        process = _Process(popen)
        self._processes.append(process)
        process.write([self._header])
        Thread(target=self._read, args=(process,), name="clrt-compiled", daemon=True).start()

    def _read(self, process: _Process) -> None:
        """Handles the replies of a process until it ends, and then its unanswered jobs."""
        for line in cast(BinaryIO, process.popen.stdout):
            reply = json.loads(line)
            if reply.get("ready"):
                process.ready = True
            elif "begun" in reply:
                process.begun = reply["begun"]
            else:
                self._answer(process, reply)
        code = process.popen.wait()
        with self._lock:
            if process not in self._processes:  # after a fork
                return
            self._processes.remove(process)
            left, begun = list(process.jobs.values()), process.jobs.get(process.begun)
            self._works_here |= not process.ready or (code != 0 and begun is None)
        if begun is not None and code != 0:
            left.remove(begun)
            self._fail(begun, f"the compiler ended with code {code}")
        if left:
            self._hand_over(left)

    def _answer(self, process: _Process, reply: dict[str, Any]) -> None:
        """Takes over the program that a reply announces, or notes its failure."""
        with self._lock:
            job = process.jobs.pop(reply["key"], None)
            process.begun = ""
        if job is None:
            return
        if reply["error"] and not reply["compiles"]:
            self._fail(job, reply["error"])
            return
        with self._driver:
            self._finish(job, not reply["error"])

    def _work_here(self, jobs: Sequence[CompileJob]) -> None:
        """Compiles programs in this thread."""
        for job in jobs:
            with self._driver:
                self._finish(job, False)

    def _end(self, process_id: int) -> None:
        """At the end of the process: waits until all jobs are handed over, and the driver idle."""
        if process_id != os.getpid():
            return
        for thread in self._threads:
            if not self._works_here:
                thread.join(_END_S)
        self._driver.acquire(timeout=_END_S)
        for process in self._processes:
            process.popen.returncode = 0  # it goes on by itself
