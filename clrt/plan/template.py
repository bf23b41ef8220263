"""Plan templates: plans with symbolic sizes, evaluated at the sizes of each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from clrt.device.caps import ALIGNMENT_BYTES
from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TracedConstant
from clrt.ir.symbolic_trace import Evaluation, ShapeTrace, is_traced, untraced
from clrt.kernels.spec import (
    INDEXED_BYTES,
    Arg,
    Buffer,
    BufferArg,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    StatusWord,
    i32,
    numbered_arguments,
)
from clrt.plan.arena import Allocation, Arena, LiveInterval, assign_offsets
from clrt.plan.arena_relayout import StackingOrder
from clrt.plan.device_io import DeviceIo
from clrt.plan.launch_patches import Int32s, Ints, VariableArguments, VariableGlobalSizes
from clrt.plan.plan import Plan
from clrt.plan.steps import HostStep, Placed, PlanStep, launches_of
from clrt.plan.template_instantiation import TemplateInstantiator
from clrt.util.cached_property import cached_property
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.plan.fuse_launches import MissedRegion
    from clrt.plan.subview_placement import SubviewNote

# Relative waste (arena bytes over live bytes) of a reused layout, as a multiple of the waste of the
# last searched layout, above which offsets are searched again.
_MAX_WASTE_RATIO = 1.1

# Estimated host memory per launch of an instantiated plan whose steps were not built, in bytes.
_LAUNCH_BYTES = 256

_ABSENT = object()
_K = TypeVar("_K")
_Traced = TypeVar("_Traced")
_T = TypeVar("_T")


def varies(value: Value) -> bool:
    """Returns whether the elements of a constant depend on the symbolic sizes."""
    known = value.type.known_elements
    if isinstance(known, np.ndarray) and known.dtype == object:
        return any(is_traced(x) for x in known.flat)
    return isinstance(known, TracedConstant)


@dataclass(frozen=True)
class ArenaBuffers:
    """The buffers in the arena of a plan with traced numbers.

    Attributes:
        owners: The value or scratch buffer that each buffer belongs to.
        spans: First and last memory event of each buffer's lifetime.
        layout: Which buffers lie on which in the planned arena.
        waste: Bytes of the planned arena over its peak of live bytes.
    """

    owners: tuple[Placed, ...]
    spans: tuple[tuple[int, int], ...]
    layout: StackingOrder
    waste: float


class PlanTemplate:
    """A plan whose numbers are formulas of the symbolic sizes, evaluated per set of sizes.

    Attributes:
        trace: Formulas of the plan's numbers.
        plan: Plan with traced numbers. Only this module reads these numbers, since arithmetic on
            them would extend the trace.
        buffers: The plan's buffers in the arena.
        launches: Launches of the plan in execution order.
        buffer_numbers: Maps each buffer in the arena to its index.
        arguments: Launch arguments that vary with the sizes.
        global_sizes: Global sizes that vary with the sizes.
        derived: Uses of constants that the host computes from the sizes: (index of the launch,
            OpenCL index of the argument, constant).
        uploads: Bytes to upload of constants that do not depend on the sizes, by constant and
            packed layout.
        derived_uploads: (constant, formula of its bytes) of constants that depend on the sizes.
        costs: Relative cost of each launch, unitless; None until first computed.
        flops: Formula of the floating-point operations of each launch.
    """

    def __init__(self, trace: ShapeTrace, plan: Plan, buffers: ArenaBuffers) -> None:
        self.trace, self.plan, self.buffers = trace, plan, buffers
        self.launches = tuple(launches_of(plan.steps))
        self.costs: tuple[int, ...] | None = None
        self.buffer_numbers = {owner: number for number, owner in enumerate(buffers.owners)}
        self.arguments = VariableArguments.from_launches(self.launches, trace, self._tenant_of)
        self.global_sizes = VariableGlobalSizes(self.launches, trace)
        self.derived = tuple(self._derived())
        uploads = plan.uploads.items()
        self.uploads = {(v, at): untraced(n) for (v, at), n in uploads if not varies(v)}
        self.derived_uploads = [(v, trace.formula(n)) for (v, _), n in uploads if varies(v)]
        self.flops = [trace.formula(x.flops) for x in self.launches]
        self._sizes = np.array(
            [trace.formula(owner.nbytes) for owner in self.buffer_numbers], np.int64
        )
        self._events = _Events(buffers.spans)
        self._layout, self._waste = buffers.layout, buffers.waste
        for launch in self.launches:  # raises if one is traced: local sizes are fixed per kernel
            tuple(int(n) for n in launch.local_size or ())

    @property
    def device_io(self) -> DeviceIo:
        """Inputs and outputs that the plan has on the device."""
        return self.plan.device_io

    def holds(self, bindings: Bindings) -> bool:
        """Returns whether the plan's formulas hold at other sizes.

        Args:
            bindings: Size of each symbol.
        """
        return self.trace.evaluate(bindings) is not None

    def instantiate(self, bindings: Bindings, max_slab_bytes: int) -> InstantiatedPlan | None:
        """Evaluates this template's plan at other sizes.

        Args:
            bindings: Size of each symbol.
            max_slab_bytes: Maximum size of one device allocation, in bytes.

        Returns:
            The plan; None if the template does not hold at these sizes, so that planning is needed.
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

    def price(self, max_slab_bytes: int) -> None:
        """Computes `costs` at the sizes with which the template was traced, unless they are known.

        Args:
            max_slab_bytes: Maximum size of one device allocation, in bytes.
        """
        if self.costs is None:
            plan = self.instantiate(self.trace.sizes, max_slab_bytes)
            self.costs = None if plan is None else plan.costs

    def _arena(self, nbytes: Ints, aligned: Ints, live: int, max_slab_bytes: int) -> Arena | None:
        """Returns the arena for buffers of other sizes; reuses the last layout if it wastes little.

        Args:
            nbytes: Size of each arena buffer in bytes.
            aligned: Aligned size of each arena buffer in bytes.
            live: Peak of live bytes.
            max_slab_bytes: Maximum size of one device allocation, in bytes.

        Returns:
            The arena; None if a buffer is larger than `max_slab_bytes`.
        """
        if not len(nbytes):
            return Arena()
        if aligned.max() > max_slab_bytes:
            return None
        arena = self._layout.arena(aligned.tolist())
        largest = min(max_slab_bytes, INDEXED_BYTES)
        fits = all(n <= largest for n in arena.slab_bytes)
        if fits and arena.nbytes <= _MAX_WASTE_RATIO * self._waste * live:
            return arena
        sized = zip(nbytes.tolist(), self.buffers.spans, strict=True)
        intervals = [LiveInterval(n, first, last) for n, (first, last) in sized]
        searched = assign_offsets(intervals, max_slab_bytes)
        if fits and arena.nbytes <= searched.nbytes:
            return arena
        self._layout = StackingOrder.from_arena(intervals, searched)
        self._waste = min(self._waste, searched.nbytes / max(live, 1))
        return searched

    def _tenant_of(self, buffer: Buffer) -> int:
        """Returns the index of the arena buffer that holds a tensor; -1 if none does."""
        root = self.plan.root(buffer) if isinstance(buffer, Value) else buffer
        return (
            -1
            if isinstance(root, (PackedWeight, StatusWord))
            else self.buffer_numbers.get(root, -1)
        )

    def _derived(self) -> Iterator[tuple[int, int, Value]]:
        """Yields (launch index, OpenCL argument index, constant) for size-dependent constants."""
        for number, launch in enumerate(self.launches):
            for index, arg in numbered_arguments(launch):
                if isinstance(arg, BufferArg) and isinstance(arg.buffer, Value):
                    root = self.plan.root(arg.buffer)
                    if root.is_constant and varies(root):
                        yield number, index, root


class _Events:
    """Starts and ends of the lifetimes of arena buffers, to compute the peak of live bytes."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        # At each tick ends come before starts, so that the peak is reached after the starts.
        events = [(last + 1, 0, i) for i, (_, last) in enumerate(spans)]
        events += [(first, 1, i) for i, (first, _) in enumerate(spans)]
        ordered = sorted(events)
        self._tenants = np.array([i for _, _, i in ordered], np.int64)
        self._signs = np.array([1 if comes else -1 for _, comes, _ in ordered], np.int64)

    def peak(self, nbytes: Ints) -> int:
        """Returns the peak of live bytes: the largest sum of buffers alive at one time.

        Args:
            nbytes: Aligned size of each arena buffer.
        """
        return int(np.cumsum(nbytes[self._tenants] * self._signs).max(initial=0))


class InstantiatedPlan(Plan):
    """A plan evaluated from a template; its graph and steps are built on first access.

    Attributes:
        template: The template.
    """

    template: PlanTemplate
    _instantiate: TemplateInstantiator
    _numbers: list[int]

    def __init__(
        self,
        template: PlanTemplate,
        evaluation: Evaluation,
        arena: Arena,
        live_bytes: int,
    ) -> None:
        instantiate = TemplateInstantiator(evaluation)
        tenants, roots = template.buffer_numbers, template.plan.roots
        # Fields of the frozen dataclass `Plan`; the remaining ones are properties here.
        vars(self).update(
            template=template,
            arena=arena,
            live_bytes=live_bytes,
            device_io=template.plan.device_io,
            precompiled_kernels=template.plan.precompiled_kernels,
            on_twin=template.plan.on_twin,
            graph=_InstantiatedGraph(template.plan.graph, instantiate),
            allocations=_InstantiatedMapping(
                instantiate, tenants, lambda n: Allocation(arena.slabs[n], arena.offsets[n])
            ),
            roots=_InstantiatedMapping(instantiate, roots, instantiate),
            _instantiate=instantiate,
            _numbers=evaluation.numbers,
        )

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """Device steps in execution order, built on first access."""
        return self._with_nodes(self.template.plan.steps)

    @cached_property
    def external(self) -> tuple[Value, ...]:
        """Values that own memory in tensors of the caller, bound at each run."""
        return self._instantiate(self.template.plan.external)

    @cached_property
    def status_words(self) -> tuple[StatusWord, ...]:
        """Status words, in which kernels report out-of-range indices, in order of position."""
        return self._with_nodes(self.template.plan.status_words)

    @cached_property
    def missed_regions(self) -> tuple[MissedRegion, ...]:
        """Near misses of launch fusion rules."""
        return self._with_nodes(self.template.plan.missed_regions)

    @cached_property
    def subviews(self) -> tuple[SubviewNote, ...]:
        """Outcome of placing each subview: aliased or copied."""
        return self._with_nodes(self.template.plan.subviews)

    def _with_nodes(self, traced: _T) -> _T:
        """Returns the instantiated copy of a traced object, such as a tuple of steps.

        As the object may refer to nodes of the graph, all nodes are instantiated first, in
        topological order.
        """
        _ = self.graph.nodes
        return self._instantiate(traced)

    @property
    def launches(self) -> int:
        return len(self.template.launches)

    @property
    def kernels(self) -> tuple[KernelSpec, ...]:
        return (*(x.kernel for x in self.template.launches), *self.precompiled_kernels)

    def status_index(self, word: StatusWord) -> int:
        return self.template.plan.status_words.index(word)

    def numbered_launches(self) -> Iterator[Launch]:
        """Yields the launches, but with the status words of the template (see `status_index`).

        This is several times faster than `steps`, which copies all nodes.
        """
        formula = self.template.trace.formula

        def number(n: int) -> int:
            return self._numbers[formula(n)] if is_traced(n) else n

        def argument(arg: Arg) -> Arg:
            if isinstance(arg, BufferArg):
                buffer = arg.buffer
                if isinstance(buffer, (Value, Scratch)):
                    buffer = self._instantiate(buffer)
                return BufferArg(buffer, number(arg.offset))
            return i32(number(cast(int, arg))) if is_traced(arg) else arg

        for launch in self.template.launches:
            sizes = tuple(map(number, launch.global_size))
            args = tuple(map(argument, launch.args))
            yield Launch(launch.kernel, sizes, launch.local_size, args)

    @property
    def status_count(self) -> int:
        return len(self.template.plan.status_words)

    @property
    def host_steps(self) -> tuple[HostStep, ...]:
        return ()

    @property
    def costs(self) -> tuple[int, ...]:
        """Relative cost of each launch, computed once per template.

        The costs at the sizes of the first plan serve all sizes, on the assumption that the times
        of all launches grow alike.
        """
        if self.template.costs is None:
            self.template.costs = super().costs
        return self.template.costs

    @property
    def host_bytes(self) -> int:
        return self.launches * _LAUNCH_BYTES

    @cached_property
    def flops(self) -> int:
        """Number of floating-point operations in a run."""
        return sum(self._numbers[formula] for formula in self.template.flops)

    @cached_property
    def uploads(self) -> dict[tuple[Value, str], int]:
        """Bytes to upload, by constant and packed layout (\"\" for the constant as it is)."""
        derived = self.template.derived_uploads
        return self.template.uploads | {
            (self._instantiate(v), ""): self._numbers[f] for v, f in derived
        }

    @cached_property
    def words(self) -> Int32s:
        """Values of the varying launch arguments, in the order of `template.arguments`."""
        numbers = np.array(self._numbers, np.int64)
        return self.template.arguments.evaluate(numbers, self.arena.offsets)

    @property
    def slabs(self) -> tuple[int, ...]:
        """Slab index of each arena buffer."""
        return self.arena.slabs

    @property
    def global_sizes(self) -> list[tuple[int, ...]]:
        """Varying global sizes, in the order of `template.global_sizes.launches`."""
        return self.template.global_sizes.evaluate(self._numbers)

    @cached_property
    def derived(self) -> dict[Value, Value]:
        """Constants computed from this plan's sizes, by the template's value of each."""
        return {v: self._instantiate(v) for v in {v: None for _, _, v in self.template.derived}}


class _InstantiatedGraph(Graph):
    """Graph of an instantiated plan, whose nodes are built on first access."""

    def __init__(self, traced: Graph, instantiate: TemplateInstantiator) -> None:
        self.name, self.output_names = traced.name, list(traced.output_names)
        self.inputs = [instantiate(v) for v in traced.inputs]
        self.outputs = [instantiate(v) for v in traced.outputs]
        self._traced, self._instantiate = traced, instantiate

    @cached_property
    def nodes(self) -> list[Node]:  # type: ignore[override]
        """Nodes in topological order."""
        return [self._instantiate(n) for n in self._traced.nodes]


class _InstantiatedMapping(Mapping[_K, _T]):
    """View of a mapping of traced objects with each key replaced by its instantiated copy."""

    def __init__(
        self,
        instantiate: TemplateInstantiator,
        traced: Mapping[_K, _Traced],
        convert: Callable[[_Traced], _T],
    ) -> None:
        self._instantiate, self._traced, self._convert = instantiate, traced, convert

    def __getitem__(self, key: _K) -> _T:
        return self._convert(self._traced[self._instantiate.source(key)])

    def get(self, key: _K, default: Any = None) -> Any:
        """Returns the item of a key, or `default`.

        Unlike `Mapping.get`, does not raise and catch a KeyError per miss, which is slow.
        """
        traced: Any = self._traced.get(self._instantiate.source(key), _ABSENT)
        return default if traced is _ABSENT else self._convert(traced)

    def __iter__(self) -> Iterator[_K]:
        return map(self._instantiate, self._traced)

    def __len__(self) -> int:
        return len(self._traced)
