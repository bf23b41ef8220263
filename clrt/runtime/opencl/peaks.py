"""The ceilings of a device, measured: multiply-adds and products on registers, copies and reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clrt.device.caps import AMX_BFLOAT16
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.session import DeviceSession

_CHAINS = 12
_STEPS = 20_000
_TILE = 16
_READ_VECTORS = 1024
_BUFFER_BYTES = 128 << 20
# Working sets from what a level-1 cache holds to what none does, by steps of 4.
_CACHED_BYTES = tuple(1 << k for k in range(15, 28, 2))
# What a launch moves over and over, at least, so that its start takes none of the time.
_MOVED_BYTES = 64 << 20
_UNROLLED = 8
_SECONDS = 0.2
_CACHED_SECONDS = 0.02
_TURNS = 6
# Launches in the queue at a time, of which the time of one is taken.
_CHAIN = 200


@dataclass(frozen=True)
class Peaks:
    """The most that a device does per second: 10^9 floating-point operations, 10^9 bytes.

    Attributes:
        gbs: From and to memory.
        cached: By bytes of a working set, ascending, the 10^9 bytes per second of a kernel that
            works on nothing else: what just ran leaves its results in caches, and bytes from there
            cannot be held against the memory's speed.
    """

    gflops: float
    gbs: float
    cached: tuple[tuple[int, float], ...] = ()

    def gbs_of(self, footprint_bytes: int) -> float:
        """The most for a launch that works on so many bytes.

        It is that of the largest set measured that is no larger, and so no less than is possible.
        """
        fitting = [gbs for nbytes, gbs in self.cached if nbytes <= footprint_bytes]
        smallest = self.cached[0][1] if self.cached else self.gbs
        return max(fitting[-1] if fitting else smallest, self.gbs)


@dataclass(frozen=True)
class PeakProbe:
    """Work whose speed is a ceiling.

    Attributes:
        enqueue: Starts it once on the session's queue.
        amount: What it does once: floating-point operations, or bytes read and written.
        buffers: What it works on; a kernel does not keep its arguments alive.
    """

    enqueue: Callable[[], object]
    amount: int
    buffers: tuple[cl.Buffer, ...]


def multiply_adds(session: DeviceSession) -> PeakProbe:
    """Multiply-adds that touch no memory."""
    caps = session.device.caps
    # CPU work-items are turned into loops; one by itself keeps the chains in registers.
    local, items = (1, 16 * caps.compute_units) if caps.is_cpu else (64, 2048 * caps.compute_units)
    steps = 8 if caps.simulator else _STEPS
    out = session.allocate(items * _lanes(session) * 4)
    kernel = _kernel(session, "fma_peak")
    kernel.set_args(out, np.float32(0.999), np.float32(0.001), np.int32(steps))
    return PeakProbe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (local,)),
        2 * _CHAINS * _lanes(session) * steps * items,
        (out,),
    )


def unit_products(session: DeviceSession) -> PeakProbe:
    """Products of float32 by the matrix unit, six of bfloat16 for each, that touch no memory."""
    items = 16 * session.device.caps.compute_units
    steps = _STEPS // 20
    out = session.allocate(items * _TILE * _TILE * 4)
    kernel = _kernel(session, "unit_peak")
    kernel.set_args(out, np.int32(steps))
    return PeakProbe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (1,)),
        2 * 4 * _TILE * _TILE * (2 * _TILE) * steps * items,
        (out,),
    )


def kernel_copy(
    session: DeviceSession,
    source: cl.Buffer,
    target: cl.Buffer,
    queue: cl.CommandQueue | None = None,
) -> PeakProbe:
    """A copy by a kernel; bytes read plus bytes written."""
    queue = queue or session.queue
    kernel = _kernel(session, "copy_peak")
    kernel.set_args(source, target)
    items = source.size // (4 * _lanes(session))
    return PeakProbe(
        lambda: cl.enqueue_nd_range_kernel(queue, kernel, (items,), (64,)),
        2 * source.size,
        (source, target),
    )


def buffer_copy(session: DeviceSession, source: cl.Buffer, target: cl.Buffer) -> PeakProbe:
    """A copy by clEnqueueCopyBuffer; bytes read plus bytes written."""
    return PeakProbe(
        lambda: cl.enqueue_copy(session.queue, target, source, byte_count=source.size),
        2 * source.size,
        (source, target),
    )


def kernel_read(session: DeviceSession, source: cl.Buffer, target: cl.Buffer) -> PeakProbe:
    """A sum over a buffer; bytes read."""
    kernel = _kernel(session, "read_peak")
    kernel.set_args(source, target, np.int32(_READ_VECTORS))
    items = source.size // (4 * _lanes(session) * _READ_VECTORS)
    local = 1 if session.device.caps.is_cpu else 64
    return PeakProbe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (local,)),
        source.size,
        (source, target),
    )


def cached_work(session: DeviceSession, nbytes: int) -> list[PeakProbe]:
    """Reading, changing in place, and adding into a third buffer, again and again on few bytes.

    No elementwise kernel moves more per second than the fastest of these: the first two write
    nothing, or where they have read, and the third has as many loads and stores as cores take.

    Args:
        nbytes: Of the working set; a power of 2.
    """
    least = session.upload(np.ones(nbytes // 16, np.float32)), session.allocate(nbytes // 4)
    x, y, z = session.upload(np.ones(nbytes // 4, np.float32)), *least
    return [
        _again(session, "cached_read", (x, x, z), nbytes, 1),
        _again(session, "cached_update", (x, x, x), nbytes, 2),
        _again(session, "cached_add", (x, y, z), nbytes // 4, 3),
    ]


def _again(
    session: DeviceSession, entry: str, buffers: tuple[cl.Buffer, ...], nbytes: int, streams: int
) -> PeakProbe:
    """A kernel that goes over `nbytes` of its buffers so often that its start takes no time."""
    caps = session.device.caps
    vectors = nbytes // (4 * _lanes(session))
    local, most = (1, 4 * caps.compute_units) if caps.is_cpu else (64, 2048 * caps.compute_units)
    items = 1 << min(most, vectors // _UNROLLED).bit_length() - 1
    times = 1 if caps.simulator else max(_MOVED_BYTES // (streams * nbytes), 1)
    kernel = _kernel(session, entry)
    kernel.set_args(*buffers, np.int32(vectors // items), np.int32(times), np.float32(1))
    return PeakProbe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (min(local, items),)),
        streams * nbytes * times,
        buffers,
    )


def large_buffers(session: DeviceSession) -> tuple[cl.Buffer, cl.Buffer]:
    """Two large buffers, written once: unwritten pages may all be one page of zeros."""
    caps = session.device.caps
    largest = 1 << 18 if caps.simulator else _BUFFER_BYTES
    nbytes = min(largest, caps.max_alloc_bytes, caps.global_mem_bytes // 8)
    # A power of two: whole work-groups of each kernel.
    ones = np.ones(1 << (nbytes // 4).bit_length() - 1, np.float32)
    return session.upload(ones), session.upload(ones)


_MEASURED: dict[tuple[int, int], Peaks] = {}


def peaks_of(session: DeviceSession) -> Peaks:
    """The ceilings of the session's device: measured at the first call, about two seconds."""
    key = session.device.key
    with session.lock, session.commands:
        if key not in _MEASURED:
            buffers = large_buffers(session)
            copies = kernel_copy(session, *buffers), buffer_copy(session, *buffers)
            gbs = max(_speed(session, probe, _SECONDS) for probe in copies)
            products = [multiply_adds(session)]
            if AMX_BFLOAT16 in session.device.caps.matrix_shapes:
                products.append(unit_products(session))
            gflops = max(_speed(session, probe, _SECONDS) for probe in products)
            cached = _cached_speeds(session)
            # The largest set is too large for any cache, and may be moved faster than a copy is.
            _MEASURED[key] = Peaks(gflops, max(gbs, cached[-1][1]), cached)
        return _MEASURED[key]


def _cached_speeds(session: DeviceSession) -> tuple[tuple[int, float], ...]:
    caps = session.device.caps
    most = (
        _CACHED_BYTES[0]
        if caps.simulator
        else min(caps.max_alloc_bytes, caps.global_mem_bytes // 8)
    )
    found: list[tuple[int, float]] = []
    best = 0.0
    # A larger set's speed is one that a smaller one reaches as well.
    for nbytes in reversed([n for n in _CACHED_BYTES if n <= most]):
        for probe in cached_work(session, nbytes):
            best = max(best, _speed(session, probe, _CACHED_SECONDS))
        found.append((nbytes, best))
    return tuple(reversed(found))


def _speed(session: DeviceSession, probe: PeakProbe, seconds: float) -> float:
    """The best of several turns, in 10^9 per second.

    The first launch is not one of them: drivers compile in it. The next ones wake threads and raise
    clocks, and on a busy machine most are disturbed.
    """
    probe.enqueue()
    session.queue.finish()
    best, turns, start = float("inf"), 0, time.perf_counter()
    while turns < _TURNS or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        probe.enqueue()
        session.queue.finish()
        best = min(best, time.perf_counter() - begin)
        turns += 1
    return 1e-9 * probe.amount / best


def _lanes(session: DeviceSession) -> int:
    caps = session.device.caps
    return caps.float_lanes if caps.is_cpu and caps.float_lanes > 1 else 4


def _kernel(session: DeviceSession, entry: str) -> cl.Kernel:
    caps = session.device.caps
    macros = {
        "CONSECUTIVE": int(caps.is_cpu),
        "MATRIX_UNIT": int(AMX_BFLOAT16 in caps.matrix_shapes),
    }
    spec = KernelSpec.of("device/peaks.cl", entry, LANES=_lanes(session), **macros)
    return session.programs.kernel(spec)


@dataclass(frozen=True)
class LaunchTimes:
    """Seconds that launches take which compute next to nothing.

    Attributes:
        each: Of a launch among many in the queue.
        alone: From the enqueuing of one to the end of waiting for it.
    """

    each: float
    alone: float


def launch_times(session: DeviceSession) -> LaunchTimes:
    """What a launch takes by itself on the session's device."""
    ones = np.ones(64 * _lanes(session), np.float32)
    buffers = session.upload(ones), session.upload(ones)
    with session.lock, session.commands:
        probe = kernel_copy(session, *buffers)
        alone = 1e-9 * probe.amount / _speed(session, probe, _CACHED_SECONDS)

        def many() -> None:
            for _ in range(_CHAIN):
                probe.enqueue()

        chain = PeakProbe(many, probe.amount, probe.buffers)
        each = 1e-9 * chain.amount / _speed(session, chain, _CACHED_SECONDS) / _CHAIN
    return LaunchTimes(each, alone)
