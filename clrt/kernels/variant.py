"""Variants of ops: launch emitters with device requirements, cost, and the lowering context."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, TypeAlias

from clrt.device.caps import DeviceCaps
from clrt.device.requires import ANY, FLOAT64, Requires
from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.symbolic_trace import clamp
from clrt.kernels.cost import Efficiency, WorkEstimate, seconds, work_of
from clrt.kernels.spec import Launch, Scratch, i32
from clrt.kernels.thresholds import T, Thresholds, tunable
from clrt.kernels.tuned import TunedKernel
from clrt.kernels.tuning_records import device_thresholds
from clrt.util.fast_dataclass import dataclass


class ChunkPartition(Thresholds):
    """Threshold of the number of work-groups of kernels that combine several chunks in one."""

    groups: int = tunable(
        8, "work-groups per core", "Minimum if possible, so that all cores finish at the same time."
    )

    group: ClassVar = "chunk_shares"


@dataclass
class Lowering:
    """Context of an `emit` function: device, tunables, thresholds and scratch memory.

    Attributes:
        caps: Capabilities of the device.
        record: Returns the tuning record for this device, by a kernel's entry point or by the group
            name of thresholds.
        memo: Results that fusion rules cache per node.
        aliased_subviews: Maps a node to the indices in `Op.subviews` of its subviews that alias
            their parent and need no copy.
    """

    caps: DeviceCaps
    record: Callable[[str], Mapping[str, int]]
    memo: dict[Node, Any] = field(default_factory=dict, kw_only=True)
    aliased_subviews: Mapping[Node, Collection[int]] = field(default_factory=dict, kw_only=True)

    def aliased_subviews_of(self, node: Node) -> Collection[int]:
        """Returns the indices in `op.subviews(node)` of the subviews that alias their parent.

        The node's launches must not copy these subviews.
        """
        return self.aliased_subviews.get(node, ())

    def tunables(self, kernel: TunedKernel) -> dict[str, int]:
        """Returns the tunables of a kernel on this device: values by macro."""
        return kernel.with_record(self.record(kernel.entry))

    def require(self, requires: Requires) -> None:
        """Checks that the device meets requirements which depend on tunables or sizes.

        Constant requirements are in `Variant.requires`.

        Raises:
            UnsupportedError: The device does not meet the requirements.
        """
        missing = requires.missing(self.caps)
        if missing is not None:
            raise UnsupportedError(missing)

    def thresholds(self, group: type[T]) -> T:
        """Returns the thresholds of a group on this device.

        Args:
            group: Class of the group.
        """
        return group.of(self.record(group.group))

    def chunks_per_group(self, pieces: int, most: int) -> int:
        """Returns how many chunks of a launch's work each CPU work-group computes.

        More chunks amortize the work-group's start, which takes 0.1 us.

        Args:
            pieces: Number of chunks that the launch is divided into.
            most: Maximum number of chunks per work-group.
        """
        groups = self.caps.compute_units * self.thresholds(ChunkPartition).groups
        return clamp(pieces // groups, 1, most)

    def scratch(self, elems: int, dtype: DType = DType.FLOAT32) -> Scratch:
        """Allocates scratch memory that lives during the launches of the lowered node.

        Args:
            elems: Number of elements.

        Raises:
            ShapeError: The number of elements exceeds 32 bits.
        """
        i32(elems)
        return Scratch(elems, dtype)


@dataclass
class ChunkLowering(Lowering):
    """Lowering of one chunk of a node; chunks run one after the other and share scratch memory.

    Attributes:
        scratches: Scratch buffers of earlier chunks, which this chunk reuses; the largest chunk
            must come first.
    """

    scratches: list[Scratch]

    def __post_init__(self) -> None:
        self._free = list(self.scratches)

    def scratch(self, elems: int, dtype: DType = DType.FLOAT32) -> Scratch:
        """Returns scratch memory of an earlier chunk if one is large enough, else allocates it.

        Args:
            elems: Number of elements.

        Raises:
            ShapeError: The number of elements exceeds 32 bits.
        """
        for scratch in self._free:
            if scratch.dtype is dtype and scratch.elems >= elems:
                self._free.remove(scratch)
                return scratch
        allocated = super().scratch(elems, dtype)
        self.scratches.append(allocated)
        return allocated


Emit: TypeAlias = Callable[[Node, Lowering], "list[Launch]"]


Work: TypeAlias = Callable[[Node, DeviceCaps], WorkEstimate]


RejectReason: TypeAlias = Callable[[Node, DeviceCaps], "str | None"]


def always(node: Node, caps: DeviceCaps) -> str | None:
    """Returns None: the `reject_reason` of a variant that can run every node."""
    return None


@dataclass(frozen=True)
class Variant:
    """One implementation of an op on devices.

    Attributes:
        name: Name, shown by `clrt explain`.
        emit: Returns the launches of a node with static shapes. An UnsupportedError rejects the
            node.
        reject_reason: Returns why the variant cannot run a node; None if it can.
        requires: Requirements on the device, for all nodes.
        speed: Group of thresholds with the efficiency of the variant's kernels. Ops list the most
            efficient variants first.
        work: Returns the variant's work on a node and a device. If variants of an op differ in
            `work`, the one with the lowest cost is used. Which one has the lowest cost must not
            depend on sizes that vary from call to call, or a new shape would compile a kernel.
    """

    name: str
    emit: Emit
    reject_reason: RejectReason = always
    requires: Requires = ANY
    speed: type[Efficiency] = Efficiency
    work: Work = work_of

    def rejected(self, node: Node, caps: DeviceCaps) -> str | None:
        """Returns why the variant cannot run a node on a device; None if it can."""
        missing = None if self.requires is ANY else self.requires.missing(caps)
        return missing or self.reject_reason(node, caps)

    def cost(self, node: Node, caps: DeviceCaps) -> float:
        """Returns the predicted seconds that this variant takes for a node with static shapes."""
        return seconds(self.work(node, caps), device_thresholds(self.speed, caps), caps)


def by_cost(
    variants: Sequence[Variant], node: Node, caps: DeviceCaps
) -> Iterator[tuple[Variant, str | None]]:
    """Yields variants in the order in which they are tried, each with its reject reason.

    If no variant has its own `work`, the order is that of `variants`. Otherwise rejected variants
    come first, then the others by rising cost; equal costs keep the order of `variants`.

    Yields:
        The variant, and why it cannot run the node on the device; None if it can.
    """
    judged = ((v, v.rejected(node, caps)) for v in variants)
    if all(v.work is work_of for v in variants):
        yield from judged
        return
    pairs = list(judged)
    yield from (pair for pair in pairs if pair[1] is not None)
    accepted = [v for v, reason in pairs if reason is None]
    if len(accepted) > 1:
        accepted.sort(key=lambda v: v.cost(node, caps))
    yield from ((v, None) for v in accepted)


def runs_as(name: str, variants: Sequence[Variant], node: Node, caps: DeviceCaps) -> None:
    """Checks that a node runs with the variant named `name` on a device.

    Args:
        variants: Variants of the node's op, in the op's order.

    Raises:
        UnsupportedError: The variant is rejected or missing, or another variant is tried first.
    """
    for variant, reason in by_cost(variants, node, caps):
        if variant.name == name and reason is None:
            return
        if variant.name == name or reason is None:
            raise UnsupportedError(f"{node} does not run as {name}: {reason or variant.name}")
    raise UnsupportedError(f"{node} has no variant {name}")


def reject_but_float32(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why a kernel for float32 alone cannot run a node; None if input 0 is float32."""
    return None if node.arg(0).dtype is DType.FLOAT32 else "for float32"


def reject_in_float32(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why a kernel that computes in float32 cannot run a node; None if it can.

    Input 0 may have any dtype that is computed in float32, such as float16; `Op.supported_storages`
    says which of these dtypes the op's kernels can load.
    """
    dtype = node.arg(0).dtype
    return None if dtype.compute == "float" else f"no kernel for {dtype}"


def reject_float64(node: Node, caps: DeviceCaps) -> str | None:
    """Returns why a device cannot run a node with float64 values; None if it can.

    The result is None, too, if no input or output is float64.
    """
    dtypes = {v.dtype for v in (*node.inputs, *node.outputs) if v is not None}
    return lacks_float64(dtypes, caps)


def lacks_float64(dtypes: Iterable[DType], caps: DeviceCaps) -> str | None:
    """Returns why a device cannot compute in `dtypes`; None if it can.

    Only float64 is checked.
    """
    return FLOAT64.missing(caps) if DType.FLOAT64 in dtypes else None
