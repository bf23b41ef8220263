"""Parts that lie where they belong: values in the memory of others, so that nothing copies them.

Which op has parts only the op knows (`Op.subviews`), and which launch can go through a tensor whose
rows lie apart only the launch (`RowPitchSupport`). Here the two meet: a part is placed where every
launch that touches it can do with the place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.ir.graph import Graph, Node, Value
from clrt.kernels.parts import Subview
from clrt.kernels.spec import VEC8, BufferArg, Launch, i32
from clrt.kernels.variant import Lowering
from clrt.ops.base import Op
from clrt.plan.fuse_launches import by_edges
from clrt.plan.lifetimes import is_view
from clrt.plan.lower import lower
from clrt.plan.steps import DeviceStep, HostStep, PlanStep, Region

# Of a core's second cache. Where the whole stays in the caches, gaps between rows cost nothing;
# from memory, prefetchers bring what lies in the gaps, too: a pool that reads 32 of 96 channels
# took 840 us in place of 220 (docs/kernels/convolution.md).
_CACHE_BYTES = 1 << 20
# The most values that may lie in one that is placed, or hold it: all are looked at with each part.
_MOST_NESTED = 32


@dataclass(frozen=True)
class SubviewNote:
    """What became of a part of a node.

    Attributes:
        reason: Why the node copies it; "" where it lies in the whole.
    """

    node: Node
    value: Value
    whole: Value
    reason: str


@dataclass(frozen=True)
class SubviewPlacement:
    """A plan's steps once parts are placed.

    Attributes:
        inside: Of each value that lies in another, that other; views are looked through.
        notes: Of all parts of all nodes.
    """

    steps: tuple[PlanStep, ...]
    inside: Mapping[Value, Value]
    notes: tuple[SubviewNote, ...]


def place_parts(graph: Graph, steps: Sequence[PlanStep], ctx: Lowering) -> SubviewPlacement:
    """Places as many parts of the nodes as launches can do with.

    Outputs come first, then the inputs, node by node as the edges of the graph lead: a value that
    two nodes want to have goes to the first.
    """
    copying = {s.node for s in steps if isinstance(s, DeviceStep) and not isinstance(s, Region)}
    parts = {n: found for n in copying if (found := _op(n).subviews(n))}
    if not parts:
        return SubviewPlacement(tuple(steps), {}, ())
    search = _PartSearch(graph, list(steps), ctx)
    owners = [n for n in by_edges(graph) if n in parts]
    for outputs in (True, False):
        for node in owners:
            values = Counter(search.base(p.value) for p in parts[node])
            for number, part in enumerate(parts[node]):
                if (part.value.producer is node) is outputs:
                    search.visit(node, number, part, values[search.base(part.value)] == 1)
    return search.result()


@dataclass(frozen=True)
class _PartPlace:
    """Where the elements of a value lie in another: from `offset` on, rows `pitch` apart."""

    offset: int
    width: int
    pitch: int

    def within(self, outer: _PartPlace, elems: int, outer_elems: int) -> _PartPlace | None:
        """The place of a value in what holds the one that holds it; None where that is no rows.

        Args:
            elems: Of the value.
            outer_elems: Of what holds it.
        """
        at, wide, step = self.offset, outer.width, outer.pitch
        if wide == step or outer_elems == wide:
            return replace(self, offset=outer.offset + at)
        start = outer.offset + at // wide * step + at % wide
        if self.pitch % wide == 0 and at % wide + self.width <= wide:
            return _PartPlace(start, self.width, self.pitch // wide * step)
        if self.width == self.pitch or elems == self.width:
            if at % wide + elems <= wide:
                return _PartPlace(start, elems, elems)
            if at % wide == 0 and elems % wide == 0:
                return _PartPlace(start, wide, step)
        return None


@dataclass
class _PartSearch:
    """The parts so far.

    Attributes:
        steps: As they are with these.
        inside: By value that is no view, what it is a part of.
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
        """The value that it is a view of, or itself."""
        while value in self._views:
            value = self._views[value]
        return value

    def visit(self, node: Node, number: int, part: Subview, alone: bool) -> None:
        """Places a part, if that is possible.

        Args:
            alone: Whether no other part of the node is the same value.
        """
        if not prod(part.value.dims):
            return
        reason = self._reject_reason(part) or self._try(node, number, part, alone)
        self.notes.append(SubviewNote(node, part.value, part.parent, reason or ""))

    def _reject_reason(self, part: Subview) -> str | None:
        """Why a part cannot lie elsewhere, whatever launches can do."""
        value = self.base(part.value)
        if value.is_constant or self.base(part.parent).is_constant:
            return f"%{(value if value.is_constant else part.parent).name} is a constant"
        if value.producer is None:
            return f"%{value.name} is an input of the model"
        if value in self._outputs:
            return f"%{value.name} is an output of the model"
        if value in self.inside:
            return f"%{value.name} lies in %{self.inside[value].parent.name}"
        if any(isinstance(self.steps[i], HostStep) for i in self._uses.get(value, ())):
            return f"the host works on %{value.name}"
        return None

    def _try(self, node: Node, number: int, part: Subview, alone: bool) -> str | None:
        """Places a part; or says why not, and leaves everything as it was."""
        index, value, whole = self._step_of[node], self.base(part.value), self.base(part.parent)
        held = list(islice(self._within(value), _MOST_NESTED))
        holders = list(islice(self._chain(whole), _MOST_NESTED))
        if len(held) + len(holders) > _MOST_NESTED:
            return f"%{value.name} would be nested with more than {_MOST_NESTED} others"
        # A step whose part is placed does not touch it, unless that stands there twice.
        own = index if alone else None
        is_large = holders[-1].nbytes > _CACHE_BYTES * self.ctx.caps.compute_units
        if is_large:
            copied_bytes = self._moved_bytes([value, *held], own) + self._copied_bytes(node, part)
            copied_bytes += value.nbytes if alone else 0
        step, outdated = self.steps[index], index in self._outdated
        self._placed.setdefault(node, set()).add(number)
        self._outdated.add(index)
        self.inside[value] = part
        reason = next(self._misfits([value, *held], own), None)
        if reason is None and is_large and self._moved_bytes([value, *held], own) > copied_bytes:
            reason = f"%{value.name} in rows that are apart would move more than a copy"
        if reason is None:
            self._held.setdefault(whole, []).append(value)
            return None
        del self.inside[value]
        self._placed[node].remove(number)
        self.steps[index] = step
        (self._outdated.add if outdated else self._outdated.discard)(index)
        return reason

    def _step(self, index: int) -> PlanStep:
        """A step, which copies only those parts that are not placed."""
        if index in self._outdated:
            self._outdated.remove(index)
            before = self.steps[index]
            step = lower(before.node, replace(self.ctx, aliased_subviews=self._placed))
            assert isinstance(step, DeviceStep) and isinstance(before, DeviceStep)
            # Parts may be placed at some sizes only: the kernels are the same at all of them.
            specs = (*before.also, *(x.kernel for x in before.launches))
            self.steps[index] = replace(step, also=tuple(dict.fromkeys(specs)))
        return self.steps[index]

    def _copied_bytes(self, node: Node, part: Subview) -> int:
        """What a copy moves of the whole; the part is a tensor of its launch."""
        moved = part.value.nbytes
        return moved * part.pitch // part.width if part.value.producer is node else moved

    def _moved_bytes(self, values: Sequence[Value], own: int | None) -> int:
        """What launches move of values, gaps between rows with them, but for the step `own`."""
        moved = 0
        for value in values:
            place = self._place_of(value) if value in self.inside else None
            for _, _, arg in self._launches(value, own):
                fitted = None if place is None else _fit(arg, place, value)
                apart = place if isinstance(fitted, _Fit) and fitted.is_apart else None
                moved += (
                    value.nbytes if apart is None else value.nbytes * apart.pitch // apart.width
                )
        return moved

    def _within(self, value: Value) -> Iterator[Value]:
        """What lies in a value, at whatever remove."""
        waiting = [iter(self._held.get(value, ()))]
        while waiting:
            held = next(waiting[-1], None)
            if held is None:
                waiting.pop()
            else:
                yield held
                waiting.append(iter(self._held.get(held, ())))

    def _misfits(self, values: Sequence[Value], own: int | None) -> Iterator[str]:
        """What cannot do with the places of values, of which all lie in the first."""
        for held in values:
            place = self._place_of(held)
            if place is None:
                yield f"%{held.name} would lie in %{values[0].name} in pieces"
                continue
            for step, launch, arg in self._launches(held, own):
                fitted = _fit(arg, place, held)
                if isinstance(fitted, str):
                    yield f"{launch.kernel.entry} at '{step.node.name}' {fitted} %{held.name}"

    def _chain(self, value: Value) -> Iterator[Value]:
        """A value, what it lies in, what that lies in, and so on."""
        yield value
        while value in self.inside:
            value = self.base(self.inside[value].parent)
            yield value

    def _place_of(self, value: Value) -> _PartPlace | None:
        """Where a value lies in what holds it at last."""
        part = self.inside[value]
        place: _PartPlace | None = _PartPlace(part.offset, part.width, part.pitch)
        holder = self.base(part.parent)
        while holder in self.inside and place is not None:
            outer = self.inside[holder]
            held = _PartPlace(outer.offset, outer.width, outer.pitch)
            place = place.within(held, prod(value.dims), prod(holder.dims))
            holder = self.base(outer.parent)
        return place

    def _launches(
        self, value: Value, own: int | None
    ) -> Iterator[tuple[DeviceStep, Launch, BufferArg]]:
        """The arguments by which steps work on a value or a view of it, but for the step `own`."""
        for index in self._uses.get(value, ()):
            if index == own:
                continue
            step = self._step(index)
            assert isinstance(step, DeviceStep)
            for launch in step.launches:
                for arg in launch.args:
                    if isinstance(arg, BufferArg) and self._is_at(arg, value):
                        yield step, launch, arg

    def _is_at(self, arg: BufferArg, value: Value) -> bool:
        buffer = arg.buffer
        return isinstance(buffer, Value) and arg.elems != 0 and self.base(buffer) is value

    def result(self) -> SubviewPlacement:
        """The steps, with arguments that lead to where parts lie."""
        places = {v: self._place_of(v) for v in self.inside}
        moved = {i for v in places for i in self._uses.get(v, ())}
        steps = [
            self._moved(s, places) if i in moved and isinstance(s, DeviceStep) else s
            for i, s in enumerate(map(self._step, range(len(self.steps))))
        ]
        inside = {v: self.base(p.parent) for v, p in self.inside.items()}
        return SubviewPlacement(tuple(steps), inside, tuple(self.notes))

    def _moved(self, step: DeviceStep, places: Mapping[Value, _PartPlace | None]) -> DeviceStep:
        launches = tuple(self._moved_launch(x, places) for x in step.launches)
        return replace(step, launches=launches)

    def _moved_launch(self, launch: Launch, places: Mapping[Value, _PartPlace | None]) -> Launch:
        args: list[Any] = list(launch.args)
        names = [p.name for p in launch.kernel.signature.params]
        for index, arg in enumerate(launch.args):
            if not isinstance(arg, BufferArg) or not isinstance(arg.buffer, Value):
                continue
            value = self.base(arg.buffer)
            place = places.get(value)
            if place is None or arg.elems == 0:
                continue
            fitted = _fit(arg, place, value)
            assert isinstance(fitted, _Fit)
            args[index] = replace(arg, offset=fitted.offset)
            for name in arg.rows.strides if arg.rows and fitted.is_apart else ():
                number = names.index(name)
                args[number] = i32(_plain(args[number]) // place.width * place.pitch)
        return replace(launch, args=tuple(args))


@dataclass(frozen=True)
class _Fit:
    """How an argument leads to a place: its offset, and whether its strides change."""

    offset: int
    is_apart: bool


def _fit(arg: BufferArg, place: _PartPlace, value: Value) -> _Fit | str:
    """How an argument leads to where a value lies, or what the launch cannot do with."""
    wide, step, rows, at = place.width, place.pitch, arg.rows, arg.offset
    if (
        rows is not None
        and rows.requires_vec8
        and (place.offset % VEC8 or (wide != step and step % VEC8))
    ):
        return "needs aligned"
    if wide != step and rows is not None and rows.width == wide:
        return _Fit(place.offset + at // wide * step + at % wide, True)
    if wide != step and prod(value.dims) != wide:
        return "needs as one block" if rows is None else f"goes by rows of {rows.width} through"
    if rows is None and place.offset * value.dtype.itemsize % ALIGNMENT_BYTES:
        return "needs aligned"
    return _Fit(place.offset + at, False)


def _plain(number: Any) -> int:
    """A number of a launch, which may be one of NumPy's of 32 bits, to compute with."""
    return int(number) if hasattr(number, "dtype") else number


def _touched(step: PlanStep) -> Iterator[Value]:
    """The values that a step works on."""
    if isinstance(step, HostStep):
        yield from (v for v in (*step.node.inputs, *step.node.outputs) if v is not None)
    elif isinstance(step, DeviceStep):
        yield from (b for x in step.launches for b in x.buffers if isinstance(b, Value))


def _op(node: Node) -> Op:
    assert isinstance(node.op, Op)
    return node.op
