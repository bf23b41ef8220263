"""Measures peak FLOP/s and memory bandwidth of a device, for rooflines, and launch times."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from clrt.device.caps import AMX_BFLOAT16
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.session import DeviceSession
from clrt.util.fast_dataclass import dataclass

# Constants that peaks.cl shares: independent FMA chains per work-item; rows and columns of a tile
# of the matrix unit; vectors in flight per work-item.
_CHAINS = 12
_TILE = 16
_UNROLLED = 8
# Iterations of the FMA kernel per launch.
_STEPS = 20_000
# Vectors that a work-item of the read kernel sums.
_READ_VECTORS = 1024
# Size in bytes of the buffers that measure memory bandwidth: larger than any cache.
_BUFFER_BYTES = 128 << 20
# Working sets in bytes, from the size of a level-1 cache to more than any cache, in steps of 4.
_CACHED_BYTES = tuple(1 << k for k in range(15, 28, 2))
# Minimum number of bytes that a launch moves in a cached working set, to make its start negligible.
_MOVED_BYTES = 64 << 20
# Minimum seconds to measure a probe, and to measure one of a cached working set; minimum number of
# rounds of each.
_SECONDS = 0.2
_CACHED_SECONDS = 0.02
_TURNS = 6
# Number of launches enqueued at once, to measure the time of a launch among many.
_CHAIN = 200


@dataclass(frozen=True)
class Peaks:
    """Peak compute and memory rates of a device.

    Attributes:
        gflops: Peak in 10^9 floating-point operations per second.
        gbs: Memory bandwidth in 10^9 bytes per second, read plus written.
        cached: (size in bytes, bandwidth in 10^9 bytes per second) of each measured working set,
            by ascending size. Small working sets fit in caches, which are faster than memory.
    """

    gflops: float
    gbs: float
    cached: tuple[tuple[int, float], ...] = ()

    def gbs_of(self, footprint_bytes: int) -> float:
        """Returns an upper bound for the bandwidth of a launch, in 10^9 bytes per second.

        Uses the largest measured working set that does not exceed `footprint_bytes`, or the
        smallest one if all are larger. The result is at least the bandwidth of memory.

        Args:
            footprint_bytes: Bytes of distinct memory that the launch accesses.
        """
        fitting = [gbs for nbytes, gbs in self.cached if nbytes <= footprint_bytes]
        smallest = self.cached[0][1] if self.cached else self.gbs
        return max(fitting[-1] if fitting else smallest, self.gbs)


@dataclass(frozen=True)
class PeakProbe:
    """A kernel or copy whose measured rate is a peak of the device.

    Attributes:
        enqueue: Enqueues the kernel or copy once.
        amount: Work per call of `enqueue`: floating-point operations, or bytes read plus written.
        buffers: Buffers that the kernel or copy uses, held because a kernel does not keep them
            alive.
    """

    enqueue: Callable[[], object]
    amount: int
    buffers: tuple[cl.Buffer, ...]


def multiply_adds(session: DeviceSession) -> PeakProbe:
    """Returns a probe of float32 multiply-adds on registers; its `amount` counts operations."""
    caps = session.device.caps
    # CPU compilers turn the work-items of a group into a loop; a group of one keeps the chains in
    # registers.
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
    """Returns a probe of float32 matrix products by AMX on registers.

    Its `amount` counts the operations of the float32 product only, although AMX computes it as six
    products of bfloat16 tiles.
    """
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
    """Returns a probe that copies a buffer by a kernel; its `amount` is bytes read plus written.

    Args:
        source: Buffer to copy.
        target: Buffer of the same size, to overwrite.
        queue: Queue for the launches; None for the session's.
    """
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
    """Returns a probe that copies `source` to `target`, of equal size, by clEnqueueCopyBuffer.

    Its `amount` is bytes read plus written.
    """
    return PeakProbe(
        lambda: cl.enqueue_copy(session.queue, target, source, byte_count=source.size),
        2 * source.size,
        (source, target),
    )


def kernel_read(session: DeviceSession, source: cl.Buffer, target: cl.Buffer) -> PeakProbe:
    """Returns a probe that sums the elements of a buffer; its `amount` is bytes read.

    Args:
        source: Buffer to sum.
        target: Buffer for the sums of the work-items.
    """
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
    """Returns three probes within a small working set: reads, in-place updates and additions.

    Each probe passes over the working set repeatedly. The fastest probe bounds every elementwise
    kernel. Reads store nothing, updates store to the addresses that they load, and additions have
    the mix of loads and stores that cores sustain.

    Args:
        nbytes: Size of the working set in bytes; a power of 2.
    """
    addition = session.upload(np.ones(nbytes // 16, np.float32)), session.allocate(nbytes // 4)
    x, y, z = session.upload(np.ones(nbytes // 4, np.float32)), *addition
    return [
        _repeated_pass(session, "cached_read", (x, x, z), nbytes, 1),
        _repeated_pass(session, "cached_update", (x, x, x), nbytes, 2),
        _repeated_pass(session, "cached_add", (x, y, z), nbytes // 4, 3),
    ]


def _repeated_pass(
    session: DeviceSession, entry: str, buffers: tuple[cl.Buffer, ...], nbytes: int, streams: int
) -> PeakProbe:
    """Returns a probe whose kernel passes over `nbytes` of each buffer several times per launch.

    The passes of a launch together move about `_MOVED_BYTES`.

    Args:
        entry: Entry point of the kernel in peaks.cl.
        buffers: Arguments of the kernel.
        streams: Number of loads plus stores per element; `amount` counts the bytes of all of them.
    """
    caps = session.device.caps
    vectors = nbytes // (4 * _lanes(session))
    local, limit = (1, 4 * caps.compute_units) if caps.is_cpu else (64, 2048 * caps.compute_units)
    items = 1 << min(limit, vectors // _UNROLLED).bit_length() - 1
    times = 1 if caps.simulator else max(_MOVED_BYTES // (streams * nbytes), 1)
    kernel = _kernel(session, entry)
    kernel.set_args(*buffers, np.int32(vectors // items), np.int32(times), np.float32(1))
    return PeakProbe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (min(local, items),)),
        streams * nbytes * times,
        buffers,
    )


def large_buffers(session: DeviceSession) -> tuple[cl.Buffer, cl.Buffer]:
    """Allocates two buffers of equal size filled with ones, larger than caches if possible.

    Filling them matters, since unwritten pages may all alias a single page of zeros.
    """
    caps = session.device.caps
    largest = 1 << 18 if caps.simulator else _BUFFER_BYTES
    nbytes = min(largest, caps.max_alloc_bytes, caps.global_mem_bytes // 8)
    # A power of two, so that every kernel has whole work-groups.
    ones = np.ones(1 << (nbytes // 4).bit_length() - 1, np.float32)
    return session.upload(ones), session.upload(ones)


_MEASURED: dict[tuple[int, int], Peaks] = {}


def peaks_of(session: DeviceSession) -> Peaks:
    """Returns the peak rates of the session's device.

    The first call for a device measures them, in about 2 seconds.
    """
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
            # The largest working set exceeds every cache, and may be moved faster than by a copy.
            _MEASURED[key] = Peaks(gflops, max(gbs, cached[-1][1]), cached)
        return _MEASURED[key]


def _cached_speeds(session: DeviceSession) -> tuple[tuple[int, float], ...]:
    caps = session.device.caps
    limit = (
        _CACHED_BYTES[0]
        if caps.simulator
        else min(caps.max_alloc_bytes, caps.global_mem_bytes // 8)
    )
    speeds: list[tuple[int, float]] = []
    best = 0.0
    # A smaller working set is at least as fast as a larger one.
    for nbytes in reversed([n for n in _CACHED_BYTES if n <= limit]):
        for probe in cached_work(session, nbytes):
            best = max(best, _speed(session, probe, _CACHED_SECONDS))
        speeds.append((nbytes, best))
    return tuple(reversed(speeds))


def _speed(session: DeviceSession, probe: PeakProbe, seconds: float) -> float:
    """Returns the best rate of a probe over several rounds, in 10^9 units of `amount` per second.

    The first launch is not timed, since drivers compile in it. The best rate is taken because the
    next launches wake threads and raise clocks, and other work may disturb launches.

    Args:
        seconds: Minimum duration of the measurement, which has at least `_TURNS` rounds.
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
    """Returns a kernel of peaks.cl, compiled for the session's device."""
    caps = session.device.caps
    macros = {
        "CONSECUTIVE": int(caps.is_cpu),
        "USE_AMX": int(AMX_BFLOAT16 in caps.matrix_shapes),
    }
    spec = KernelSpec.of("device/peaks.cl", entry, LANES=_lanes(session), **macros)
    return session.programs.kernel(spec)


@dataclass(frozen=True)
class LaunchTimes:
    """Overhead of kernel launches: the duration of launches that compute almost nothing.

    Attributes:
        each: Seconds per launch if many launches are enqueued before a wait.
        alone: Seconds to enqueue a single launch and wait for it.
    """

    each: float
    alone: float


def launch_times(session: DeviceSession) -> LaunchTimes:
    """Measures the overhead of kernel launches on the session's device."""
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
