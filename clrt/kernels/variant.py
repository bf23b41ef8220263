"""Variants: the ways to run an op on a device, and what they may ask when a plan is made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from clrt.device.caps import DeviceCaps
from clrt.device.requires import ANY, FLOAT64, Requires
from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.kernels.cost import FAST, Efficiency, WorkEstimate, seconds, work_of
from clrt.kernels.spec import Launch, Scratch, i32
from clrt.kernels.thresholds import T
from clrt.kernels.tuned import TunedKernel


@dataclass
class Lowering:
    """What an `emit` function may ask for.

    Attributes:
        caps: The device.
        record: The tuning record of a kernel, by its entry point, on this device; of thresholds, by
            the name of their group.
        memo: What rules found of nodes, for those that ask for the same.
        aliased_subviews: Subviews (`Op.subviews`) that alias their parent and need no copy.
    """

    caps: DeviceCaps
    record: Callable[[str], Mapping[str, int]]
    memo: dict[Node, Any] = field(default_factory=dict, kw_only=True)
    aliased_subviews: Mapping[Node, Collection[int]] = field(default_factory=dict, kw_only=True)

    def placed_of(self, node: Node) -> Collection[int]:
        """The parts of a node that its launches do not copy."""
        return self.aliased_subviews.get(node, ())

    def tunables(self, kernel: TunedKernel) -> dict[str, int]:
        """The `T_` macros of a kernel on this device."""
        return kernel.with_record(self.record(kernel.entry))

    def require(self, requires: Requires) -> None:
        """Asks for what only tunables or sizes tell; the rest is the variant's `requires`.

        Raises:
            UnsupportedError: The device lacks it.
        """
        lacking = requires.missing(self.caps)
        if lacking is not None:
            raise UnsupportedError(lacking)

    def thresholds(self, group: type[T]) -> T:
        """What was measured on devices like this one, of a group."""
        return group.of(self.record(group.group))

    def scratch(self, elems: int, dtype: DType = DType.FLOAT32) -> Scratch:
        """Memory for this node only.

        Raises:
            ShapeError: As `i32`.
        """
        i32(elems)
        return Scratch(elems, dtype)


@dataclass
class ChunkLowering(Lowering):
    """For a part of a node: parts run one after the other, so that they share their memory.

    Attributes:
        held: What the parts before asked for; the largest part comes first.
    """

    held: list[Scratch]

    def __post_init__(self) -> None:
        self._free = list(self.held)

    def scratch(self, elems: int, dtype: DType = DType.FLOAT32) -> Scratch:
        """Memory for this node only, free in this part."""
        for kept in self._free:
            if kept.dtype is dtype and kept.elems >= elems:
                self._free.remove(kept)
                return kept
        made = super().scratch(elems, dtype)
        self.held.append(made)
        return made


Emit: TypeAlias = Callable[[Node, Lowering], "list[Launch]"]


RejectReason: TypeAlias = Callable[[Node, DeviceCaps], "str | None"]


def always(node: Node, caps: DeviceCaps) -> str | None:
    """The predicate of a variant that fits everywhere."""
    return None


@dataclass(frozen=True)
class Variant:
    """One way to run an op on a device.

    Attributes:
        emit: Launches for a node whose shapes are all known.
        reject_reason: Why the variant does not hold for a node; None where it does.
        requires: What it asks of the device for every node.
        speed: What its kernels reach. An op lists those first that reach more.
        work: What it does for a node, where the variants of an op differ in that: then the one of
            the least cost is taken. To which of them that is no size may matter that changes from
            call to call, or a new shape would compile a kernel.
    """

    name: str
    emit: Emit
    reject_reason: RejectReason = always
    requires: Requires = ANY
    speed: Efficiency = FAST
    work: Callable[[Node], WorkEstimate] = work_of

    def rejected(self, node: Node, caps: DeviceCaps) -> str | None:
        """Why the variant does not hold for node and device; None where it does."""
        lacking = None if self.requires is ANY else self.requires.missing(caps)
        return lacking or self.reject_reason(node, caps)

    def cost(self, node: Node, caps: DeviceCaps) -> float:
        """The seconds predicted for a node whose shapes are all known."""
        return seconds(self.work(node), self.speed, caps)


def by_cost(
    variants: Sequence[Variant], node: Node, caps: DeviceCaps
) -> Iterator[tuple[Variant, str | None]]:
    """Variants in the order in which they are tried, each with why it does not hold, if so.

    Where all do the same work that is the order of the list; else those that hold come last, by
    cost. Equal costs keep the list's order.
    """
    judged = ((v, v.rejected(node, caps)) for v in variants)
    if all(v.work is work_of for v in variants):
        yield from judged
        return
    found = list(judged)
    yield from (pair for pair in found if pair[1] is not None)
    fitting = [v for v, reason in found if reason is None]
    if len(fitting) > 1:
        fitting.sort(key=lambda v: v.cost(node, caps))
    yield from ((v, None) for v in fitting)


def runs_as(name: str, variants: Sequence[Variant], node: Node, caps: DeviceCaps) -> None:
    """Checks that a node runs as the variant of a name.

    Raises:
        UnsupportedError: It is not.
    """
    for variant, reason in by_cost(variants, node, caps):
        if variant.name == name and reason is None:
            return
        if variant.name == name or reason is None:
            raise UnsupportedError(f"{node} does not run as {name}: {reason or variant.name}")
    raise UnsupportedError(f"{node} has no variant {name}")


def reject_but_float32(node: Node, caps: DeviceCaps) -> str | None:
    """Why a kernel of vectors of float32 does not hold for input 0."""
    return None if node.arg(0).dtype is DType.FLOAT32 else "for float32"


def reject_in_float32(node: Node, caps: DeviceCaps) -> str | None:
    """Why a kernel that computes in float32 does not hold for input 0, however it lies in memory.

    Which floats its op reads is what `Op.supported_storages` says.
    """
    dtype = node.arg(0).dtype
    return None if dtype.compute == "float" else f"no kernel for {dtype}"


def reject_float64(node: Node, caps: DeviceCaps) -> str | None:
    """Why a kernel for all floats does not hold: float64 on a device without it."""
    dtypes = {v.dtype for v in (*node.inputs, *node.outputs) if v is not None}
    return lacks_float64(dtypes, caps)


def lacks_float64(dtypes: Iterable[DType], caps: DeviceCaps) -> str | None:
    """Why a device cannot compute in dtypes of which one is float64; None where it can."""
    return FLOAT64.missing(caps) if DType.FLOAT64 in dtypes else None
