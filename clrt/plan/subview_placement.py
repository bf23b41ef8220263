"""Aliases subviews, such as inputs of Concat, to their parents' memory to avoid copies.

An op declares its subviews (`Op.subviews`); a launch declares whether it can access strided rows
(`RowPitchSupport`). A subview is aliased if every launch that accesses it supports the resulting
offset and row stride. Copied are constants, inputs and outputs of the model, values that the host
accesses, and large subviews whose strided rows would move more bytes than a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from math import prod
from typing import Any, ClassVar

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.spec import VEC8, BufferArg, Launch, i32
from clrt.kernels.subview import Subview
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.variant import Lowering
from clrt.ops.base import Op
from clrt.plan.fuse_launches import by_edges
from clrt.plan.lifetimes import is_view
from clrt.plan.lower import lower
from clrt.plan.steps import DeviceStep, HostStep, PlanStep, Region
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass

# Maximum number of subviews nested in a subview plus its parents, which bounds the time: each
# attempt to alias a subview checks them all.
_MAX_NESTED = 32


class SubviewThresholds(Thresholds):
    """Threshold of the choice between a subview that aliases its parent, and a copy."""

    cache_kib: int = tunable(
        1024,
        "KiB per core",
        "Size of the second-level cache. If the parent stays in it, gaps between rows cost "
        "nothing; from memory, prefetchers load the gaps too: a pooling that reads 32 of 96 "
        "channels took 840 us instead of 220 (docs/kernels/convolution.md).",
    )

    group: ClassVar = "subviews"


@dataclass(frozen=True)
class SubviewNote:
    """Outcome of placing one subview.

    Attributes:
        node: The node that declares the subview, such as a Concat or Split.
        value: The subview.
        parent: The parent of the subview.
        reason: Why the node copies the subview; "" if it aliases its parent.
    """

    node: Node
    value: Value
    parent: Value
    reason: str


@dataclass(frozen=True)
class SubviewPlacement:
    """Result of placing subviews.

    Attributes:
        steps: Steps of the plan, with copies of aliased subviews removed and offsets adjusted.
        inside: Maps each aliased subview to its parent, with views resolved to their base value.
        notes: Outcome for each subview of each node, except empty subviews.
    """

    steps: tuple[PlanStep, ...]
    inside: Mapping[Value, Value]
    notes: tuple[SubviewNote, ...]


def place_subviews(graph: Graph, steps: Sequence[PlanStep], ctx: Lowering) -> SubviewPlacement:
    """Aliases subviews to their parents' memory, as far as the launches support it.

    Nodes are visited in topological order: first for subviews that are outputs of their node, as of
    Split, then for subviews that are inputs, as of Concat. If two nodes declare a value as a
    subview, the first visited node aliases it.
    """
    nodes = {s.node for s in steps if isinstance(s, DeviceStep) and not isinstance(s, Region)}
    subviews_of = {n: subviews for n in nodes if (subviews := _op(n).subviews(n))}
    if not subviews_of:
        return SubviewPlacement(tuple(steps), {}, ())
    search = _SubviewSearch(graph, list(steps), ctx)
    ordered = [n for n in by_edges(graph) if n in subviews_of]
    for outputs in (True, False):
        for node in ordered:
            yield_point()
            values = Counter(search.base(p.value) for p in subviews_of[node])
            for number, subview in enumerate(subviews_of[node]):
                if (subview.value.producer is node) is outputs:
                    search.visit(node, number, subview, values[search.base(subview.value)] == 1)
    return search.result()


@dataclass(frozen=True)
class _SubviewLocation:
    """Location of a subview in its parent: evenly spaced rows.

    Attributes:
        offset: Offset of the first row in the parent, in elements.
        width: Row width in elements.
        pitch: Distance between the starts of rows in the parent, in elements.
    """

    offset: int
    width: int
    pitch: int

    def within(
        self, outer: _SubviewLocation, elems: int, outer_elems: int
    ) -> _SubviewLocation | None:
        """Composes this location with the location of the parent in a parent of its own.

        Args:
            outer: Location of the parent in its parent.
            elems: Number of elements of the subview.
            outer_elems: Number of elements of the parent.

        Returns:
            Location in the parent's parent; None if the elements are not evenly spaced rows there.
        """
        offset, width, pitch = self.offset, outer.width, outer.pitch
        if width == pitch or outer_elems == width:
            return replace(self, offset=outer.offset + offset)
        start = outer.offset + offset // width * pitch + offset % width
        if self.pitch % width == 0 and offset % width + self.width <= width:
            return _SubviewLocation(start, self.width, self.pitch // width * pitch)
        if self.width == self.pitch or elems == self.width:
            if offset % width + elems <= width:
                return _SubviewLocation(start, elems, elems)
            if offset % width == 0 and elems % width == 0:
                return _SubviewLocation(start, width, pitch)
        return None


@dataclass
class _SubviewSearch:
    """Greedy placement of subviews, one at a time.

    Attributes:
        graph: Graph of the plan.
        steps: Steps of the plan. Steps whose index is in `_outdated` must be lowered again before
            use.
        ctx: Lowering context, to lower steps again.
        inside: Aliased subviews so far, by value; a view of a subview is resolved to the subview.
        notes: Outcomes so far, one per visited subview that has elements.
    """

    graph: Graph
    steps: list[PlanStep]
    ctx: Lowering
    inside: dict[Value, Subview] = field(default_factory=dict)
    notes: list[SubviewNote] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._views = {n.output: n.arg(0) for n in self.graph.nodes if is_view(n)}
        self._outputs = {self.base(v) for v in self.graph.outputs}
        self._step_of = {n: i for i, s in enumerate(self.steps) for n in s.nodes}
        self._placed: dict[Node, set[int]] = {}
        self._outdated: set[int] = set()
        self._held: dict[Value, list[Value]] = {}
        self._uses: dict[Value, dict[int, None]] = {}
        for index, step in enumerate(self.steps):
            for value in _touched(step):
                self._uses.setdefault(self.base(value), {})[index] = None

    def base(self, value: Value) -> Value:
        """Returns the value at the start of a chain of views; `value` itself if it is no view."""
        while value in self._views:
            value = self._views[value]
        return value

    def visit(self, node: Node, number: int, part: Subview, alone: bool) -> None:
        """Aliases a subview to its parent if possible, and notes the outcome.

        Does nothing for an empty subview.

        Args:
            node: The node that declares the subview.
            number: Index of the subview among the node's subviews.
            part: The subview.
            alone: Whether the node has no other subview of the same value, as Concat(x, x) has.
        """
        if not prod(part.value.dims):
            return
        reason = self._reject_reason(part) or self._try(node, number, part, alone)
        self.notes.append(SubviewNote(node, part.value, part.parent, reason or ""))

    def _reject_reason(self, part: Subview) -> str | None:
        """Returns why a subview cannot be aliased, whatever its launches; None if it may be."""
        value = self.base(part.value)
        if value.is_constant or self.base(part.parent).is_constant:
            return f"%{(value if value.is_constant else part.parent).name} is a constant"
        if value.producer is None:
            return f"%{value.name} is an input of the model"
        if value in self._outputs:
            return f"%{value.name} is an output of the model"
        if value in self.inside:
            return f"%{value.name} already aliases %{self.inside[value].parent.name}"
        if any(isinstance(self.steps[i], HostStep) for i in self._uses.get(value, ())):
            return f"the host accesses %{value.name}"
        return None

    def _try(self, node: Node, number: int, part: Subview, alone: bool) -> str | None:
        """Tries to alias a subview to its parent.

        Args:
            node: The node that declares the subview.
            number: Index of the subview among the node's subviews.
            part: The subview.
            alone: Whether the node has no other subview of the same value, as Concat(x, x) has.

        Returns:
            None on success; else why the subview cannot be aliased, with the state restored.
        """
        index, value, whole = self._step_of[node], self.base(part.value), self.base(part.parent)
        inner = list(islice(self._within(value), _MAX_NESTED))
        parents = list(islice(self._chain(whole), _MAX_NESTED))
        if len(inner) + len(parents) > _MAX_NESTED:
            return f"%{value.name} would be nested with more than {_MAX_NESTED} others"
        # If the subview is aliased, its copy is omitted: leave out the node's step, unless the
        # value occurs in it twice.
        skipped = index if alone else None
        cache_kib = self.ctx.thresholds(SubviewThresholds).cache_kib
        is_large = parents[-1].nbytes > (cache_kib << 10) * self.ctx.caps.compute_units
        if is_large:
            copied_bytes = self._moved_bytes([value, *inner], skipped) + self._copied_bytes(
                node, part
            )
            copied_bytes += value.nbytes if alone else 0
        step, outdated = self.steps[index], index in self._outdated
        self._placed.setdefault(node, set()).add(number)
        self._outdated.add(index)
        self.inside[value] = part
        reason = next(self._misfits([value, *inner], skipped), None)
        if (
            reason is None
            and is_large
            and self._moved_bytes([value, *inner], skipped) > copied_bytes
        ):
            reason = f"%{value.name} as strided rows would move more than a copy"
        if reason is None:
            self._held.setdefault(whole, []).append(value)
            return None
        del self.inside[value]
        self._placed[node].remove(number)
        self.steps[index] = step
        (self._outdated.add if outdated else self._outdated.discard)(index)
        return reason

    def _step(self, index: int) -> PlanStep:
        """Returns a step of the plan by index.

        If other subviews of the step's node are aliased by now, the step is lowered again, without
        copies of these subviews.
        """
        if index in self._outdated:
            self._outdated.remove(index)
            old_step = self.steps[index]
            step = lower(old_step.node, replace(self.ctx, aliased_subviews=self._placed))
            assert isinstance(step, DeviceStep) and isinstance(old_step, DeviceStep)
            # Other sizes may need the copies: their kernels are kept, to be compiled in advance.
            specs = (*old_step.precompiled_kernels, *(x.kernel for x in old_step.launches))
            self.steps[index] = replace(step, precompiled_kernels=tuple(dict.fromkeys(specs)))
        return self.steps[index]

    def _copied_bytes(self, node: Node, part: Subview) -> int:
        """Returns the bytes of the parent that a copy of a subview reads or writes.

        Bytes of the copied subview itself are not counted. If `node` computes the subview, as Split
        does, the gaps between its rows in the parent are counted too.
        """
        size = part.value.nbytes
        return size * part.pitch // part.width if part.value.producer is node else size

    def _moved_bytes(self, values: Sequence[Value], skipped: int | None) -> int:
        """Returns the bytes that launches move for values, including gaps between strided rows.

        Args:
            values: The values.
            skipped: Index of a step whose launches are not counted; None to count all.
        """
        moved = 0
        for value in values:
            place = self._place_of(value) if value in self.inside else None
            for _, _, arg in self._launches(value, skipped):
                fit = None if place is None else _fit(arg, place, value)
                strided = place if isinstance(fit, _Fit) and fit.is_apart else None
                moved += (
                    value.nbytes
                    if strided is None
                    else value.nbytes * strided.pitch // strided.width
                )
        return moved

    def _within(self, value: Value) -> Iterator[Value]:
        """Yields the subviews aliased to a value, directly or through other subviews."""
        stack = [iter(self._held.get(value, ()))]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                yield inner
                stack.append(iter(self._held.get(inner, ())))

    def _misfits(self, values: Sequence[Value], skipped: int | None) -> Iterator[str]:
        """Yields reasons why launches cannot access values as rows of their outermost parent.

        Args:
            values: A subview that is tentatively aliased, then the subviews aliased to it.
            skipped: Index of a step whose launches are ignored; None to check all.
        """
        for inner in values:
            place = self._place_of(inner)
            if place is None:
                yield f"%{inner.name} would not be evenly spaced rows of %{values[0].name}"
                continue
            for step, launch, arg in self._launches(inner, skipped):
                fitted = _fit(arg, place, inner)
                if isinstance(fitted, str):
                    yield f"{launch.kernel.entry} at '{step.node.name}' {fitted} %{inner.name}"

    def _chain(self, value: Value) -> Iterator[Value]:
        """Yields a value, the parent it is aliased to, the parent's parent, and so on."""
        yield value
        while value in self.inside:
            value = self.base(self.inside[value].parent)
            yield value

    def _place_of(self, value: Value) -> _SubviewLocation | None:
        """Returns the location of an aliased subview in its outermost parent.

        None if its elements are not evenly spaced rows there.
        """
        part = self.inside[value]
        place: _SubviewLocation | None = _SubviewLocation(part.offset, part.width, part.pitch)
        parent_value = self.base(part.parent)
        while parent_value in self.inside and place is not None:
            outer = self.inside[parent_value]
            outer_location = _SubviewLocation(outer.offset, outer.width, outer.pitch)
            place = place.within(outer_location, prod(value.dims), prod(parent_value.dims))
            parent_value = self.base(outer.parent)
        return place

    def _launches(
        self, value: Value, skipped: int | None
    ) -> Iterator[tuple[DeviceStep, Launch, BufferArg]]:
        """Yields each launch argument that accesses a value or a view of it, with step and launch.

        Args:
            skipped: Index of a step whose launches are left out; None to yield all.
        """
        for index in self._uses.get(value, ()):
            if index == skipped:
                continue
            step = self._step(index)
            assert isinstance(step, DeviceStep)
            for launch in step.launches:
                for arg in launch.args:
                    if isinstance(arg, BufferArg) and self._accesses(arg, value):
                        yield step, launch, arg

    def _accesses(self, arg: BufferArg, value: Value) -> bool:
        """Returns whether a launch argument accesses elements of a value or of a view of it."""
        buffer = arg.buffer
        return isinstance(buffer, Value) and arg.elems != 0 and self.base(buffer) is value

    def result(self) -> SubviewPlacement:
        """Returns the placement found so far, with offsets and strides of launches adjusted."""
        places = {v: self._place_of(v) for v in self.inside}
        moved = {i for v in places for i in self._uses.get(v, ())}
        steps = [
            self._moved(s, places) if i in moved and isinstance(s, DeviceStep) else s
            for i, s in enumerate(map(self._step, range(len(self.steps))))
        ]
        inside = {v: self.base(p.parent) for v, p in self.inside.items()}
        return SubviewPlacement(tuple(steps), inside, tuple(self.notes))

    def _moved(
        self, step: DeviceStep, places: Mapping[Value, _SubviewLocation | None]
    ) -> DeviceStep:
        """Returns a step whose launches access aliased subviews in their parents' memory.

        Args:
            step: The step.
            places: Location in the outermost parent of each aliased subview.
        """
        launches = tuple(self._moved_launch(x, places) for x in step.launches)
        return replace(step, launches=launches)

    def _moved_launch(
        self, launch: Launch, places: Mapping[Value, _SubviewLocation | None]
    ) -> Launch:
        args: list[Any] = list(launch.args)
        names = [p.name for p in launch.kernel.signature.params]
        for index, arg in enumerate(launch.args):
            if not isinstance(arg, BufferArg) or not isinstance(arg.buffer, Value):
                continue
            value = self.base(arg.buffer)
            place = places.get(value)
            if place is None or arg.elems == 0:
                continue
            fit = _fit(arg, place, value)
            assert isinstance(fit, _Fit)
            args[index] = replace(arg, offset=fit.offset)
            for name in arg.rows.strides if arg.rows and fit.is_apart else ():
                param = names.index(name)
                args[param] = i32(_plain(args[param]) // place.width * place.pitch)
        return replace(launch, args=tuple(args))


@dataclass(frozen=True)
class _Fit:
    """Adjustment of a launch argument whose value is an aliased subview.

    Attributes:
        offset: Offset in the outermost parent, in elements.
        is_apart: Whether rows are not contiguous, so that stride arguments change too.
    """

    offset: int
    is_apart: bool


def _fit(arg: BufferArg, place: _SubviewLocation, value: Value) -> _Fit | str:
    """Adjusts a launch argument to the location of its value in the outermost parent.

    Args:
        arg: The argument.
        place: Location of `value`.
        value: The aliased subview.

    Returns:
        The adjustment. If the launch does not support it, a verb phrase for the reject reason, such
        as "needs aligned".
    """
    width, pitch, rows, offset = place.width, place.pitch, arg.rows, arg.offset
    if (
        rows is not None
        and rows.requires_vec8
        and (place.offset % VEC8 or (width != pitch and pitch % VEC8))
    ):
        return "needs aligned"
    if width != pitch and rows is not None and rows.width == width:
        return _Fit(place.offset + offset // width * pitch + offset % width, True)
    if width != pitch and prod(value.dims) != width:
        return "needs contiguous" if rows is None else f"accesses rows of {rows.width} in"
    if rows is None and place.offset * value.dtype.itemsize % ALIGNMENT_BYTES:
        return "needs aligned"
    return _Fit(place.offset + offset, False)


def _plain(number: Any) -> int:
    """Converts a 32-bit NumPy integer to an int; returns traced numbers unchanged."""
    return int(number) if hasattr(number, "dtype") else number


def _touched(step: PlanStep) -> Iterator[Value]:
    """Yields the values that a step reads or writes."""
    if isinstance(step, HostStep):
        yield from (v for v in (*step.node.inputs, *step.node.outputs) if v is not None)
    elif isinstance(step, DeviceStep):
        yield from (b for x in step.launches for b in x.buffers if isinstance(b, Value))


def _op(node: Node) -> Op:
    return node.op_as(Op)
