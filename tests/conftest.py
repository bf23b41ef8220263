"""Test processes: their number, the memory that they release, and the memory limit of each."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# What a change is judged by does not depend on chance; `make fuzz` draws anew.
settings.register_profile("fixed", derandomize=True)
if "CLRT_FUZZ_GRAPHS" not in os.environ:
    settings.load_profile("fixed")
# Workers of pytest-xdist get one of 80 columns, which would cut tables.
os.environ.pop("COLUMNS", None)

from clrt.device.caps import DeviceCaps  # noqa: E402
from clrt.runtime.opencl import devices  # noqa: E402
from clrt.runtime.opencl import session as sessions  # noqa: E402
from clrt.runtime.opencl.driver import cl  # noqa: E402

with suppress(ImportError):  # a machine of GPUs may do without
    import onnxruntime

    _make_session = onnxruntime.InferenceSession.__init__

    @functools.wraps(_make_session)
    def _make_small_session(
        self: Any, source: Any, options: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Makes a session with one thread, if the test names no number.

        There is a process of tests for each core, and idle threads keep cores busy.
        """
        options = kwargs.pop("sess_options", options) or onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.intra_op_num_threads or 1
        _make_session(self, source, options, *args, **kwargs)

    onnxruntime.InferenceSession.__init__ = _make_small_session

if os.environ.get("CLRT_TEST_AS_GPU"):  # `make portability`: kernels for GPUs on a CPU
    _read = devices._read_caps

    def _as_gpu(device: Any) -> DeviceCaps:
        return replace(_read(device), kind="gpu", matrix_shapes=frozenset())

    devices._read_caps = _as_gpu

if _noted := os.environ.get(
    "CLRT_TEST_KERNELS", ""
):  # `make portability`: which kernels are launched
    _enqueue, _launched = cl.enqueue_nd_range_kernel, set[str]()

    def _note(queue: Any, kernel: Any, *args: Any, **options: Any) -> Any:
        if (name := kernel.function_name) not in _launched:
            _launched.add(name)
            with open(_noted, "a", encoding="utf-8") as stream:
                stream.write(f"{name}\n")
        return _enqueue(queue, kernel, *args, **options)

    cl.enqueue_nd_range_kernel = _note

# The most that a process of tests may hold, and what there must be for one more. Pages of files,
# such as libraries, do not count: all processes share those (0.4 GB). Collected tests, and what
# compilers keep of thousands of programs, take up to 1.0 GB of it late in a process; copies of
# MiniLM's weights in several models and sessions, 0.9 GB.
MOST_BYTES = 2048 << 20
WORKER_BYTES = 2048 << 20
# What tests may leave until it is let go. Intel's runtime holds 2 to 3 MB for a program.
LEFT_BYTES = 64 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--check", action="store_true", help="the first quick test of each module")
    parser.addoption("--shard", metavar="I/N", help="of the tests every N-th, the I-th being first")


@pytest.hookimpl(trylast=True)  # of what -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if shard := config.getoption("shard"):
        first, count = map(int, shard.split("/"))
        items[:] = items[first::count]
    if config.getoption("check"):
        first: dict[Path, pytest.Item] = {}
        for item in items:
            if not item.get_closest_marker("lengthy"):
                first.setdefault(item.path, item)
        items[:] = first.values()
    without = os.environ.get("CLRT_TEST_WITHOUT", "").splitlines()
    items[:] = [item for item in items if item.nodeid not in without]


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes a test that may end the process: see `make portability`."""
    if _noted:
        Path(f"{_noted}.test").write_text(nodeid, "utf-8")


# The generators of random numbers that modules of tests share, and how they were left by imports.
_drawn: list[tuple[np.random.Generator, Any]] = []


def pytest_collection_finish() -> None:
    modules = [vars(x) for name, x in sys.modules.items() if name.startswith("tests.")]
    shared = {id(x): x for m in modules for x in m.values() if isinstance(x, np.random.Generator)}
    _drawn[:] = [(x, x.bit_generator.state) for x in shared.values()]
    gc.collect()
    gc.freeze()  # tests and ONNX's cases stay: later collections pass over them


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A process for each core, as far as there is memory for them."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(cores, _available_bytes() // WORKER_BYTES))


def _available_bytes() -> int:
    """The memory that processes may still take, of the machine's and of a container's."""
    found = [sys.maxsize]
    with suppress(OSError):
        found.append(_kib_field("/proc/meminfo", "MemAvailable"))
    with suppress(OSError, ValueError):  # "max" where there is no limit
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text("utf-8")))
    return min(found)


def _kib_field(path: str, name: str) -> int:
    """What a file of /proc gives in KiB, in bytes."""
    lines = Path(path).read_text("utf-8").splitlines()
    return next(int(x.split()[1]) << 10 for x in lines if x.startswith(f"{name}:"))


_held = _highest = 0
_reported = MOST_BYTES


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Lets go of what tests left, so that none depends on which ran before it.

    What the last one was given is gone by now.
    """
    global _held
    for generator, state in _drawn:
        generator.bit_generator.state = state
    held = _resident_bytes()
    if held > _held + LEFT_BYTES:
        let_go()
        held = _held = _resident_bytes()
    _held = min(held, _held)


@pytest.hookimpl(trylast=True)  # the fixtures of the test come first, and are gone
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Fails the test with which a process came to hold too much."""
    global _reported, _highest
    if (highest := _peak_bytes()) <= _highest:
        return  # of an earlier test, and what it mapped may be gone
    _highest = highest
    if (peak := highest - _shared_bytes()) > _reported:
        _reported = peak + LEFT_BYTES
        large = item.get_closest_marker("memory")
        most = MOST_BYTES if large is None else large.args[0] << 20
        if peak <= most:
            return
        sizes = f"{peak >> 20} of at most {most >> 20} MiB"
        pytest.fail(f"This process, or one that it started, came to hold {sizes}.")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Sets CLRT_TWINS as the closest marker `twins` says, for fixtures of modules as well."""
    marker = item.get_closest_marker("twins")
    with pytest.MonkeyPatch.context() as patch:
        if marker is not None:
            patch.setenv("CLRT_TWINS", *marker.args)
        yield


def pytest_sessionfinish() -> None:
    let_go()  # or PoCL compiled each program again for the cache


def let_go() -> None:
    """Drops what tests left behind: compiled programs, idle buffers, and models in cycles.

    A session keeps programs for models to come.
    """
    for session in sessions._SESSIONS.values():
        if not session.device.caps.simulator:  # see tests.harness._never_freed
            with session.lock:
                for programs in session.caches:
                    programs._recent.clear()
                    programs._saver.reset()
            session.trim()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes() -> int:
    """What this process holds; where that is not known, the most that it has held."""
    with suppress(OSError):
        return _kib_field("/proc/self/status", "VmRSS")
    return _peak_bytes()


def _shared_bytes() -> int:
    """What this process holds of files that it maps; 0 where that is not known."""
    with suppress(OSError):
        return _kib_field("/proc/self/status", "RssFile")
    return 0


def _peak_bytes() -> int:
    """The most that this process, or one that it waited for, has held at a time; 0 on Windows."""
    if sys.platform == "win32":
        return 0
    import resource

    of = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(x).ru_maxrss for x in of)
    return peak if sys.platform == "darwin" else peak << 10


# Linux counts what started this process as its own peak.
_reported = max(_reported, _peak_bytes())
