"""Plans models for the profiles, and finds launches that a device would refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from typing import TypeAlias

from clrt.device.caps import DeviceCaps
from clrt.device.requires import Requires
from clrt.errors import ClrtError, PlanError
from clrt.ir.graph import Graph, Value
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.tuning_records import record_for
from clrt.passes.device_pipeline import prepare
from clrt.passes.pipeline import optimize
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.make_plan import make_plan
from clrt.plan.memory import memory_of
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise_to_break
from clrt.plan.steps import DeviceStep
from clrt.plan.traffic import accessed_bytes, traffic
from clrt.runtime.execution.signature import bind_dims
from clrt.util.formatting import format_bytes
from clrt.util.math import ceil_div

from .profiles import Profile

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"

# What the runtime takes where a launch leaves the size of its work-groups open, or less.
ITEMS = 256
_OPEN = {1: (ITEMS,), 2: (64, 1), 3: (64, 1, 1)}


@dataclass(frozen=True)
class Model:
    """A model at one set of input shapes.

    Attributes:
        read: Its graph, before any pass.
        shapes: Shapes of that graph's inputs.
        contract: Which inputs and outputs are tensors on the device.
        layers: Number of layers that share the donated KV cache; a launch reads one layer's part.
    """

    name: str
    read: Callable[[], Graph]
    shapes: Callable[[Graph], Shapes]
    contract: DeviceIo = HOST_ONLY
    layers: int = 1


@dataclass(frozen=True)
class Work:
    """Work of a launch.

    Attributes:
        groups, items: Work-groups, and the average active work-items per group.
        nbytes: Bytes read and written.
    """

    kernel: KernelSpec
    groups: int
    items: float
    flops: int
    nbytes: int


@dataclass(frozen=True)
class Planned:
    """Plan of a model on a device.

    Attributes:
        work: Work of each launch.
        kernels: All kernels of a run, with their work-group sizes.
        host: Nodes that run on the host, with the reason.
        illegal: Launches that the device would refuse, with the excess.
        error: Why planning failed; "" if it did not.
    """

    model: str
    profile: Profile
    work: tuple[Work, ...] = ()
    kernels: tuple[tuple[KernelSpec, int], ...] = ()
    host: tuple[str, ...] = ()
    illegal: tuple[str, ...] = ()
    error: str = ""


def plan_model(model: Model, devices: tuple[Profile, ...]) -> Iterator[Planned]:
    """Yields the plan of a model on each device."""
    graph = model.read()
    optimize(graph)
    for profile in devices:
        own = graph.copy()
        prepare(own, profile.caps)
        yield _planned(model, own, profile)


def _planned(model: Model, graph: Graph, profile: Profile) -> Planned:
    caps = profile.caps
    try:
        plan = _plan(model, graph, caps)
    except ClrtError as error:
        return Planned(model.name, profile, error=str(error))
    if lacking := _lacking_memory(plan, caps):
        return Planned(model.name, profile, error=lacking)
    steps = [s for s in plan.steps if isinstance(s, DeviceStep)]
    pairs = [(s, x) for s in steps for x in s.launches]
    refused = ((s, refusal(x, caps)) for s, x in pairs)
    kernels = {k: ITEMS for k in plan.precompiled_kernels} | {
        x.kernel: items_of(x) for _, x in pairs
    }
    return Planned(
        model.name,
        profile,
        tuple(_work(model, plan, s, x) for s, x in pairs if prod(x.global_size)),
        tuple(kernels.items()),
        tuple(f"{s.node}: {s.reason}" for s in plan.host_steps),
        tuple(f"{s.node}: {why}" for s, why in refused if why),
    )


def _plan(model: Model, graph: Graph, caps: DeviceCaps) -> Plan:
    """Plans a prepared graph.

    Raises:
        OutOfMemoryError: A buffer is larger than the device can allocate.
        PlanError: A shape depends on computed data.
    """
    shapes, donated = model.shapes(graph), model.contract.donated
    bindings = bind_dims(graph.inputs, shapes)
    whole, rest = specialise_to_break(graph, bindings, shapes, {}, donated)
    if rest is not None:
        raise PlanError(f"{rest.title} depends on computed data.")
    return make_plan(whole, caps, partial(record_for, caps=caps), model.contract)


def _lacking_memory(plan: Plan, caps: DeviceCaps) -> str:
    """Returns which memory limit of the device a plan exceeds, and by how much; "" if none."""
    slabs = (("the arena", n) for n in plan.arena.slab_bytes)
    weights = ((f"'{value.name}'", n) for (value, _), n in plan.uploads.items())
    for what, nbytes in chain(weights, slabs):
        if nbytes > caps.max_alloc_bytes:
            over = format_bytes(nbytes - caps.max_alloc_bytes)
            return (
                f"{what} takes {format_bytes(nbytes)}, {over} more than a buffer may have "
                f"({format_bytes(caps.max_alloc_bytes)})"
            )
    needed = memory_of(plan, None, ()).device_bytes
    if needed <= caps.global_mem_bytes:
        return ""
    over = format_bytes(needed - caps.global_mem_bytes)
    had = format_bytes(caps.global_mem_bytes)
    return f"it takes {format_bytes(needed)}, {over} more than the device has ({had})"


def items_of(launch: Launch) -> int:
    """Returns the work-group size of a launch."""
    return prod(_local(launch))


def _local(launch: Launch) -> tuple[int, ...]:
    return launch.local_size or _OPEN[len(launch.global_size)]


def refusal(launch: Launch, caps: DeviceCaps, local_bytes: int = 0) -> str:
    """Returns why a device would refuse a launch, and by how much it exceeds; "" if it would not.

    Args:
        local_bytes: Local memory per work-group in bytes, as compilers report it.
    """
    local = launch.local_size
    items = prod(local) if local else 1
    if local and any(g % x for g, x in zip(launch.global_size[1:], local[1:], strict=True)):
        return f"{launch.kernel.entry}: {launch.global_size} is no multiple of {local}"
    lacking = lacking_group(items, local_bytes, caps)
    return f"{launch.kernel.entry} {lacking}" if lacking else ""


def lacking_group(items: int, local_bytes: int, caps: DeviceCaps) -> str:
    """Returns which work-group or local-memory limit is exceeded; "" if none."""
    return Requires(work_group_size=items, local_mem_bytes=local_bytes).missing(caps) or ""


def _work(model: Model, plan: Plan, step: DeviceStep, launch: Launch) -> Work:
    groups = prod(map(ceil_div, launch.global_size, _local(launch)))
    nbytes = traffic(step.nodes, launch).nbytes - _untouched(model, plan, launch)
    return Work(launch.kernel, groups, prod(launch.global_size) / groups, launch.flops, nbytes)


def _untouched(model: Model, plan: Plan, launch: Launch) -> int:
    """Returns the bytes of a donated cache that a launch does not access: it writes one token."""
    writes = {a.buffer for a, access in launch.accesses() if access != "read"}
    return sum(
        nbytes if buffer in writes else nbytes - nbytes // model.layers
        for buffer, nbytes in accessed_bytes(launch).items()
        if isinstance(buffer, Value) and plan.root(buffer).name in model.contract.donated
    )
