"""Updates the kernel arguments of a plan template for other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from clrt.plan.template import InstantiatedPlan
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.kernel_calls import scalar_setter, to_sizes


class BoundLaunch(NamedTuple):
    """A kernel with its arguments set, and the sizes of its launch.

    Attributes:
        entry: Entry point of the kernel.
        global_size: Work-items per dimension, a multiple of `local_size`.
        local_size: Work-items per work-group, per dimension.
        axes: Dimensions along which the launch may be split.
    """

    entry: str
    kernel: cl.Kernel
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    axes: tuple[int, ...]

    def pieces(self, count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Splits the launch into at most `count` launches along its longest splittable dimension.

        Returns:
            Global offset and global size of each launch. One entry with the whole launch if
            `axes` allow no split.
        """
        groups = [-(-g // s) for g, s in zip(self.global_size, self.local_size, strict=True)]
        axis = max((a for a in self.axes if a < len(groups)), key=groups.__getitem__, default=None)
        if axis is None or count < 2:
            return [((0,) * len(groups), self.global_size)]
        step = -(-groups[axis] // count) * self.local_size[axis]
        pieces = []
        for start in range(0, self.global_size[axis], step):
            size, offset = list(self.global_size), [0] * len(groups)
            offset[axis], size[axis] = start, min(step, self.global_size[axis] - start)
            pieces.append((tuple(offset), tuple(size)))
        return pieces


class ArgumentPatcher:
    """Updates the kernel arguments of a plan when another plan of its template takes the kernels.

    Caches the current arguments, so that only arguments that differ are set.
    """

    def __init__(
        self, plan: InstantiatedPlan, steps: Sequence[BoundLaunch], generation: int
    ) -> None:
        """Records the current arguments of the kernels.

        Args:
            plan: Plan that the kernels are bound to.
            steps: Bound launches of the plan.
            generation: `ArenaMemory.generation` of the memory that the launches are bound to.
        """
        words = plan.template.arguments
        self._kernels = [steps[i].kernel for i in words.launches.tolist()]
        self._setters = [scalar_setter(kernel) for kernel in self._kernels]
        self._arguments = words.arguments.tolist()
        self._words = plan.words
        self._slabs = plan.slabs
        self._generation = generation

    def patch(
        self,
        plan: InstantiatedPlan,
        steps: list[BoundLaunch],
        slabs: Sequence[TrackedBuffer],
        generation: int,
        constant: Callable[[Any], TrackedBuffer],
    ) -> None:
        """Sets the arguments and global sizes of `steps` for another plan of the same template.

        Args:
            plan: Plan to switch to.
            steps: Bound launches of the plan, replaced in place if their sizes change.
            slabs: Buffers of the arena.
            generation: `ArenaMemory.generation` of these buffers.
            constant: Returns the buffer of a constant of the plan.
        """
        words, setters, arguments = plan.words, self._setters, self._arguments
        changed = np.flatnonzero(words != self._words)
        for index, word in zip(changed.tolist(), words[changed], strict=True):
            setters[index](arguments[index], word)
        if generation != self._generation or plan.slabs != self._slabs:
            for index, tenant in enumerate(plan.template.arguments.tenants.tolist()):
                if tenant >= 0:
                    buffer = slabs[plan.slabs[tenant]]
                    self._kernels[index].set_arg(arguments[index] - 1, buffer)
        buffers = {value: constant(copy) for value, copy in plan.derived.items()}
        for launch, argument, value in plan.template.derived:
            steps[launch].kernel.set_arg(argument, buffers[value])
        for launch, size in zip(
            plan.template.global_sizes.launches, plan.global_sizes, strict=True
        ):
            entry, kernel, _, local_size, axes = steps[launch]
            sizes = to_sizes(size, local_size)
            steps[launch] = BoundLaunch(entry, kernel, sizes, local_size, axes)
        self._words, self._slabs, self._generation = words, plan.slabs, generation
