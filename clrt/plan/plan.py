"""`Plan`: the launches and memory of a run at one set of input shapes, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from clrt.ir.graph import Graph, Value
from clrt.kernels.spec import KernelSpec, PackedWeight, StatusWord
from clrt.plan.arena import Allocation, Arena
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.steps import DeviceStep, HostStep, Placed, PlanStep, launches_of
from clrt.util.cached_property import cached_property
from clrt.util.fast_dataclass import dataclass
from clrt.util.renamed import renamed

if TYPE_CHECKING:
    from clrt.plan.fuse_launches import MissedRegion
    from clrt.plan.subview_placement import SubviewNote

# Minimum size of a device buffer in bytes: empty tensors get this much.
MIN_BUFFER_BYTES = 4
# Estimated host memory of a step and its nodes, in bytes; measured: 3 to 11 KB.
_STEP_BYTES = 8 << 10


@renamed(
    also="precompiled_kernels",
    places="allocations",
    parts="subviews",
    statuses="status_words",
    contract="device_io",
)
@dataclass(frozen=True)
class Plan:
    """Execution plan of a graph for one set of input shapes: steps and buffer offsets, as data.

    Attributes:
        graph: The specialised graph.
        steps: Device and host steps in execution order.
        arena: Slab sizes and allocations of the activations.
        allocations: Allocation in the arena of each root value and scratch buffer.
        roots: Maps each value that shares memory to its root, the value that owns the memory.
        live_bytes: Peak of live bytes, a lower bound of the arena's size.
        external: Values that own memory in tensors of the caller, bound at each run.
        device_io: Inputs and outputs that the plan binds in device memory.
        status_words: Words in which kernels report out-of-range indices; a word's index here is its
            position in the buffer of all words.
        missed_regions: Near misses of launch fusion rules.
        precompiled_kernels: Kernels that the graph launches at other input shapes only, to be
            compiled in advance.
        subviews: Outcome of placing each subview: aliased or copied.
        on_twin: Whether the plan is for the device's twin, which runs kernels on the calling
            thread.
    """

    graph: Graph
    steps: tuple[PlanStep, ...]
    arena: Arena
    allocations: Mapping[Placed, Allocation]
    roots: Mapping[Value, Value]
    live_bytes: int
    external: tuple[Value, ...] = ()
    device_io: DeviceIo = HOST_ONLY
    status_words: tuple[StatusWord, ...] = field(default=())
    missed_regions: tuple[MissedRegion, ...] = ()
    precompiled_kernels: tuple[KernelSpec, ...] = ()
    subviews: tuple[SubviewNote, ...] = ()
    on_twin: bool = False

    def root(self, value: Value) -> Value:
        """Returns the value that owns the memory of `value`; `value` itself if it shares none."""
        return self.roots.get(value, value)

    def status_index(self, word: StatusWord) -> int:
        """Returns the position of a status word in the buffer of all words."""
        return self.status_words.index(word)

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        """Kernel of each launch in execution order, then `precompiled_kernels`."""
        return (*(x.kernel for x in launches_of(self.steps)), *self.precompiled_kernels)

    @cached_property
    def launches(self) -> int:
        """Number of kernel launches in a run."""
        return len(launches_of(self.steps))

    @cached_property
    def flops(self) -> int:
        """Number of floating-point operations in a run."""
        return sum(launch.flops for launch in launches_of(self.steps))

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Relative cost of each launch, unitless: 1 + floating-point operations + bytes moved."""
        from clrt.plan.traffic import traffic  # imports ops, which a stored plan does without

        steps = (s for s in self.steps if isinstance(s, DeviceStep))
        pairs = [(s.nodes, x) for s in steps for x in s.launches]
        return tuple(1 + x.flops + traffic(n, x).nbytes for n, x in pairs)

    @property
    def host_bytes(self) -> int:
        """Approximate host memory of the plan in bytes."""
        return len(self.steps) * _STEP_BYTES

    @property
    def status_count(self) -> int:
        """Number of status words."""
        return len(self.status_words)

    @cached_property
    def uploads(self) -> dict[tuple[Value, str], int]:
        """Bytes to upload, by constant and packed layout (\"\" for the constant as it is)."""
        buffers = (b for x in launches_of(self.steps) for b in x.buffers)
        sizes: dict[tuple[Value, str], int] = {}
        for buffer in (*buffers, *self.graph.outputs):
            if isinstance(buffer, PackedWeight):
                sizes[buffer.value, buffer.layout] = max(buffer.nbytes, MIN_BUFFER_BYTES)
            elif isinstance(buffer, Value) and (root := self.root(buffer)).is_constant:
                sizes[root, ""] = max(root.nbytes, MIN_BUFFER_BYTES)
        return sizes

    @cached_property
    def host_steps(self) -> tuple[HostStep, ...]:
        """Steps that run on the host, in execution order."""
        return tuple(s for s in self.steps if isinstance(s, HostStep))
