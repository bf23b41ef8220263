"""Lists the kernels planned for GPUs, and the reason for each that device tests did not launch.

Reads from stdin a list of pairs: a device's `DeviceCaps.to_json()`, and entry points that tests
with CLRT_TEST_KERNELS launched there. Writes for each how many kernels GPUs get, and by entry point
why those that are missing were not launched.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from clrt.device.caps import AMX_BFLOAT16, VNNI_INT8, DeviceCaps
from clrt.ir.graph import Graph
from clrt.kernels.variant import Variant
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.plan.plan import Plan
from clrt.plan.steps import launches_of
from tests.ops.sample_plans import plan_graph, sample_graph
from tests.ops.samples import samples

KERNELS = Path(__file__).parents[2] / "kernels_cl"
_ENTRY = re.compile(r"^ *__kernel\b[^;{]*?\bvoid\s+(\w+)\s*\(", re.MULTILINE)
# Of CPUs, and reached by weights alone, which samples do not have.
_OF_CPUS = frozenset({"few_rows_cpu", "gather_panels", "pack_levels"})
_GIBI = 1 << 30
# A GPU that lacks nothing but a matrix unit, whose kernel takes more than samples have.
GPU = DeviceCaps(
    platform="",
    name="a GPU",
    vendor="",
    driver="",
    kind="gpu",
    cl_version=(3, 0),
    compute_units=32,
    max_work_group_size=1024,
    local_mem_bytes=64 << 10,
    global_mem_bytes=16 * _GIBI,
    max_alloc_bytes=4 * _GIBI,
    opencl_c=(3, 0),
    sub_group_sizes=frozenset({8, 16, 32}),
    extensions=frozenset({"cl_khr_fp16", "cl_khr_fp64"}),
)
CPU = replace(GPU, kind="cpu", float_lanes=16, matrix_shapes=frozenset({AMX_BFLOAT16, VNNI_INT8}))


@dataclass(frozen=True, eq=False)
class Choice:
    """A variant of an op on a sample."""

    cls: type[Op]
    variant: Variant
    graph: Graph

    def plan(self, caps: DeviceCaps) -> Plan:
        """What a device with no other variant does."""
        known = self.cls.variants
        try:
            self.cls.variants = (self.variant,)
            return plan_graph(self.graph, caps)
        finally:
            self.cls.variants = known


def choices() -> Iterator[Choice]:
    """Each variant on each sample of its op."""
    for cls in REGISTRY.all_classes().values():
        if cls.variants and not cls.memory_traits.always_view:
            for sample in samples(cls):
                graph = sample_graph(sample)
                yield from (Choice(cls, variant, graph) for variant in cls.variants)


def entry_points() -> set[str]:
    """Of all kernels but those that measure a device."""
    paths = (p for p in KERNELS.rglob("*.cl*") if p.parent.name != "device")
    return {name for p in paths for name in _ENTRY.findall(p.read_text("utf-8"))}


def gpu_kernels() -> dict[str, list[Choice]]:
    """The entry points that GPUs get, and what leads to each.

    A kernel that no sample leads to counts as one of them.
    """
    found: defaultdict[str, list[Choice]] = defaultdict(list)
    of_cpus = set(_OF_CPUS)
    for choice in choices():
        for entry in launched_by(choice, GPU):
            found[entry].append(choice)
        of_cpus |= launched_by(choice, CPU)
    return {e: found[e] for e in sorted((entry_points() - of_cpus) | found.keys())}


def launched_by(choice: Choice, caps: DeviceCaps) -> set[str]:
    """The entry points of the launches of a plan."""
    return {launch.kernel.entry for launch in launches_of(choice.plan(caps).steps)}


def why_not(entry: str, leading: Iterable[Choice], caps: DeviceCaps) -> str:
    """Why a device launched no kernel of an entry point."""
    reason = "no sample of an op leads to it"
    for choice in leading:
        plan = choice.plan(caps)
        if not plan.host_steps and entry in {x.kernel.entry for x in launches_of(plan.steps)}:
            return "no test that ran launches it"
        reason = next((step.reason for step in plan.host_steps), "another one stands in")
    return reason


def missing(
    kernels: Mapping[str, list[Choice]], caps: DeviceCaps, launched: set[str]
) -> dict[str, str]:
    """The kernels for GPUs that a device did not launch, and why."""
    return {e: why_not(e, kernels[e], caps) for e in sorted(kernels.keys() - launched)}


if __name__ == "__main__":
    _kernels = gpu_kernels()
    _found = [
        (len(_kernels), missing(_kernels, DeviceCaps.from_json(caps), set(launched)))
        for caps, launched in json.load(sys.stdin)
    ]
    json.dump(_found, sys.stdout)
