"""Setting kernel arguments and launch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from clrt.runtime.opencl.driver import cl


def scalar_setter(kernel: cl.Kernel) -> Callable[[int, Any], None]:
    """Returns the function that sets a scalar argument; `set_arg` tries other types first, 6 us."""
    setter: Callable[[int, Any], None] = getattr(kernel, "_set_arg_buf", kernel.set_arg)
    return setter


def to_sizes(global_size: Sequence[int], local_size: Sequence[int]) -> tuple[int, ...]:
    """Returns the global size, rounded up to whole work-groups."""
    return tuple([-(-g // s) * s for g, s in zip(global_size, local_size, strict=True)])
