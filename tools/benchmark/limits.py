"""The ceilings of a device: multiply-adds on registers, large MatMuls, copies of memory.

A CPU's clock moves by several per cent within minutes, and other programs take cores for a while.
So the ceilings are shown as the best that was seen, but a share of one is taken turn by turn, from
a reference that is measured in the same turn.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from .lab import Lab
from .results import Limits
from .turns import Worker, take_turns

_BUFFER_BYTES = 256 << 20
# Latency times throughput of a multiply-add is 8 to 10 on CPUs; with the operands that fits into
# 16 registers.
_CHAINS = 12
_STEPS = 20_000
_SOURCE = """
#pragma OPENCL FP_CONTRACT ON
typedef float{lanes} vec;

__kernel void fma_peak(__global vec *out, float factor, float term) {{
    vec x = factor, y = term;
    vec {declared};
    for (int i = 0; i < {steps}; ++i) {{
        {chained}
    }}
    out[get_global_id(0)] = {summed};
}}

__kernel void copy(__global const vec *in, __global vec *out) {{
    size_t i = get_global_id(0);
    out[i] = in[i];
}}

__kernel void read(__global const vec *in, __global vec *out, int count) {{
    size_t item = get_global_id(0), items = get_global_size(0);
    size_t first = {consecutive} ? item * count : item, step = {consecutive} ? 1 : items;
    vec a = 0, b = 0, c = 0, d = 0;
    for (size_t i = 0; i < count; i += 4) {{
        __global const vec *at = in + first + i * step;
        a += at[0];
        b += at[step];
        c += at[2 * step];
        d += at[3 * step];
    }}
    out[item] = a + b + c + d;
}}
"""
_READ_VECTORS = 1024
_LARGE = ((2048, 1536, 1536), (2048, 3072, 768), (2048, 768, 3072))


def kernel_source(lanes: int, is_cpu: bool) -> str:
    """The OpenCL C of the kernels, with vectors of so many floats.

    The chains are named variables, since an array may stay in memory; products and sums are
    separate in the text for the compiler to contract, since a call of fma() may stay a call.
    """
    names = [f"a{i}" for i in range(_CHAINS)]
    return _SOURCE.format(
        lanes=lanes,
        declared=", ".join(f"{n} = {i}.0f" for i, n in enumerate(names)),
        chained=" ".join(f"{n} = {n} * x + y;" for n in names),
        summed=" + ".join(names),
        steps=_STEPS,
        consecutive=int(is_cpu),
    )


@dataclass(frozen=True)
class Sample:
    """One turn: what was measured, and the references in the same turn.

    Attributes:
        time_s: Seconds of one pass.
        fma_gflops, gemm_gflops, copy_gbs: The references; 0 where they were not asked for.
    """

    time_s: float
    fma_gflops: float = 0.0
    gemm_gflops: float = 0.0
    copy_gbs: float = 0.0


def median_share(samples: Sequence[Sample], amount: float, reference: str) -> float:
    """What was done per second over a reference, median over the turns.

    Args:
        amount: GFLOP or GB of one pass.
        reference: A field of `Sample`.
    """
    return statistics.median(amount / s.time_s / float(getattr(s, reference)) for s in samples)


def measure_limits(labs: list[Worker], turns: int, seconds: float) -> list[Limits]:
    """The limits of each device, the best of all turns; the labs keep which reference was best."""
    jobs: dict[str, Callable[[Lab], float]] = {
        "fma": partial(fma_gflops, seconds=seconds),
        "buffer": partial(copy_gbs, by_kernel=False, seconds=seconds),
        "kernel": partial(copy_gbs, by_kernel=True, seconds=seconds),
        "read": partial(_read_gbs, seconds=seconds),
    }
    found = {name: take_turns(labs, job, turns) for name, job in jobs.items()}
    gemm: dict[str, dict[tuple[int, int, int], float]] = {w.name: {} for w in labs}
    for size in _LARGE:
        job = partial(matmul_gflops, size=size, seconds=seconds)
        for name, speeds in take_turns(labs, job, turns).items():
            gemm[name][size] = max(speeds)
    limits = []
    for worker in labs:
        best = {name: max(speeds[worker.name]) for name, speeds in found.items()}
        size, speed = max(gemm[worker.name].items(), key=lambda item: item[1])
        by_kernel = best["kernel"] > best["buffer"]
        worker.ask(partial(_keep, size=size, by_kernel=by_kernel))
        copy = best["kernel" if by_kernel else "buffer"]
        limits.append(
            Limits(
                worker.name, best["fma"], speed, best["buffer"], best["kernel"], best["read"], copy
            )
        )
    return limits


def _keep(lab: Lab, size: tuple[int, int, int], by_kernel: bool) -> None:
    lab.reference_size, lab.copies_by_kernel = size, by_kernel


def matmul_gflops(lab: Lab, size: tuple[int, int, int], seconds: float) -> float:
    """GFLOP/s of one MatMul."""
    m, n, k = size
    return 2e-9 * m * n * k / time_matmul(lab, m, n, k, seconds)


def reference_gflops(lab: Lab, seconds: float) -> float:
    """GFLOP/s of the MatMul that does best on this device."""
    m, n, k = lab.reference_size
    return 2e-9 * m * n * k / lab.time_bound(_reference(lab), seconds)


@cache
def _reference(lab: Lab) -> Any:
    """The plan of the reference, made once, so that the device does not wait for it."""
    m, n, k = lab.reference_size
    return lab.bind(lab.load(matmul_model(n, k)), {"a": (m, k)})


def reference_gbs(lab: Lab, seconds: float) -> float:
    """GB/s of the copy that does best on this device."""
    return copy_gbs(lab, lab.copies_by_kernel, seconds)


def time_matmul(lab: Lab, m: int, n: int, k: int, seconds: float) -> float:
    """Seconds of [m, k] times a constant [k, n]; one model serves every m."""
    model = lab.model(("MatMul", n, k), partial(matmul_model, n, k))
    return lab.time_bound(lab.bind(model, {"a": (m, k)}), seconds)


def matmul_model(n: int, k: int) -> bytes:
    """An ONNX model y = a B with any number of rows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    b = np.random.default_rng(0).random((k, n), np.float32) - np.float32(0.5)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        "matmul",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["rows", k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])],
        [numpy_helper.from_array(b, "b")],
    )
    opset = [helper.make_opsetid("", 20)]
    proto: onnx.ModelProto = helper.make_model(graph, opset_imports=opset, ir_version=10)
    return bytes(proto.SerializeToString())


@cache
def _program(lab: Lab) -> tuple[Any, int]:
    """The compiled kernels and their vectors' lanes."""
    import pyopencl as cl

    lanes = lab.info.caps.float_lanes if lab.info.caps.is_cpu else 4
    source = kernel_source(lanes, lab.info.caps.is_cpu)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        return cl.Program(lab.session.context, source).build(["-cl-std=CL1.2"]), lanes


def fma_gflops(lab: Lab, seconds: float) -> float:
    """GFLOP/s of multiply-adds that touch no memory."""
    import pyopencl as cl

    program, lanes = _program(lab)
    units = lab.info.caps.compute_units
    # CPU work-items are turned into loops; one by itself keeps the chains in registers.
    local, items = (1, 16 * units) if lab.info.caps.is_cpu else (64, 2048 * units)
    out = lab.session.allocate(items * lanes * 4)
    kernel = cl.Kernel(program, "fma_peak")
    kernel.set_args(out, np.float32(0.999), np.float32(0.001))

    def enqueue() -> None:
        cl.enqueue_nd_range_kernel(lab.session.queue, kernel, (items,), (local,))

    time_s = lab.time_launches(enqueue, 1, seconds)
    return 2e-9 * _CHAINS * lanes * _STEPS * items / time_s


def copy_gbs(lab: Lab, by_kernel: bool, seconds: float) -> float:
    """GB/s read plus GB/s written by a copy."""
    import pyopencl as cl

    program, lanes = _program(lab)
    source, target = _buffers(lab)
    kernel = cl.Kernel(program, "copy")
    kernel.set_args(source, target)
    queue = lab.session.queue

    def enqueue() -> None:
        if by_kernel:
            cl.enqueue_nd_range_kernel(queue, kernel, (source.size // (4 * lanes),), (64,))
        else:
            cl.enqueue_copy(queue, target, source, byte_count=source.size)

    return 2e-9 * float(source.size) / lab.time_launches(enqueue, 1, seconds)


def _read_gbs(lab: Lab, seconds: float) -> float:
    import pyopencl as cl

    program, lanes = _program(lab)
    source, target = _buffers(lab)
    items = source.size // (4 * lanes * _READ_VECTORS)
    local = 1 if lab.info.caps.is_cpu else 64
    kernel = cl.Kernel(program, "read")
    kernel.set_args(source, target, np.int32(_READ_VECTORS))

    def enqueue() -> None:
        cl.enqueue_nd_range_kernel(lab.session.queue, kernel, (items,), (local,))

    return 1e-9 * float(source.size) / lab.time_launches(enqueue, 1, seconds)


@cache
def _buffers(lab: Lab) -> tuple[Any, Any]:
    """Two large buffers, written once: unwritten pages may all be one page of zeros."""
    caps = lab.info.caps
    nbytes = min(_BUFFER_BYTES, caps.max_alloc_bytes, caps.global_mem_bytes // 8)
    ones = np.ones(nbytes // 4, np.float32)
    return lab.session.upload(ones), lab.session.upload(ones)
