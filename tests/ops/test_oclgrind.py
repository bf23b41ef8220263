"""Kernels under Oclgrind: accesses outside a tensor, data races, and uninitialised reads."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import TensorType
from clrt.kernels.spec import BufferArg, Launch
from clrt.kernels.strided import copy_launches
from clrt.kernels.variant import Lowering, Variant
from clrt.ops.base import Op, Types
from clrt.ops.checks import need
from clrt.runtime.opencl.devices import devices
from tests.harness import all_devices, run_graph, sample_graph
from tests.ops.samples import Sample

pytestmark = pytest.mark.skipif(
    not any(d.caps.simulator for d in devices()), reason="Oclgrind is not installed"
)
CHECKS = {
    "CLRT_DEVICE": "oclgrind",
    "OCLGRIND_DATA_RACES": "1",
    "OCLGRIND_UNINITIALIZED": "1",
    "OCLGRIND_MAX_ERRORS": "20",
}
ROOT = Path(__file__).parents[2]
KERNEL_TESTS = tuple(
    f"tests/ops/test_{n}.py"
    for n in (
        *("ops", "indices", "row_norm", "norm_gemm_fusion", "split_product"),
        *("dynamic_quantize", "gemm_matrix_unit_gpu", "gemm_split_float_cpu", "word_unit"),
        *("places", "winograd"),
        # These free buffers: see harness._never_freed.
        *("tied_embedding_fusion", "device_packing", "kernel_loop"),
    )
)


def _start(log: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Starts Python on device Oclgrind. The exit code is 0 even with faults: see the log."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **CHECKS, "OCLGRIND_LOG": str(log), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


LONGEST = (pytest.mark.slow, pytest.mark.longest)
# The products, and an attention, that take as long as all the rest.
COSTLY = (
    "conv_gpu or gemm_gpu or gemm_unit or matrix_unit or gemm_split_float_cpu or FusedAttention-gpu"
)


def _shards() -> list[ParameterSet]:
    """A sample of the tests for `make test`, and the rest; most of the costly ones are left to
    `make test-oclgrind`.

    In one process the simulator comes to hold 6 GB.
    """
    quick = [(f"not ({COSTLY})", index, 10) for index in range(0, 10, 5)]
    slow = [(f"not ({COSTLY})", index, 10) for index in range(10) if index % 5]
    slow += [(COSTLY, index, 8) for index in range(0, 8, 4)]
    longest = [(COSTLY, index, 8) for index in range(8) if index % 4]
    marked = ((quick, ()), (slow, pytest.mark.slow), (longest, LONGEST))
    return [
        pytest.param(kernels, f"{index}/{count}", marks=marks)
        for shards, marks in marked
        for kernels, index, count in shards
    ]


@pytest.mark.lengthy
@pytest.mark.parametrize(("kernels", "shard"), _shards())
def test_kernel_variants_are_clean_under_oclgrind(kernels: str, shard: str, tmp_path: Path) -> None:
    tests = ("-p", "no:cacheprovider", *KERNEL_TESTS, "-k", kernels, "--shard", shard)
    run = _start(tmp_path / "log", "-m", "pytest", *tests)
    output, _ = run.communicate()
    assert run.returncode == 0, output
    assert (tmp_path / "log").read_text() == "", output


@pytest.mark.lengthy
def test_recurrent_teams_are_clean_under_oclgrind(tmp_path: Path) -> None:
    # What orders work-groups by atomics is a race to Oclgrind: one after the other, the first one
    # does everything.
    tests = ("-p", "no:cacheprovider", "tests/ops/test_recurrent_team.py")
    run = _start(tmp_path / "log", "-m", "pytest", *tests, OCLGRIND_NUM_THREADS="1")
    output, _ = run.communicate()
    assert run.returncode == 0, output
    assert (tmp_path / "log").read_text() == "", output


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("none", ""),
        ("outside", "Invalid read of size"),
        ("race", "data race"),
        ("uninitialised", "Uninitialized value written"),
    ],
)
def test_oclgrind_detects_faults(fault: str, message: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = _start(log, "-c", f"from {__name__} import run_fault; run_fault({fault!r})")
    output, _ = run.communicate()
    assert run.returncode == 0, output
    found = log.read_text()
    assert message in found
    assert bool(message) == bool(found)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, y, n = BufferArg(node.arg(0)), BufferArg(node.output), node.output.dims[0]
    assert isinstance(node.op, Faulty)
    count, step = n, 1
    if node.op.fault == "outside":
        count = n + 1
    elif node.op.fault == "race":
        step = 0
    elif node.op.fault == "uninitialised":
        x = BufferArg(ctx.scratch(n))
    return copy_launches(ctx, x, y, DType.FLOAT32, (count,), (1,), (step,))


@dataclass(frozen=True)
class Faulty(Op):
    """A copy kernel with a chosen fault."""

    fault: str = "none"

    name = "Faulty"
    domain = "test"
    variants = (Variant("strided", _emit),)

    def infer(self, inputs: Types) -> list[TensorType]:
        return [need(inputs, 0, self)]


def run_fault(fault: str) -> None:
    """Runs a faulty kernel; called in its own process."""
    # More than one work-item copies, or there would be no race.
    x = np.arange(1, 9000, dtype=np.float32)
    (device,) = all_devices()
    run_graph(sample_graph(Sample(Faulty(fault), (x,))), {"x0": x}, device)
