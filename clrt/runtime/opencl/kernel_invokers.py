"""Kernel objects at the price of the driver's.

For each kernel object pyopencl reads the Python code that would call it from a database below the
user's home: 0.1 ms of the 0.13 that the object takes, a plan has one for each launch, and where the
home cannot be written pyopencl does not even import. That code depends on the kernel's name and
arguments alone: it is made once in a process, in 0.3 ms, and the database is not opened.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from types import ModuleType
from typing import Any

import pyopencl

_NO_CACHE = "_PYOPENCL_NO_CACHE"


class _NoDatabase:
    """Stands for pyopencl's database of Python code: has nothing and keeps nothing."""

    def __getitem__(self, key: object) -> Any:
        raise KeyError(key)

    def store_if_not_present(self, key: object, value: object) -> None:
        """Keeps nothing."""


def _import_invoker() -> ModuleType:
    """Imports pyopencl's module of calling code without its database on disk.

    Only that module sees the setting: other users of pyopencl in this process keep their caches.
    """
    setting = getattr(pyopencl, _NO_CACHE, False)
    setattr(pyopencl, _NO_CACHE, True)
    try:
        from pyopencl import invoker
    finally:
        setattr(pyopencl, _NO_CACHE, setting)
    invoker.invoker_cache = _NoDatabase()
    return invoker  # type: ignore[no-any-return]


_MAKER = "generate_enqueue_and_set_args"


def remember_invokers() -> None:
    """Keeps what pyopencl makes to call kernels, where this pyopencl is known to make it so."""
    invoker = _import_invoker()
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
