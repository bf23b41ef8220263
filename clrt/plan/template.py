"""Plans for many sizes: planned once with traced sizes, then evaluated for those of a call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TracedConstant
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, is_traced, untraced
from clrt.kernels.spec import (
    INDEXED_BYTES,
    Buffer,
    BufferArg,
    PackedWeight,
    StatusWord,
    numbered_arguments,
)
from clrt.plan.arena import Arena, LiveInterval, assign_offsets
from clrt.plan.arena_relayout import StackingOrder
from clrt.plan.fuse_launches import MissedRegion
from clrt.plan.launch_patches import Int32s, Ints, VariableArguments, VariableGlobalSizes
from clrt.plan.plan import Plan, arena_buffers
from clrt.plan.specialise import specialise_to_break
from clrt.plan.steps import HostStep, PlanStep, launches_of
from clrt.plan.subview_placement import SubviewNote
from clrt.plan.template_instantiation import TemplateInstantiator

_LOG = logging.getLogger(__name__)
# By how much of its live bytes an arena may be larger than the one that a search found, before
# there is a search anew.
_MORE_WASTE = 1.1

# What a launch takes of the host's memory as long as nobody asks for the steps, roughly.
_LAUNCH_BYTES = 256

_Key = TypeVar("_Key")
_Given = TypeVar("_Given")
_Thing = TypeVar("_Thing")


def trace_plan(
    graph: Graph,
    bindings: Bindings,
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, Array],
    make: Callable[[Graph], Plan],
    donated: Collection[str] = (),
) -> PlanTemplate | None:
    """A plan for given sizes from which those for others follow.

    Args:
        bindings: A number for each symbol of the input shapes.
        shapes: Shapes of the inputs for which the model gives none.
        known: Elements of inputs, by name.
        make: Plans a specialised graph.
        donated: Names of inputs whose memory the plan may write to.

    Returns:
        None where there is none: a graph break, a step on the host, a weight whose layout
        depends on sizes, an error.
    """
    if not bindings or any(not v.type.bind(bindings).is_static for v in graph.inputs):
        return None
    trace = ShapeTrace(bindings)
    try:
        first, graph_break = specialise_to_break(graph, trace.start(), shapes, known, donated)
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
    buffers = (b for x in launches_of(plan.steps) for b in x.buffers)
    packed = (b for b in buffers if isinstance(b, PackedWeight))
    return not any(is_traced(b.nbytes) or _varies(b.value) for b in packed)


def _varies(value: Value) -> bool:
    """Whether the elements of a constant depend on the sizes."""
    known = value.type.known_elements
    if isinstance(known, np.ndarray) and known.dtype == object:
        return any(is_traced(x) for x in known.flat)
    return isinstance(known, TracedConstant)


class PlanTemplate:
    """What the plans of one graph have in common, and how they differ.

    Attributes:
        trace: What its numbers are formulas of.
        plan: The one with traced numbers. To compute with these adds to the trace, so nobody but
            this module does.
        launches: Its launches, in order.
        tenants: What lies in the arena, numbered.
        words: What differs in the arguments of launches.
        grids: What differs in their global sizes.
        derived: Where kernels take constants that the host computes of the sizes: launch, argument,
            and the constant.
        uploads: Bytes of each constant, or packed form of it, that is the same at all sizes.
        derived_uploads: The others, and formulas of their bytes.
        costs: What each launch takes beside the others, once that was asked for.
        flops: Formulas of the floating-point operations of each launch.
    """

    def __init__(self, trace: ShapeTrace, plan: Plan) -> None:
        self.trace, self.plan = trace, plan
        self.launches = tuple(launches_of(plan.steps))
        self.costs: tuple[int, ...] | None = None
        found = arena_buffers(plan)
        intervals = [interval for _, interval in found]
        self.tenants = {owner: number for number, (owner, _) in enumerate(found)}
        self.words = VariableArguments.of(self.launches, trace, self._tenant_of)
        self.grids = VariableGlobalSizes(self.launches, trace)
        self.derived = tuple(self._derived())
        uploads = plan.uploads.items()
        self.uploads = {(v, at): untraced(n) for (v, at), n in uploads if not _varies(v)}
        self.derived_uploads = [(v, trace.formula(n)) for (v, _), n in uploads if _varies(v)]
        self.flops = [trace.formula(x.flops) for x in self.launches]
        self._sizes = np.array([trace.formula(owner.nbytes) for owner in self.tenants], np.int64)
        self._spans = [(i.first, i.last) for i in intervals]
        self._events = _Events(self._spans)
        places = tuple(plan.places[owner] for owner in self.tenants)
        self._stack = StackingOrder.of(intervals, Arena(places, plan.arena.slab_bytes))
        self._waste = plan.arena.nbytes / max(plan.live_bytes, 1)
        for launch in self.launches:  # fixed per kernel, so that no size compiles
            tuple(int(n) for n in launch.local_size or ())

    def at(self, bindings: Bindings, max_slab_bytes: int) -> InstantiatedPlan | None:
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
        return InstantiatedPlan(self, evaluation, arena, live)

    def _arena(self, nbytes: Ints, aligned: Ints, live: int, max_slab_bytes: int) -> Arena | None:
        if not len(nbytes):
            return Arena((), ())
        if aligned.max() > max_slab_bytes:
            return None
        arena = self._stack.arena(aligned.tolist())
        largest = min(max_slab_bytes, INDEXED_BYTES)
        fits = all(n <= largest for n in arena.slab_bytes)
        if fits and arena.nbytes <= _MORE_WASTE * self._waste * live:
            return arena
        sized = zip(nbytes.tolist(), self._spans, strict=True)
        intervals = [LiveInterval(n, first, last) for n, (first, last) in sized]
        anew = assign_offsets(intervals, max_slab_bytes)
        if fits and arena.nbytes <= anew.nbytes:
            return arena
        self._stack = StackingOrder.of(intervals, anew)
        self._waste = min(self._waste, anew.nbytes / max(live, 1))
        return anew

    def _tenant_of(self, buffer: Buffer) -> int:
        """The number of the tenant that a buffer lies in; -1 for none."""
        root = self.plan.root(buffer) if isinstance(buffer, Value) else buffer
        return -1 if isinstance(root, (PackedWeight, StatusWord)) else self.tenants.get(root, -1)

    def _derived(self) -> Iterator[tuple[int, int, Value]]:
        for number, launch in enumerate(self.launches):
            for index, arg in numbered_arguments(launch):
                if isinstance(arg, BufferArg) and isinstance(arg.buffer, Value):
                    root = self.plan.root(arg.buffer)
                    if root.is_constant and _varies(root):
                        yield number, index, root


class _Events:
    """When tenants of the arena come and go, to find the largest sum of live bytes."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        # Those that go at a tick before those that come: their sum is highest after these.
        events = [(last + 1, 0, i) for i, (_, last) in enumerate(spans)]
        events += [(first, 1, i) for i, (first, _) in enumerate(spans)]
        ordered = sorted(events)
        self._tenants = np.array([i for _, _, i in ordered], np.int64)
        self._signs = np.array([1 if comes else -1 for _, comes, _ in ordered], np.int64)

    def peak(self, nbytes: Ints) -> int:
        """The largest sum, of aligned sizes."""
        return int(np.cumsum(nbytes[self._tenants] * self._signs).max(initial=0))


class InstantiatedPlan(Plan):
    """A plan that a template gives for some sizes; its graph and steps are made when asked for.

    Attributes:
        template: What it has in common with those of other sizes.
    """

    template: PlanTemplate
    _replay: TemplateInstantiator
    _numbers: list[int]

    def __init__(
        self,
        template: PlanTemplate,
        evaluation: Evaluation,
        arena: Arena,
        live_bytes: int,
    ) -> None:
        replay = TemplateInstantiator(template.trace, evaluation)
        tenants, roots = template.tenants, template.plan.roots
        # The fields of a frozen dataclass; the others are properties here.
        vars(self).update(
            template=template,
            arena=arena,
            live_bytes=live_bytes,
            contract=template.plan.contract,
            also=template.plan.also,
            graph=_SizedGraph(template.plan.graph, replay),
            places=_Replayed(replay, tenants, lambda number: arena.places[number]),
            roots=_Replayed(replay, roots, replay),
            _replay=replay,
            _numbers=evaluation.numbers,
        )

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """The steps."""
        return self._with_nodes(self.template.plan.steps)

    @cached_property
    def external(self) -> tuple[Value, ...]:
        """The root values that lie in memory of the caller, bound at each run."""
        return self._replay(self.template.plan.external)

    @cached_property
    def statuses(self) -> tuple[StatusWord, ...]:
        """The words in which kernels report numbers out of range, in their order."""
        return self._with_nodes(self.template.plan.statuses)

    @cached_property
    def missed_regions(self) -> tuple[MissedRegion, ...]:
        """Where a rule of launch fusion nearly held."""
        return self._with_nodes(self.template.plan.missed_regions)

    @cached_property
    def parts(self) -> tuple[SubviewNote, ...]:
        """Values that are parts of others, and which of them lie there."""
        return self._with_nodes(self.template.plan.parts)

    def _with_nodes(self, thing: _Thing) -> _Thing:
        """A copy of what names nodes: all of these are made first, and with them the edges."""
        _ = self.graph.nodes
        return self._replay(thing)

    @property
    def launches(self) -> int:
        return len(self.template.launches)

    @property
    def status_count(self) -> int:
        return len(self.template.plan.statuses)

    @property
    def host_steps(self) -> tuple[HostStep, ...]:
        return ()

    @property
    def costs(self) -> tuple[int, ...]:
        """As at the first sizes for which somebody asked: launches of a plan change alike."""
        if self.template.costs is None:
            self.template.costs = super().costs
        return self.template.costs

    @property
    def host_bytes(self) -> int:
        return self.launches * _LAUNCH_BYTES

    @cached_property
    def flops(self) -> int:
        """Floating-point operations in a run."""
        return sum(self._numbers[formula] for formula in self.template.flops)

    @cached_property
    def uploads(self) -> dict[tuple[Value, str], int]:
        """The bytes of each constant, or packed form of it by its layout, that it uploads."""
        derived = self.template.derived_uploads
        return self.template.uploads | {(self._replay(v), ""): self._numbers[f] for v, f in derived}

    @cached_property
    def words(self) -> Int32s:
        """What differs in the arguments of launches, in the order of the template's `words`."""
        offsets = [p.offset_bytes for p in self.arena.places]
        return self.template.words.evaluate(np.array(self._numbers, np.int64), offsets)

    @cached_property
    def slabs(self) -> tuple[int, ...]:
        """The slab of each tenant of the arena."""
        return tuple([p.slab for p in self.arena.places])

    @property
    def global_sizes(self) -> list[tuple[int, ...]]:
        """Of the template's `grids`."""
        return self.template.grids.at(self._numbers)

    def derived(self) -> Iterator[tuple[int, int, Value]]:
        """The launches' constants that depend on the sizes: launch, argument, constant."""
        return ((launch, index, self._replay(v)) for launch, index, v in self.template.derived)


class _SizedGraph(Graph):
    """A graph whose nodes are made when asked for."""

    def __init__(self, traced: Graph, replay: TemplateInstantiator) -> None:
        self.name, self.output_names = traced.name, list(traced.output_names)
        self.inputs = [replay(v) for v in traced.inputs]
        self.outputs = [replay(v) for v in traced.outputs]
        self._traced, self._replay = traced, replay

    @cached_property
    def nodes(self) -> list[Node]:  # type: ignore[override]
        """In topological order."""
        return [self._replay(n) for n in self._traced.nodes]


class _Replayed(Mapping[_Key, _Thing]):
    """A mapping of traced values by their copies."""

    def __init__(
        self,
        replay: TemplateInstantiator,
        traced: Mapping[_Key, _Given],
        convert: Callable[[_Given], _Thing],
    ) -> None:
        self._replay, self._traced, self._convert = replay, traced, convert

    def __getitem__(self, key: _Key) -> _Thing:
        return self._convert(self._traced[self._replay.source(key)])

    def __iter__(self) -> Iterator[_Key]:
        return map(self._replay, self._traced)

    def __len__(self) -> int:
        return len(self._traced)
