"""Attributes of ops: whatever makes an op, each has the Python type that its field declares.

Whoever makes an op (the importer, the text form, a pass) gets a `ModelError` for a value of another
type, so that `infer` and the kernels see integers where they count and words of a list where they
choose.
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

_SHOWN_CHARS = 40
_NOTHING = "nothing"

# Gives the value as the field has it; raises _Mismatch.
Kind: TypeAlias = Callable[[Any], Any]


class _Mismatch(Exception):
    """A value is not of the kind that a field declares; the text says what the field takes."""


def coerce_attributes(op: Any) -> None:
    """Brings the fields of a frozen dataclass to their declared types: lists become tuples, say.

    Raises:
        ModelError: One has a value of another type, or none of the values its field lists.
    """
    for name, kind in _kinds(op.__class__):
        given = getattr(op, name)
        try:
            settled = kind(given)
        except _Mismatch as error:
            title = getattr(op, "name", "") or type(op).__name__
            raise ModelError(
                f"{title}: attribute '{name}' is {shown(given)}; expected {error}."
            ) from error
        if settled is not given:
            object.__setattr__(op, name, settled)


def attribute_names(cls: type) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return _names(cls)


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls))


def shown(value: object) -> str:
    """A value in a message: never more than a few words of it."""
    text = repr(value) if isinstance(value, str | bytes | int | float) else type(value).__name__
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


@cache
def _kinds(cls: type) -> tuple[tuple[str, Kind], ...]:
    return tuple((name, _declared(_owner(cls, name), name)) for name in _names(cls))


def _owner(cls: type, name: str) -> type:
    """The class that declares a field of a dataclass: itself, or one that it inherits from."""
    return next(base for base in cls.__mro__ if name in get_annotations(base))


@cache
def _declared(owner: type, name: str) -> Kind:
    # `get_type_hints` of a class would read its class attributes, too, of which ops have many.
    field = types.SimpleNamespace(__annotations__={name: get_annotations(owner)[name]})
    return _kind(get_type_hints(field, vars(sys.modules[owner.__module__]))[name])


def _kind(hint: Any) -> Kind:
    """What a declared type takes."""
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
            settled = tuple(map(element, values))
        except _Mismatch as error:
            raise _Mismatch(f"a list of which each is {error}") from error
        # An equal tuple of equal types stays the one that other ops may share.
        return values if type(values) is tuple and all(map(is_, values, settled)) else settled

    return kind


def _any_of(kinds: Mapping[Any, Kind]) -> Kind:
    def kind(value: Any) -> Any:
        given = value.item() if isinstance(value, np.generic) else value
        exact = kinds.get(type(given))
        expected = []
        for each in kinds.values() if exact is None else (exact,):
            try:
                return each(given)
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
