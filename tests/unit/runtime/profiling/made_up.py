"""Synthetic profile for tests."""

from __future__ import annotations

from clrt.runtime.opencl.peaks import Peaks
from clrt.runtime.profiling.profile import Profile
from clrt.runtime.profiling.timings import HostTime, KernelTime, NodeInfo, Tenant, TimedStage

NASTY = "</script><script>alert('x')</script><!--\u2028&amp;"


def profile() -> Profile:
    """Returns a profile of two kernels and a host step: 100 ns in steps of a 200 ns run."""
    node = NodeInfo("a", "MatMul", ("a",), "", 0, "gemm", ("x: float32[2]",), ("y",), ())
    return Profile(
        model=NASTY,
        device="Fast [GPU]",
        inputs={"x": (2, 3)},
        repeat=4,
        wall_ms=0.25,
        run_ns=200,
        peaks=Peaks(100, 10),
        steps=(
            kernel(0, "gemm", 60, 20, flops=3000, nbytes=100),
            HostTime(1, 0, 1, "h", "NonZero", ("h",), 10, 90, 100, "why"),
            kernel(2, "copy", 10, 100, nbytes=200),
            kernel(3, "copy", 20, 150, nbytes=200),
        ),
        stages=(TimedStage((node,), (Tenant("y", "float32[2]", 0, 0, 8, 0, 2),), (128,), 3),),
    )


def kernel(
    index: int, entry: str, ns: float, start: float, flops: int = 0, nbytes: int = 0
) -> KernelTime:
    """Returns a launch on a device of 100 GFLOP/s and 10 GB/s."""
    floor = max(flops / 100, nbytes / 10)
    return KernelTime(
        *(index, 0, index, f"node {index}", "MatMul", ("one", NASTY), ns, start, start + ns),
        *(entry, "any", (("T", "float"),), (64,), (2, 3), flops, nbytes, floor),
    )
