"""Sets scalar kernel arguments, and rounds launch sizes up to work-groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clrt.runtime.opencl.driver import cl


def scalar_setter(kernel: cl.Kernel) -> Callable[[int, Any], None]:
    """Returns a function that sets a kernel argument, by its index, to a NumPy scalar.

    The function saves the 6 us in which pyopencl's `set_arg` tries other argument types first.
    """
    setter: Callable[[int, Any], None] = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    return setter


def to_sizes(global_size: Sequence[int], local_size: Sequence[int]) -> tuple[int, ...]:
    """Returns `global_size` with each dimension rounded up to a multiple of `local_size`."""
    return tuple([-(-g // s) * s for g, s in zip(global_size, local_size, strict=True)])
