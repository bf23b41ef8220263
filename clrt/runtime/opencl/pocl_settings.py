"""Environment variables that PoCL reads when it first lists its devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clrt.runtime.opencl.twins import twin_settings

# Maximum number of threads: the name up to version 3, and that of later versions.
_THREADS = ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT")


@contextmanager
def pocl_configured() -> Iterator[None]:
    """Context manager for calls in which PoCL may list its devices: sets its variables meanwhile.

    PoCL then lists twins, and starts no more threads than the process may use CPUs. Leaves alone
    what the user has set. Without effect once PoCL has listed its devices.
    """
    settings = {**twin_settings(), **_thread_settings()}
    try:
        os.environ.update(settings)
        yield
    finally:
        for name in settings:
            os.environ.pop(name, None)


def _thread_settings() -> dict[str, str]:
    """Returns variables by which PoCL starts a thread per usable CPU; {} if it does by itself.

    PoCL counts all CPUs of the machine, also if the process is restricted to some (`taskset`,
    containers with a CPU set). Its threads would then preempt each other: with 16 threads on 2
    CPUs, MiniLM takes 1.9 times as long for a short text as with 2, and 1.2 times for a long one.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _THREADS):
        return {}
    usable = len(os.sched_getaffinity(0))
    return {} if usable >= (os.cpu_count() or 1) else dict.fromkeys(_THREADS, str(usable))
