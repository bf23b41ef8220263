"""Plans for many sizes: planned once with traced sizes, then evaluated for those of a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np

from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, DerivedElements
from clrt.ir.traced import Evaluation, Trace, is_traced
from clrt.kernels.spec import ALIGNMENT_BYTES, Buffer, BufferArg, Launch, Packed, Status
from clrt.plan.arena import INDEXED_BYTES, Arena, Interval, Place, place
from clrt.plan.fuse_launches import MissedRegion
from clrt.plan.plan import Plan, tenants
from clrt.plan.replay import Replay
from clrt.plan.restack import Stack
from clrt.plan.specialise import specialise_to_break
from clrt.plan.steps import DeviceStep, Placed, PlanStep

_LOG = logging.getLogger(__name__)
# By how much of its live bytes an arena may be larger than the one that a search found, before
# there is a search anew.
_MORE_WASTE = 1.1

_Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


def trace_plan(
    graph: Graph,
    bindings: Bindings,
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, Array],
    make: Callable[[Graph], Plan],
) -> PlanTemplate | None:
    """A plan for given sizes from which those for others follow.

    Args:
        bindings: A number for each symbol of the input shapes.
        shapes: Shapes of the inputs for which the model gives none.
        known: Elements of inputs, by name.
        make: Plans a specialised graph.

    Returns:
        None where there is none: a graph break, a step on the host, a weight whose layout
        depends on sizes, an error.
    """
    if not bindings or any(not v.type.bind(bindings).is_static for v in graph.inputs):
        return None
    trace = Trace(bindings)
    try:
        first, graph_break = specialise_to_break(graph, trace.start(), shapes, known)
        if graph_break is not None:
            return None
        plan = make(first)
        return PlanTemplate(trace, plan) if _follows(plan) else None
    except Exception:
        # What is wrong with the sizes is said when they are planned without a trace.
        _LOG.debug("no template of %s", graph.name, exc_info=True)
        return None


def _follows(plan: Plan) -> bool:
    """Whether plans for other sizes can be made of a traced plan."""
    if plan.host_steps:
        return False
    buffers = (b for x in _launches(plan) for b in x.buffers)
    packed = (b for b in buffers if isinstance(b, Packed))
    return not any(is_traced(b.nbytes) or _varies(b.value) for b in packed)


def _launches(plan: Plan) -> list[Launch]:
    return [x for s in plan.steps if isinstance(s, DeviceStep) for x in s.launches]


def _varies(value: Value) -> bool:
    """Whether the elements of a constant depend on the sizes."""
    known = value.type.known
    if isinstance(known, np.ndarray) and known.dtype == object:
        return any(is_traced(x) for x in known.flat)
    return isinstance(known, DerivedElements)


@dataclass(frozen=True)
class Words:
    """The arguments of launches that may differ from size to size, all of 32 bits.

    An argument is the number of a formula, and for the offset of a buffer in the arena the elements
    in front of the buffer besides.

    Attributes:
        launches: Of each word the launch, counted through the plan.
        arguments: Its index among the kernel's arguments.
        formulas: The formula.
        tenants: The tenant of the arena whose place it depends on; past the last for none.
        itemsizes: Of that buffer's elements.
    """

    launches: _Ints
    arguments: _Ints
    formulas: _Ints
    tenants: _Ints
    itemsizes: _Ints

    def at(self, numbers: _Ints, offsets: _Ints) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The words.

        Args:
            numbers: By formula.
            offsets: In bytes, by tenant, and a zero.
        """
        words = numbers[self.formulas] + offsets[self.tenants] // self.itemsizes
        return words.astype(np.int32)


class PlanTemplate:
    """What the plans of one graph have in common, and how they differ.

    Attributes:
        trace: What its numbers are formulas of.
        plan: The one with traced numbers. To compute with these adds to the trace, so nobody but
            this module does.
        launches: Its launches, in order.
        owners: The tenants of the arena.
        words: What differs in their arguments.
        grids: The launches whose global size may differ.
        derived: Where kernels take constants that the host computes of the sizes: launch, argument,
            and the constant.
    """

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self.plan = plan
        self.launches = tuple(_launches(plan))
        self.trace = trace
        found = tenants(plan)
        self.owners = tuple(owner for owner, _ in found)
        self._tenants = {owner: i for i, owner in enumerate(self.owners)}
        self._spans = tuple((i.first, i.last) for _, i in found)
        self._sizes = np.array([trace.formula(o.nbytes) for o in self.owners], np.int64)
        intervals = [i for _, i in found]
        places = tuple(plan.places[owner] for owner in self.owners)
        self._stack = Stack.of(intervals, Arena(places, plan.arena.slab_bytes))
        self._waste = plan.arena.nbytes / max(plan.live_bytes, 1)
        self._events = _Events(self._spans)
        self.words, self.derived = self._find_words()
        varying = [i for i, x in enumerate(self.launches) if any(map(is_traced, x.global_size))]
        self.grids = tuple(varying)
        self.grid_formulas = [
            tuple(map(trace.formula, self.launches[i].global_size)) for i in varying
        ]
        self.flop_formulas = np.array([trace.formula(x.flops) for x in self.launches], np.int64)
        for launch in self.launches:  # fixed per kernel, so that no size compiles
            tuple(int(n) for n in launch.local_size or ())

    def at(self, bindings: Bindings, max_slab_bytes: int) -> SizedPlan | None:
        """The plan at other sizes; None where it has to be planned anew.

        Args:
            max_slab_bytes: The most that the device allocates at once.
        """
        evaluation = self.trace.evaluate(bindings)
        if evaluation is None:
            return None
        try:
            numbers = np.array(evaluation.numbers, np.int64)
        except OverflowError:
            return None
        nbytes = numbers[self._sizes]
        aligned = np.maximum(-(-nbytes // ALIGNMENT_BYTES), 1) * ALIGNMENT_BYTES
        live = self._events.peak(aligned)
        arena = self._arena(nbytes, aligned, live, max_slab_bytes)
        if arena is None:
            return None
        return SizedPlan(self, evaluation, numbers, arena, live)

    def _arena(self, nbytes: _Ints, aligned: _Ints, live: int, max_slab_bytes: int) -> Arena | None:
        if not len(nbytes):
            return Arena((), ())
        if aligned.max() > max_slab_bytes:
            return None
        arena = self._stack.arena(nbytes.tolist())
        largest = min(max_slab_bytes, INDEXED_BYTES)
        fits = all(n <= largest for n in arena.slab_bytes)
        if fits and arena.nbytes <= _MORE_WASTE * self._waste * live:
            return arena
        sized = zip(nbytes.tolist(), self._spans, strict=True)
        intervals = [Interval(n, first, last) for n, (first, last) in sized]
        anew = place(intervals, max_slab_bytes)
        if fits and arena.nbytes <= anew.nbytes:
            self._waste = arena.nbytes / max(live, 1)
            return arena
        self._stack, self._waste = Stack.of(intervals, anew), anew.nbytes / max(live, 1)
        return anew

    def _find_words(self) -> tuple[Words, tuple[tuple[int, int, Value], ...]]:
        rows: list[tuple[int, int, int, int, int]] = []
        derived: list[tuple[int, int, Value]] = []
        for index, launch in enumerate(self.launches):
            argument = 0
            for arg in launch.args:
                if not isinstance(arg, BufferArg):
                    if is_traced(arg):
                        rows.append(
                            (
                                index,
                                argument,
                                self.trace.formula(cast(int, arg)),
                                len(self.owners),
                                1,
                            )
                        )
                    argument += 1
                    continue
                tenant, itemsize = self._tenant(arg.buffer)
                if tenant < len(self.owners) or is_traced(arg.offset):
                    formula = self.trace.formula(arg.offset)
                    rows.append((index, argument + 1, formula, tenant, itemsize))
                root = self._root(arg.buffer)
                if isinstance(root, Value) and root.is_constant and _varies(root):
                    derived.append((index, argument, root))
                argument += 2
        columns = np.array(rows, np.int64).reshape(-1, 5).T
        return Words(*columns), tuple(derived)

    def _root(self, buffer: Buffer) -> Buffer:
        return self.plan.root(buffer) if isinstance(buffer, Value) else buffer

    def _tenant(self, buffer: Buffer) -> tuple[int, int]:
        """The index of what a buffer lies in, and the size of its elements."""
        root = self._root(buffer)
        if isinstance(buffer, (Packed, Status)) or root not in self._tenants:
            return len(self.owners), 1
        return self._tenants[root], buffer.dtype.itemsize


class _Events:
    """When tenants of the arena come and go, to find the largest sum of live bytes."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        # Those that go at a tick before those that come: their sum is highest after these.
        events = [(last + 1, 0, i) for i, (_, last) in enumerate(spans)]
        events += [(first, 1, i) for i, (first, _) in enumerate(spans)]
        ordered = sorted(events)
        self._tenants = np.array([i for _, _, i in ordered], np.int64)
        self._signs = np.array([1 if comes else -1 for _, comes, _ in ordered], np.int64)

    def peak(self, nbytes: _Ints) -> int:
        """The largest sum, of aligned sizes."""
        return int(np.cumsum(nbytes[self._tenants] * self._signs).max(initial=0))


class SizedPlan(Plan):
    """A plan that a template gives for some sizes; its graph and steps are made when asked for.

    Attributes:
        template: What it has in common with those of other sizes.
    """

    template: PlanTemplate
    _replay: Replay
    _numbers: _Ints

    def __init__(
        self,
        template: PlanTemplate,
        evaluation: Evaluation,
        numbers: _Ints,
        arena: Arena,
        live_bytes: int,
    ) -> None:
        replay = Replay(template.trace, evaluation)
        # The fields of a frozen dataclass; the others are properties here.
        vars(self).update(
            template=template,
            arena=arena,
            live_bytes=live_bytes,
            contract=template.plan.contract,
            _replay=replay,
            _numbers=numbers,
        )

    @cached_property
    def graph(self) -> Graph:
        """The specialised graph."""
        return self._replay(self.template.plan.graph)

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """The steps."""
        _ = self.graph  # makes the nodes that its values are outputs of
        return self._replay(self.template.plan.steps)

    @cached_property
    def places(self) -> Mapping[Placed, Place]:
        """Where each root value and scratch lies in the arena."""
        owners = map(self._replay, self.template.owners)
        return dict(zip(owners, self.arena.places, strict=True))

    @cached_property
    def roots(self) -> Mapping[Value, Value]:
        """A value that shares memory with another, and that other."""
        roots = self.template.plan.roots
        return {self._replay(v): self._replay(r) for v, r in roots.items()}

    @cached_property
    def external(self) -> tuple[Value, ...]:
        """The root values that lie in memory of the caller, bound at each run."""
        return self._replay(self.template.plan.external)

    @cached_property
    def statuses(self) -> tuple[Status, ...]:
        """The words in which kernels report numbers out of range, in their order."""
        _ = self.graph
        return self._replay(self.template.plan.statuses)

    @cached_property
    def missed_regions(self) -> tuple[MissedRegion, ...]:
        """Where a rule of launch fusion nearly held."""
        _ = self.graph
        return self._replay(self.template.plan.missed_regions)

    @property
    def launches(self) -> int:
        return len(self.template.launches)

    @cached_property
    def words(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """What differs in the arguments of launches, in the order of the template's `words`."""
        offsets = [p.offset_bytes for p in self.arena.places]
        return self.template.words.at(self._numbers, np.array([*offsets, 0], np.int64))

    @property
    def global_sizes(self) -> list[tuple[int, ...]]:
        """Of the template's `grids`."""
        numbers = self._numbers
        return [tuple(numbers[list(g)].tolist()) for g in self.template.grid_formulas]

    @property
    def flops(self) -> int:
        """Floating-point operations in a run."""
        return int(self._numbers[self.template.flop_formulas].sum())
