"""Caches the Python code that pyopencl generates to call a kernel, so that kernels load faster.

pyopencl reads this code from a database below the user's home. Reading takes 0.1 ms of the 0.13 ms
to create a kernel object, and a plan has a kernel object for each launch. If the home is not
writable, the import of pyopencl's generator fails. The code depends only on the kernel's name and
arguments. So this module generates it once per process, in 0.3 ms, without the database.
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
        """Does nothing, so that this database stays empty; pyopencl calls it to store code."""


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
