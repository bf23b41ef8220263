"""Plan comparison: whether two plans for the same sizes have the same effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, count
from typing import Any

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Bindings
from clrt.ir.graph import Graph, Value
from clrt.kernels.spec import Buffer, BufferArg, Launch, PackedWeight, Scratch, StatusWord
from clrt.kernels.tuning_records import record_for
from clrt.plan.arena import align
from clrt.plan.make_plan import arena_buffers, make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import DeviceStep
from clrt.plan.template import InstantiatedPlan, PlanTemplate
from clrt.plan.trace_plan import trace_plan

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=2)


def plan(graph: Graph) -> Plan:
    """The plan of a specialised graph for a CPU."""
    return make_plan(graph, CPU, lambda kernel: record_for(kernel, CPU))


def count_alike(graph: Graph, sizes: Sequence[Bindings]) -> int:
    """How many of some sizes the template for the first gives plans for; 0 where there is none.

    Raises:
        AssertionError: One is not what planning gives.
    """
    template = trace_plan(graph, sizes[0], {}, {}, plan)
    if template is None:
        return 0
    found = [template.instantiate(bindings, CPU.max_alloc_bytes) for bindings in sizes]
    first = found[0]
    assert first is not None
    waste = 1.1 * first.arena.nbytes / max(first.live_bytes, 1)
    for bindings, sized in zip(sizes, found, strict=True):
        if sized is None:
            continue
        fresh = plan(specialise(graph, bindings))
        compare(sized, fresh)
        check_arena(sized)
        assert sized.arena.nbytes <= max(waste * sized.live_bytes, fresh.arena.nbytes)
        check_words(template, first, sized)
    return sum(sized is not None for sized in found)


def compare(left: Plan, right: Plan) -> None:
    """Raises AssertionError where two plans differ in anything but places."""
    assert described(left) == described(right)
    assert left.live_bytes == right.live_bytes
    assert left.launches == right.launches
    for a, b in zip(left.graph.values(), right.graph.values(), strict=True):
        assert (a.name, a.dtype, a.shape, a.symbolic_shape) == (
            b.name,
            b.dtype,
            b.shape,
            b.symbolic_shape,
        )
        assert (a.numbers is None) == (b.numbers is None), a
        assert a.numbers is None or np.array_equal(a.numbers, b.numbers, equal_nan=True), a
        assert a.numbers is None or a.numbers.dtype == b.numbers.dtype, a
    assert {v.name: r.name for v, r in left.roots.items()} == {
        v.name: r.name for v, r in right.roots.items()
    }


def described(of: Plan) -> list[Any]:
    names = dict[int, str]()
    return [
        (s.nodes[-1].name, [n.op for n in s.nodes], [_launch(x, names) for x in s.launches])
        for s in of.steps
        if isinstance(s, DeviceStep)
    ]


def _launch(launch: Launch, names: dict[int, str]) -> Any:
    args = [_buffer(a, names) if isinstance(a, BufferArg) else (type(a), a) for a in launch.args]
    sizes = (launch.global_size, launch.local_size, launch.flops)
    assert all(type(n) is int for n in (*launch.global_size, launch.flops))
    return launch.kernel, sizes, args


def _buffer(arg: BufferArg, names: dict[int, str]) -> Any:
    buffer = arg.buffer
    known: Any = (buffer.name, buffer.nbytes) if isinstance(buffer, Value) else None
    if isinstance(buffer, Scratch):
        name = names.setdefault(id(buffer), f"scratch {len(names)}")
        known = (name, buffer.elems, buffer.dtype)
    elif isinstance(buffer, PackedWeight):
        held = buffer.value.numbers  # a plan that folds a constant has one of its own
        elements = None if held is None else (held.dtype, held.tobytes())
        known = (buffer.value.name, elements, buffer.layout, buffer.nbytes)
    elif isinstance(buffer, StatusWord):
        known = (buffer.node.name, buffer.operand, buffer.allowed)
    return known, arg.offset, arg.elems


def check_arena(of: Plan) -> None:
    """Raises AssertionError where two buffers alive together overlap, or one lies outside."""
    found = [(of.allocations[owner], interval) for owner, interval in arena_buffers(of)]
    assert len(found) == len(of.allocations)
    for place, interval in found:
        assert place.offset_bytes % align(1) == 0
        assert place.offset_bytes + align(interval.nbytes) <= of.arena.slab_bytes[place.slab]
    for (p, a), (q, b) in combinations(found, 2):
        apart = p.offset_bytes + align(a.nbytes) <= q.offset_bytes
        apart = apart or q.offset_bytes + align(b.nbytes) <= p.offset_bytes
        assert apart or p.slab != q.slab or not a.meets(b), (p, a, q, b)


def check_words(of: PlanTemplate, one: InstantiatedPlan, other: InstantiatedPlan) -> None:
    """Raises AssertionError where words and global sizes are not all that differs."""
    found = [_arguments(one), _arguments(other)]
    columns = list(
        zip(of.arguments.launches.tolist(), of.arguments.arguments.tolist(), strict=True)
    )
    for arguments, sized in zip(found, (one, other), strict=True):
        for place, word in zip(columns, sized.words.tolist(), strict=True):
            assert arguments.pop(place) == word
        for launch, argument, _ in of.derived:
            assert isinstance(arguments.pop((launch, argument)), Value)
    assert found[0] == found[1]
    for sized in (one, other):
        launches = list(_launches(sized))
        assert sized.flops == sum(x.flops for x in launches)
        assert sized.global_sizes == [launches[i].global_size for i in of.global_sizes.launches]
    pairs = zip(_launches(one), _launches(other), strict=True)
    assert {i for i, (a, b) in enumerate(pairs) if a.global_size != b.global_size} <= {
        *of.global_sizes.launches
    }


def _launches(of: Plan) -> Iterator[Launch]:
    return (x for s in of.steps if isinstance(s, DeviceStep) for x in s.launches)


def _arguments(of: Plan) -> dict[tuple[int, int], Any]:
    """A kernel's arguments by launch and index: constants, offsets and numbers."""
    found = dict[tuple[int, int], Any]()
    for launch, x in enumerate(_launches(of)):
        index = count()
        for arg in x.args:
            if isinstance(arg, BufferArg):
                constant, start = _lies(of, arg.buffer)
                found[launch, next(index)] = constant
                found[launch, next(index)] = start + arg.offset
            else:
                found[launch, next(index)] = arg
    return found


def _lies(of: Plan, buffer: Buffer) -> tuple[Any, int]:
    """The constant that a buffer is, and the element at which it starts in the arena."""
    if isinstance(buffer, PackedWeight):
        return (buffer.value, buffer.layout), 0
    if isinstance(buffer, StatusWord):
        return "status", of.status_words.index(buffer)
    root = of.root(buffer) if isinstance(buffer, Value) else buffer
    if isinstance(root, Value) and root.is_constant:
        return root, 0
    return "arena", of.allocations[root].offset_bytes // buffer.dtype.itemsize
