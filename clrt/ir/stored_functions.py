"""Texts of functions in stored plans, by which a later process finds the functions.

The text of a function is "module:name". If keyword arguments are bound to it, a JSON object of
these arguments follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
# Packages whose functions and classes a stored plan may name.
_HOMES = ("clrt.ir.", "clrt.kernels.", "clrt.plan.")
# Functions marked by `storable`, by "module:name".
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


class StorableConstant:
    """Base class of objects that may be bound to functions in stored plans."""

    def stored_fields(self) -> Mapping[str, int]:
        """Returns keyword arguments by which the constructor of the class makes an equal object."""
        raise NotImplementedError


def storable(function: F) -> F:
    """Decorator for module-level functions that stored plans may call to compute a constant."""
    _FUNCTIONS[name_of(function)] = function
    return function


def name_of(function: Callable[..., Any]) -> str:
    """Returns "module:name" of a function; "" for a lambda or local function, which has no name."""
    is_local = "<" in function.__qualname__
    return "" if is_local else f"{function.__module__}:{function.__qualname__}"


def text_of(function: Callable[..., Any]) -> str:
    """Returns the text by which stored plans refer to a function; "" if they cannot.

    The function must be `storable`, or a `partial` of such a function with keyword arguments only.
    """
    of, constants = function, {}
    if isinstance(function, partial) and not function.args:
        of, constants = function.func, function.keywords
    name = "" if isinstance(of, partial) else name_of(of)
    return with_constants(name, constants) if name in _FUNCTIONS else ""


def function_of(text: str) -> Callable[..., Any]:
    """Returns the function that a text from `text_of` refers to, with its arguments bound.

    Raises:
        ValueError: There is no such function, or the text is damaged.
    """
    name, constants = split_constants(text)
    import_home(name)
    if name not in _FUNCTIONS:
        raise ValueError(f"no function {name[:100]!r}")
    return partial(_FUNCTIONS[name], **constants) if constants else _FUNCTIONS[name]


def with_constants(name: str, constants: Mapping[str, object]) -> str:
    """Returns the text of a function with keyword arguments; "" if they cannot be stored.

    Args:
        name: "module:name" of the function; "" leads to "".
        constants: The keyword arguments.
    """
    if not name or not all(map(_is_storable, constants.values())):
        return ""
    return f"{name}{json.dumps(constants, default=_fields)}" if constants else name


def split_constants(text: str) -> tuple[str, dict[str, Any]]:
    """Splits a text from `with_constants` into "module:name" and the keyword arguments.

    Raises:
        ValueError: The text is damaged.
    """
    name, brace, arguments = text.partition("{")
    return name, json.loads(brace + arguments, object_hook=_constant) if brace else {}


def import_home(name: str) -> None:
    """Imports the module of "module:name"; ignores modules not in `_HOMES`, or not found."""
    module = name.partition(":")[0]
    if module.startswith(_HOMES):
        with suppress(ImportError):
            import_module(module)


def _is_storable(value: object) -> bool:
    if isinstance(value, str):
        return value.isidentifier()
    return value is None or type(value) in (int, float, bool) or isinstance(value, StorableConstant)


def _fields(value: StorableConstant) -> dict[str, object]:
    kind = type(value)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", **value.stored_fields()}


def _constant(fields: dict[str, Any]) -> Any:
    """Hook of the JSON decoder: creates the `StorableConstant` whose "class" an object names.

    Returns an object without "class" unchanged.

    Raises:
        ValueError: No subclass of `StorableConstant` has this name.
    """
    name = fields.pop("class", None)
    if name is None:
        return fields
    import_home(name)
    found = StorableConstant
    for kind in _subclasses(StorableConstant):
        if f"{kind.__module__}:{kind.__qualname__}" == name:
            found = kind
    if found is StorableConstant:
        raise ValueError(f"no class {name[:100]!r}")
    return found(**fields)


def _subclasses(kind: type[StorableConstant]) -> list[type[StorableConstant]]:
    return [k for child in kind.__subclasses__() for k in (child, *_subclasses(child))]
