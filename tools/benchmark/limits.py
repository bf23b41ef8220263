"""Measures a device's peaks: multiply-adds in registers, large MatMuls, memory copies.

A CPU's matrix unit has a ceiling of its own; MatMuls that are a reference do not go by it.

A CPU's clock moves by several per cent within minutes, and other programs take cores for a while.
So the ceilings are shown as the best that was seen, but a share of one is taken turn by turn, from
a reference that is measured in the same turn.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from .lab import Lab
from .results import Limits
from .turns import Worker, take_turns

_LARGE = ((2048, 1536, 1536), (2048, 3072, 768), (2048, 768, 3072))


@dataclass(frozen=True)
class Sample:
    """One turn: the measurement, and the references of the same turn.

    Attributes:
        time_s: Seconds of one pass.
        fma_gflops, gemm_gflops, copy_gbs: The references; 0 where they were not asked for.
    """

    time_s: float
    fma_gflops: float = 0.0
    gemm_gflops: float = 0.0
    copy_gbs: float = 0.0


def median_share(samples: Sequence[Sample], amount: float, reference: str) -> float:
    """Returns the measured rate relative to a reference, median over the turns.

    Args:
        amount: GFLOP or GB of one pass.
        reference: A field of `Sample`.
    """
    return statistics.median(amount / s.time_s / float(getattr(s, reference)) for s in samples)


def measure_limits(labs: list[Worker], turns: int, seconds: float) -> list[Limits]:
    """The limits of each device, the best of all turns; the labs keep which reference was best."""
    jobs: dict[str, Callable[[Lab], float]] = {
        "fma": partial(fma_gflops, seconds=seconds),
        "unit": partial(_unit_gflops, seconds=seconds),
        "buffer": partial(copy_gbs, by_kernel=False, seconds=seconds),
        "kernel": partial(copy_gbs, by_kernel=True, seconds=seconds),
        "read": partial(_read_gbs, seconds=seconds),
    }
    found = {name: take_turns(labs, job, turns) for name, job in jobs.items()}
    gemm: dict[str, dict[tuple[int, int, int], float]] = {w.name: {} for w in labs}
    for size in _LARGE:
        job = partial(_matmul_gflops, size=size, seconds=seconds)
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
                worker.name,
                best["fma"],
                best["unit"],
                speed,
                best["buffer"],
                best["kernel"],
                best["read"],
                copy,
            )
        )
    return limits


def _keep(lab: Lab, size: tuple[int, int, int], by_kernel: bool) -> None:
    lab.reference_size, lab.copies_by_kernel = size, by_kernel


def _matmul_gflops(lab: Lab, size: tuple[int, int, int], seconds: float) -> float:
    m, n, k = size
    model = lab.model(("MatMul", n, k), partial(matmul_model, n, k))
    bound = lab.bind(model, {"a": (m, k)}, by_unit=False)
    return 2e-9 * m * n * k / lab.time_bound(bound, seconds)


def reference_gflops(lab: Lab, seconds: float) -> float:
    """Returns the GFLOP/s of the device's best MatMul by multiply-adds."""
    m, n, k = lab.reference_size
    return 2e-9 * m * n * k / lab.time_bound(_reference(lab), seconds)


@cache
def _reference(lab: Lab) -> Any:
    """The plan of the reference, made once, so that the device does not wait for it."""
    m, n, k = lab.reference_size
    return lab.bind(lab.load(matmul_model(n, k)), {"a": (m, k)}, by_unit=False)


def reference_gbs(lab: Lab, seconds: float) -> float:
    """Returns the GB/s of the device's best copy."""
    return copy_gbs(lab, lab.copies_by_kernel, seconds)


def time_matmul(lab: Lab, m: int, n: int, k: int, seconds: float) -> float:
    """Seconds of [m, k] times a constant [k, n]; one model serves every m."""
    model = lab.model(("MatMul", n, k), partial(matmul_model, n, k))
    return lab.time_bound(lab.bind(model, {"a": (m, k)}), seconds)


def matmul_model(n: int, k: int) -> bytes:
    """Builds an ONNX model y = a B with any number of rows."""
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


def fma_gflops(lab: Lab, seconds: float) -> float:
    """Measures GFLOP/s of multiply-adds in registers."""
    from clrt.runtime.opencl.peaks import multiply_adds

    return _speed(lab, multiply_adds(lab.session), seconds)


def _unit_gflops(lab: Lab, seconds: float) -> float:
    """GFLOP/s of float32 by a CPU's matrix unit, which touch no memory; 0 where there is none."""
    from clrt.device.caps import AMX_BFLOAT16
    from clrt.runtime.opencl.peaks import unit_products

    has_unit = AMX_BFLOAT16 in lab.info.caps.matrix_shapes
    return _speed(lab, unit_products(lab.session), seconds) if has_unit else 0.0


def copy_gbs(lab: Lab, by_kernel: bool, seconds: float) -> float:
    """GB/s read plus GB/s written by a copy."""
    from clrt.runtime.opencl.peaks import buffer_copy, kernel_copy

    copy = kernel_copy if by_kernel else buffer_copy
    return _speed(lab, copy(lab.session, *_buffers(lab)), seconds)


def _read_gbs(lab: Lab, seconds: float) -> float:
    from clrt.runtime.opencl.peaks import kernel_read

    return _speed(lab, kernel_read(lab.session, *_buffers(lab)), seconds)


def _speed(lab: Lab, probe: Any, seconds: float) -> float:
    """10^9 of what a probe does, per second."""
    return 1e-9 * float(probe.amount) / lab.time_launches(probe.enqueue, 1, seconds)


@cache
def _buffers(lab: Lab) -> tuple[Any, Any]:
    from clrt.runtime.opencl.peaks import large_buffers

    return large_buffers(lab.session)
