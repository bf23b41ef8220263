"""Plans for Apple's OpenCL 1.2 devices, without such a device.

Its CPU devices say that work-groups may have 1,024 items, and refuse more than one where a kernel
has a barrier (github.com/diku-dk/futhark/issues/1708, github.com/CNugteren/CLBlast/issues/139).
"""

from __future__ import annotations

import re
from math import prod

import pytest

from clrt.device.caps import DeviceCaps
from clrt.errors import PlanError, UnsupportedError
from clrt.kernels.spec import KernelSpec, Launch
from clrt.ops import REGISTRY
from clrt.plan.steps import DeviceStep
from tests.harness import plan_graph, sample_graph
from tests.ops.samples import samples

CPU = DeviceCaps(
    "Apple", "Apple M1", "Apple", "1.1", "cpu", max_work_group_size=1024, local_mem_bytes=32 << 10
)
GPU = DeviceCaps(
    "Apple", "Apple M1", "Apple", "1.2", "igpu", max_work_group_size=256, local_mem_bytes=32 << 10
)


def _launches(caps: DeviceCaps) -> list[Launch]:
    """Returns the launches of every op sample that can be planned."""
    found: list[Launch] = []
    for op in REGISTRY.all_classes().values():
        for sample in samples(op):
            try:
                steps = plan_graph(sample_graph(sample), caps).steps
            except (PlanError, UnsupportedError):
                continue
            found += [n for step in steps if isinstance(step, DeviceStep) for n in step.launches]
    return found


_PARTS = (
    re.compile(r"#define (\w+)((?:[^\n]*\\\n)*[^\n]*)"),
    re.compile(r"static inline [^;{]*?\b(\w+)\([^{;]*\{(.*?)\n\}", re.DOTALL),
)


def _may_reach_barrier(kernel: KernelSpec) -> bool:
    """Whether a kernel may come to a barrier, by the macros and functions that it names."""
    text, words = kernel.text, {"barrier"}
    parts = [(m[1], set(re.findall(r"\w+", m[2]))) for p in _PARTS for m in p.finditer(text)]
    while more := {name for name, named in parts if named & words} - words:
        words |= more
    body = re.search(rf"void\s+{kernel.entry}\s*\(.*?\n\}}", text, re.DOTALL)
    assert body is not None
    return not words.isdisjoint(re.findall(r"\w+", body[0]))


def test_kernel_barriers_are_detected() -> None:
    source = "norm/softmax.cl"
    assert _may_reach_barrier(KernelSpec.of(source, "softmax_group", T_ITEMS=64, VW=1))
    assert not _may_reach_barrier(KernelSpec.of(source, "softmax_any", VW=1))


@pytest.mark.slow
@pytest.mark.parametrize(("caps", "most_items"), [(CPU, 1), (GPU, 256)], ids=["cpu", "igpu"])
def test_apple_work_groups_respect_barrier_limit(caps: DeviceCaps, most_items: int) -> None:
    found = _launches(caps)
    assert len(found) > 1000
    for launch in found:
        if launch.local_size is not None:
            assert prod(launch.local_size) <= most_items, launch.kernel
        elif most_items == 1:
            assert not _may_reach_barrier(launch.kernel), launch.kernel
        assert launch.kernel.opencl_c == (1, 2)
