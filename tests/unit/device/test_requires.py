"""Kernel requirements compared with device capabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clrt.device.caps import AMX_BFLOAT16, DeviceCaps, MatrixShape
from clrt.device.requires import ANY, CPU, FLOAT64, GPU, Requires
from clrt.errors import UnsupportedError
from clrt.kernels.variant import Lowering

LEAST = DeviceCaps("p", "least", "v", "1", "gpu", max_work_group_size=64)
MMA = MatrixShape(16, 8, 16, "float16", "float32", "mma")
MOST = replace(
    LEAST,
    opencl_c=(3, 0),
    max_work_group_size=1024,
    local_mem_bytes=64 << 10,
    sub_group_sizes=frozenset({16, 32}),
    extensions=frozenset({"cl_khr_fp64", "cl_khr_fp16"}),
    matrix_shapes=frozenset({MMA}),
)


@pytest.mark.parametrize(
    ("requires", "reason"),
    [
        (CPU, "for devices of kind cpu, not gpu"),
        (FLOAT64, "needs cl_khr_fp64"),
        (Requires(opencl_c=(2, 0)), "needs OpenCL C 2.0; the device has 1.2"),
        (Requires(work_group_size=256), "needs work-groups of 256 items; the device has 64"),
        (
            Requires(local_mem_bytes=20000),
            "needs 20000 bytes of local memory; the device has 16384",
        ),
        (Requires(sub_group_size=32), "needs sub-groups of 32 work-items"),
        (Requires(matrix=MMA), "needs a matrix unit for 16 x 8 x 16 float16 by mma"),
    ],
)
def test_missing_requirement_is_named(requires: Requires, reason: str) -> None:
    assert requires.missing(LEAST) == reason
    if requires is not CPU:
        assert requires.missing(MOST) is None


def test_other_matrix_unit_does_not_satisfy_requirement() -> None:
    assert Requires(matrix=AMX_BFLOAT16).missing(MOST) is not None


def test_each_device_kind_is_cpu_or_gpu() -> None:
    for kind in ("cpu", "gpu", "igpu", "accelerator"):
        caps = replace(LEAST, kind=kind)
        assert ANY.missing(caps) is None
        assert (CPU.missing(caps) is None) != (GPU.missing(caps) is None)


def test_lowering_refuses_excess_local_memory() -> None:
    ctx = Lowering(LEAST, lambda kernel: {})
    ctx.require(Requires(local_mem_bytes=16384))
    with pytest.raises(UnsupportedError, match="bytes of local memory"):
        ctx.require(Requires(local_mem_bytes=16385))
