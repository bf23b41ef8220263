"""Coerces the attributes of ops to the Python types that their fields declare.

Attributes are coerced whenever an op is constructed, by the importer, the text form or a pass. A
value of another type raises a `ModelError`, so that `infer` and the kernels can rely on the types.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from inspect import get_annotations
from numbers import Integral, Real
from operator import is_
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import numpy as np

from clrt.errors import ModelError

# Maximum length of an attribute's value in a message, in characters.
_SHOWN_CHARS = 40
_NOTHING = "nothing"

# Converts a value to the type of a field; raises _Mismatch if it does not fit.
Kind: TypeAlias = Callable[[Any], Any]


class _Mismatch(Exception):
    """Raised if an attribute's value does not fit its declared type; names the expected values."""


def coerce_attributes(op: Any) -> None:
    """Converts the attributes of an op to their declared types, such as lists to tuples, in place.

    Args:
        op: A frozen dataclass; its fields are the attributes.

    Raises:
        ModelError: A value has another type, or is not one of the values that its field allows.
    """
    for name, kind in _kinds(op.__class__):
        value = getattr(op, name)
        try:
            coerced = kind(value)
        except _Mismatch as error:
            title = getattr(op, "name", "") or type(op).__name__
            raise ModelError(
                f"{title}: attribute '{name}' is {shown(value)}; expected {error}."
            ) from error
        if coerced is not value:
            object.__setattr__(op, name, coerced)


def attribute_names(cls: type) -> tuple[str, ...]:
    """Returns the field names of an op class, a dataclass, in order."""
    return _names(cls)


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def shown(value: object) -> str:
    """Returns an attribute's value as text for a message.

    The text is the repr of a string, bytes or number, and the type's name of any other value. If
    longer than 40 characters, it is cut there and ends in "…".
    """
    text = repr(value) if isinstance(value, str | bytes | int | float) else type(value).__name__
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


@cache
def _kinds(cls: type) -> tuple[tuple[str, Kind], ...]:
    return tuple((name, _declared(_owner(cls, name), name)) for name in _names(cls))


def _owner(cls: type, name: str) -> type:
    """Returns the class that declares a dataclass field: `cls` or one of its bases."""
    return next(base for base in cls.__mro__ if name in get_annotations(base))


@cache
def _declared(owner: type, name: str) -> Kind:
    # `get_type_hints` of the class would also evaluate the many class attributes of ops.
    field = types.SimpleNamespace(__annotations__={name: get_annotations(owner)[name]})
    return _kind(get_type_hints(field, vars(sys.modules[owner.__module__]))[name])


def _kind(hint: Any) -> Kind:
    """Returns a function that converts attribute values to the type of an annotation.

    The function raises `_Mismatch` for a value that does not fit the type.
    """
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _one_of(args)
    if origin is tuple:
        return _list_of(_kind(args[0]))
    if origin in (Union, types.UnionType):
        return _any_of({a: _kind(a) for a in args})
    return _instance_of(hint)


def _integer(value: Any) -> int:
    if type(value) is not int and not isinstance(value, Integral | np.bool_):
        raise _Mismatch("an integer")
    number = int(value)
    if not -(1 << 63) <= number < 1 << 64:
        raise _Mismatch("an integer of 64 bits")
    return number


def _truth(value: Any) -> bool:
    if type(value) is not bool and not isinstance(value, Integral | np.bool_):
        raise _Mismatch("0 or 1")
    return bool(value)


def _number(value: Any) -> float:
    if type(value) is not float and not isinstance(value, Real):
        raise _Mismatch("a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _Mismatch("a number of 64 bits") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Mismatch("text")
    return str(value)


def _none(value: Any) -> None:
    if value is not None:
        raise _Mismatch(_NOTHING)


def _one_of(choices: tuple[Any, ...]) -> Kind:
    expected = f"one of {', '.join(map(str, choices))}"

    def kind(value: Any) -> Any:
        if not isinstance(value, str | Integral) or value not in choices:
            raise _Mismatch(expected)
        return type(choices[0])(value)

    return kind


def _list_of(element: Kind) -> Kind:
    def kind(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, tuple | list):
            raise _Mismatch("a list")
        try:
            coerced = tuple(map(element, values))
        except _Mismatch as error:
            raise _Mismatch(f"a list of which each is {error}") from error
        # A tuple that needs no conversion is returned itself, since ops may share it.
        return values if type(values) is tuple and all(map(is_, values, coerced)) else coerced

    return kind


def _any_of(kinds: Mapping[Any, Kind]) -> Kind:
    def kind(value: Any) -> Any:
        python_value = value.item() if isinstance(value, np.generic) else value
        exact = kinds.get(type(python_value))
        expected = []
        for each in kinds.values() if exact is None else (exact,):
            try:
                return each(python_value)
            except _Mismatch as error:
                expected.append(str(error))
        raise _Mismatch(" or ".join(e for e in expected if e != _NOTHING))

    return kind


def _instance_of(cls: type) -> Kind:
    def kind(value: Any) -> Any:
        if not isinstance(value, cls):
            raise _Mismatch(f"a {cls.__name__}")
        return value

    return kind


_SCALARS: dict[Any, Kind] = {
    int: _integer,
    bool: _truth,
    float: _number,
    str: _text,
    type(None): _none,
}
