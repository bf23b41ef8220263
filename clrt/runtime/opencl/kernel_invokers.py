"""Caches the Python code that pyopencl generates for each kernel object, to create objects faster.

pyopencl reads the code that would call a kernel from a database below the user's home. That takes
0.1 ms of the 0.13 ms to create a kernel object, and a plan has a kernel object for each launch. It
also fails at import if the home is not writable. The code depends only on the kernel's name and
arguments, so it is generated once per process, in 0.3 ms, and the database is not opened.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from types import ModuleType
from typing import Any

import pyopencl

_NO_CACHE = "_PYOPENCL_NO_CACHE"


class _NoDatabase:
    """Empty replacement for pyopencl's on-disk database of generated code."""

    def __getitem__(self, key: object) -> Any:
        raise KeyError(key)

    def store_if_not_present(self, key: object, value: object) -> None:
        """Stores nothing: the database stays empty."""


def _import_invoker() -> ModuleType:
    """Imports pyopencl's code generator for kernel calls, without its database on disk.

    The setting that disables the database is reset after the import, so that other users of
    pyopencl in this process keep their caches.
    """
    setting = getattr(pyopencl, _NO_CACHE, False)
    setattr(pyopencl, _NO_CACHE, True)
    try:
        from pyopencl import invoker
    finally:
        setattr(pyopencl, _NO_CACHE, setting)
    invoker.invoker_cache = _NoDatabase()
    return invoker  # type: ignore[no-any-return]


_GENERATOR = "generate_enqueue_and_set_args"


def remember_invokers() -> None:
    """Makes pyopencl cache the code that it generates for kernel calls, in memory.

    Does nothing if this version of pyopencl has no such generator.
    """
    invoker = _import_invoker()
    generate = getattr(invoker, _GENERATOR, None)
    if generate is not None and not hasattr(generate, "__wrapped__"):
        setattr(invoker, _GENERATOR, _cached(generate))


def _cached(generate: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with its results cached by arguments."""
    results: dict[Hashable, Any] = {}

    @wraps(generate)
    def cached(*args: Any, **options: Any) -> Any:
        # `devs` only decides on a warning about the size of arguments.
        key = (args, *sorted((k, v) for k, v in options.items() if k != "devs"))
        try:
            hash(key)
        except TypeError:  # another version of pyopencl, with other arguments
            return generate(*args, **options)
        if key not in results:
            results[key] = generate(*args, **options)
        return results[key]

    return cached
