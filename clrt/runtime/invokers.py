"""Kernel objects at the price of the driver's.

For each kernel object pyopencl reads from a database on disk the Python code that would call it,
0.1 ms of the 0.13 that the object takes, and a plan has one for each launch. That code depends on
the kernel's name and arguments alone: it is read once in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

from pyopencl import invoker

_MAKER = "generate_enqueue_and_set_args"


def remember_invokers() -> None:
    """Keeps what pyopencl makes to call kernels, where this pyopencl is known to make it so."""
    make = getattr(invoker, _MAKER, None)
    if make is not None and not hasattr(make, "__wrapped__"):
        setattr(invoker, _MAKER, _remembering(make))


def _remembering(make: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Hashable, Any] = {}

    @wraps(make)
    def remembered(*args: Any, **options: Any) -> Any:
        # The devices only decide on a warning about the size of arguments.
        key = (args, *sorted((k, v) for k, v in options.items() if k != "devs"))
        try:
            hash(key)
        except TypeError:  # another pyopencl, with other arguments
            return make(*args, **options)
        if key not in known:
            known[key] = make(*args, **options)
        return known[key]

    return remembered
