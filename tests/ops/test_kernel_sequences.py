"""Kernel sequences compute what the launches of their kernels do."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from clrt.ir.op import Array
from clrt.kernels.kernel_sequence import (
    _QUERIES,
    KernelSequence,
    SequencedKernel,
    _plain,
    can_join,
    kernels_in,
)
from clrt.kernels.spec import KernelSpec
from clrt.ops.base import Op
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution
from clrt.runtime.execution.launch_rows import LaunchRows, row_of
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.weight_store import WeightStore
from tests.harness import all_devices, name_of, plan_graph, sample_graph
from tests.ops.samples import samples
from tests.ops.test_ops import ON_DEVICE, feeds_of

CPUS = [d for d in all_devices() if d.caps.is_cpu]
# Number of ops whose sequences `make test` compiles; the others are slow tests.
FEW = 12
OPS = Random(1).sample(ON_DEVICE, len(ON_DEVICE))


def run_twice(plan: Plan, feeds: dict[str, Array], device: DeviceInfo) -> list[dict[str, Array]]:
    """Returns the outputs of a plan: of its launches, and of one launch that runs all of them."""
    session = session_for(device)
    bound = BoundPlan(
        plan,
        session,
        WeightStore(session),
        ArenaMemory(session),
        frozenset(plan.graph.constants()),
        session.connection.lane,
    )
    outputs = dict.fromkeys(plan.graph.output_names, False)
    results = [Execution(bound, feeds, outputs).run()]
    rows, programs = LaunchRows(bound, 1.0), bound.programs
    row = row_of(0, rows._candidates)
    programs.cache.kernel(row.kernel, programs.joined.programs)
    rows._rows = [row]
    bound.commands = [*rows.join(bound)]
    assert len(bound.commands) == 1
    results.append(Execution(bound, feeds, outputs).run())
    return [{k: np.asarray(v) for k, v in each.items()} for each in results]


def check(cls: type[Op], device: DeviceInfo) -> None:
    """Asserts that a sequence computes what the launches of a sample of the op do."""
    for sample in itertools.islice(samples(cls), 3):
        plan = plan_graph(sample_graph(sample), device.caps)
        launches = launches_of(plan.steps)
        if plan.host_steps or not launches:
            continue
        if all(can_join(x.kernel.source, x.kernel.entry) for x in launches):
            launched, joined = run_twice(plan, feeds_of(sample), device)
            for name, array in launched.items():
                np.testing.assert_array_equal(joined[name], array, f"{sample.op} {name}")
            return


@pytest.mark.parametrize("device", CPUS, ids=name_of)
def test_sequences_of_some_ops_compute_what_launches_do(device: DeviceInfo) -> None:
    for cls in OPS[:FEW]:
        check(cls, device)


@pytest.mark.slow
@pytest.mark.parametrize("device", CPUS, ids=name_of)
@pytest.mark.parametrize("cls", OPS[FEW:], ids=lambda c: c.name)
def test_sequence_computes_what_launches_do(cls: type[Op], device: DeviceInfo) -> None:
    check(cls, device)


@pytest.mark.parametrize(
    ("source", "entry"),
    [
        ("norm/softmax.cl", "softmax_group"),  # barriers in a macro
        ("matmul/few_rows_gpu.cl", "few_rows_gpu"),
        ("movement/copy_strided.cl", "copy_tiled"),  # local memory
        ("recurrent/round_rows.cl", "round_rows"),
    ],
)
def test_kernels_with_work_groups_are_not_joined(source: str, entry: str) -> None:
    assert not can_join(source, entry)


def test_only_kernels_query_indices() -> None:
    """Sequences replace these queries by variables of the kernel's function."""
    root = Path(__file__).parents[2] / "kernels_cl"
    for file in root.rglob("*.cl"):
        text = _plain(file.relative_to(root).as_posix())
        kernels = list(kernels_in(text))
        for match in re.finditer("|".join(_QUERIES), text):
            line = text.rfind("\n", 0, match.start()) + 1
            is_macro = text[line:].lstrip().startswith("#") or text[line - 2 : line] == "\\\n"
            in_kernel = any(k.start < match.start() < k.end for k in kernels)
            assert is_macro or in_kernel, f"{file}: {text[line:].splitlines()[0]}"


def test_kernel_twice_in_sequence_is_compiled_once() -> None:
    kernel = KernelSpec.of("movement/trilu.cl", "trilu")
    wide, narrow = SequencedKernel(kernel, (64, 1)), SequencedKernel(kernel, (16, 1))
    text = KernelSequence.from_kernels([wide, narrow, wide]).text
    assert text.count("void run_0(") == 1 and text.count("void run_1(") == 1
    assert text.count("  run_0(") == 2 and "run_2(" not in text
