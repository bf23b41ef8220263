"""The ceilings of a device, measured: multiply-adds and products on registers, copies and reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from clrt.kernels.spec import KernelSpec
from clrt.runtime.driver import cl
from clrt.runtime.session import Session

_CHAINS = 12
_STEPS = 20_000
_TILE = 16
_READ_VECTORS = 1024
_BUFFER_BYTES = 256 << 20
_SECONDS = 0.2


@dataclass(frozen=True)
class Peaks:
    """The most that a device does per second: 10^9 floating-point operations, 10^9 bytes."""

    gflops: float
    gbs: float


@dataclass(frozen=True)
class Probe:
    """Work whose speed is a ceiling.

    Attributes:
        enqueue: Starts it once on the session's queue.
        amount: What it does once: floating-point operations, or bytes read and written.
        buffers: What it works on; a kernel does not keep its arguments alive.
    """

    enqueue: Callable[[], object]
    amount: int
    buffers: tuple[cl.Buffer, ...]


def multiply_adds(session: Session) -> Probe:
    """Multiply-adds that touch no memory."""
    caps = session.device.caps
    # CPU work-items are turned into loops; one by itself keeps the chains in registers.
    local, items = (1, 16 * caps.compute_units) if caps.is_cpu else (64, 2048 * caps.compute_units)
    steps = 8 if caps.simulator else _STEPS
    out = session.allocate(items * _lanes(session) * 4)
    kernel = _kernel(session, "fma_peak")
    kernel.set_args(out, np.float32(0.999), np.float32(0.001), np.int32(steps))
    return Probe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (local,)),
        2 * _CHAINS * _lanes(session) * steps * items,
        (out,),
    )


def unit_products(session: Session) -> Probe:
    """Products of float32 by the matrix unit, six of bfloat16 for each, that touch no memory."""
    items = 16 * session.device.caps.compute_units
    steps = _STEPS // 20
    out = session.allocate(items * _TILE * _TILE * 4)
    kernel = _kernel(session, "unit_peak")
    kernel.set_args(out, np.int32(steps))
    return Probe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (1,)),
        2 * 4 * _TILE * _TILE * (2 * _TILE) * steps * items,
        (out,),
    )


def kernel_copy(session: Session, source: cl.Buffer, target: cl.Buffer) -> Probe:
    """A copy by a kernel; bytes read plus bytes written."""
    kernel = _kernel(session, "copy_peak")
    kernel.set_args(source, target)
    items = source.size // (4 * _lanes(session))
    return Probe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (64,)),
        2 * source.size,
        (source, target),
    )


def buffer_copy(session: Session, source: cl.Buffer, target: cl.Buffer) -> Probe:
    """A copy by clEnqueueCopyBuffer; bytes read plus bytes written."""
    return Probe(
        lambda: cl.enqueue_copy(session.queue, target, source, byte_count=source.size),
        2 * source.size,
        (source, target),
    )


def kernel_read(session: Session, source: cl.Buffer, target: cl.Buffer) -> Probe:
    """A sum over a buffer; bytes read."""
    kernel = _kernel(session, "read_peak")
    kernel.set_args(source, target, np.int32(_READ_VECTORS))
    items = source.size // (4 * _lanes(session) * _READ_VECTORS)
    local = 1 if session.device.caps.is_cpu else 64
    return Probe(
        lambda: cl.enqueue_nd_range_kernel(session.queue, kernel, (items,), (local,)),
        source.size,
        (source, target),
    )


def large_buffers(session: Session) -> tuple[cl.Buffer, cl.Buffer]:
    """Two large buffers, written once: unwritten pages may all be one page of zeros."""
    caps = session.device.caps
    largest = 1 << 18 if caps.simulator else _BUFFER_BYTES
    nbytes = min(largest, caps.max_alloc_bytes, caps.global_mem_bytes // 8)
    # A power of two: whole work-groups of each kernel.
    ones = np.ones(1 << (nbytes // 4).bit_length() - 1, np.float32)
    return session.upload(ones), session.upload(ones)


_MEASURED: dict[int, Peaks] = {}


def peaks_of(session: Session) -> Peaks:
    """The ceilings of the session's device: measured at the first call, about half a second."""
    index = session.device.index
    with session.using():
        if index not in _MEASURED:
            buffers = large_buffers(session)
            copies = kernel_copy(session, *buffers), buffer_copy(session, *buffers)
            gbs = max(_speed(session, probe) for probe in copies)
            products = [multiply_adds(session)]
            if session.device.caps.matrix_unit:
                products.append(unit_products(session))
            _MEASURED[index] = Peaks(max(_speed(session, p) for p in products), gbs)
        return _MEASURED[index]


def _speed(session: Session, probe: Probe) -> float:
    """The best of many turns, in 10^9 per second: the first ones wake threads and raise clocks."""
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < _SECONDS:
        begin = time.perf_counter()
        probe.enqueue()
        session.queue.finish()
        best = min(best, time.perf_counter() - begin)
    return 1e-9 * probe.amount / best


def _lanes(session: Session) -> int:
    caps = session.device.caps
    return caps.float_lanes if caps.is_cpu and caps.float_lanes > 1 else 4


def _kernel(session: Session, entry: str) -> cl.Kernel:
    caps = session.device.caps
    macros = {"CONSECUTIVE": int(caps.is_cpu), "MATRIX_UNIT": int(bool(caps.matrix_unit))}
    spec = KernelSpec.of("peaks.cl", entry, LANES=_lanes(session), **macros)
    return session.programs.kernel(spec)
