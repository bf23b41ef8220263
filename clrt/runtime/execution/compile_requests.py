"""Requests the optimized programs of a plan, which are compiled while its quick ones run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from clrt.ir.graph import Value
from clrt.kernels.spec import (
    BufferArg,
    KernelSpec,
    Launch,
    PackedWeight,
    StatusWord,
)
from clrt.plan.plan import MIN_BUFFER_BYTES, Plan
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.background_compiler import SampleLaunch
from clrt.runtime.opencl.kernel_calls import to_sizes

if TYPE_CHECKING:
    from clrt.runtime.opencl.programs import ProgramCache
    from clrt.runtime.opencl.tiers import ModelTiers

# Smallest global size for which PoCL compiles a kernel again, because indices exceed 16 bits.
_WIDE_GRID = 65535


def request_programs(
    plan: Plan,
    programs: ProgramCache,
    model: ModelTiers,
    local_sizes: Mapping[int, tuple[int, ...]],
) -> None:
    """Requests the optimized programs of a plan's kernels, as far as they are in no cache.

    Args:
        plan: Plan about to be bound.
        programs: Programs of the device.
        model: Programs and tiers of the model.
        local_sizes: Local size of launches that specify none, by number of dimensions.
    """
    missing = programs.missing(dict.fromkeys(plan.kernels), model)
    if not missing:
        return
    launches = launches_of(plan.steps)
    values = dict.fromkeys(missing, 0.0)
    samples: dict[KernelSpec, dict[object, SampleLaunch]] = {spec: {} for spec in missing}
    at_launch = "compiles-at-launch" in programs.caps.quirks
    for launch, cost in zip(launches, plan.costs, strict=True):
        spec = launch.kernel
        if spec not in values:
            continue
        values[spec] += cost
        local = launch.local_size or local_sizes[len(launch.global_size)]
        form = local, any(size >= _WIDE_GRID for size in launch.global_size)
        if at_launch and form not in samples[spec]:
            samples[spec][form] = _sample(plan, launch, local)
    programs.compile_later(
        {spec: (values[spec], tuple(samples[spec].values())) for spec in missing}, model
    )


def _sample(plan: Plan, launch: Launch, local_size: tuple[int, ...]) -> SampleLaunch:
    """Returns a launch as data, with buffers of the sizes that it will have in the plan."""
    arguments = sample_arguments(launch, partial(_place, plan))
    sizes = to_sizes(launch.global_size, local_size)
    return SampleLaunch(launch.kernel.entry, arguments, sizes, local_size)


def sample_arguments(
    launch: Launch, place: Callable[[BufferArg], tuple[int, int]]
) -> tuple[int | str, ...]:
    """Returns the arguments of a launch in the form of `SampleLaunch.arguments`.

    Args:
        place: Returns the size in bytes of an argument's buffer, and its offset in elements.
    """
    arguments: list[int | str] = []
    for argument in launch.args:
        if isinstance(argument, BufferArg):
            nbytes, offset = place(argument)
            arguments += [nbytes, np.int32(offset).tobytes().hex()]
        else:
            arguments.append(argument.tobytes().hex())
    return tuple(arguments)


def _place(plan: Plan, argument: BufferArg) -> tuple[int, int]:
    """Returns the size in bytes of an argument's buffer, and its offset in elements."""
    buffer, offset = argument.buffer, argument.offset
    if isinstance(buffer, StatusWord):
        return 8 * plan.status_count, plan.status_words.index(buffer) + offset
    if isinstance(buffer, PackedWeight):
        return max(buffer.nbytes, MIN_BUFFER_BYTES), offset
    root = plan.root(buffer) if isinstance(buffer, Value) else buffer
    place = plan.allocations.get(root)
    if place is None:  # a constant, or in a tensor of the caller
        return max(root.nbytes, MIN_BUFFER_BYTES), offset
    itemsize = buffer.dtype.itemsize
    return plan.arena.slab_bytes[place.slab], place.offset_bytes // itemsize + offset
