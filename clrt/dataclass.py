"""`dataclass` of the standard library, made in a third of its time.

clrt has some 400 such classes. Until Python 3.13 the library compiles six functions for each, which
takes two fifths of the time of importing clrt. Here one is compiled, and the others are closures.
What inherits from such a class, and is one itself, is made here, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """As `dataclasses.dataclass`; who wants slots or an order takes that one."""
        if cls is None:
            return lambda cls: _made(cls, frozen, eq)
        return _made(cls, frozen, eq)


_Method = Callable[..., Any]
# What a parameter is that was not given, and has a factory.
_ABSENT = object()


def _made(cls: type, frozen: bool, eq: bool) -> type:
    own = dict(vars(cls))
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    found = dataclasses.fields(cls)
    methods = {"__init__": _init(cls, found, frozen), "__repr__": _repr(found)}
    if eq:
        methods["__eq__"] = _eq(found)
        if own.get("__hash__") is None:  # so it is where there is an __eq__ alone
            cls.__hash__ = _hash(found) if frozen else None  # type: ignore[assignment]
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _frozen(cls, found)
    for name, method in methods.items():
        if name not in own:
            method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
    return cls


def _init(cls: type, found: tuple[Field[Any], ...], frozen: bool) -> _Method:
    names: dict[str, Any] = {"__name__": cls.__module__, "_set_": object.__setattr__}
    names["_absent_"] = _ABSENT
    positional = [_parameter(f, names) for f in found if f.init and not f.kw_only]
    by_name = [_parameter(f, names) for f in found if f.init and f.kw_only]
    params = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    body = [
        f"_set_(self, {name!r}, {value})" if frozen else f"self.{name} = {value}"
        for name, value in _values(found, names)
    ]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({params}):\n " + "\n ".join(body or ["pass"]), names)
    made: _Method = names["__init__"]
    return made


def _parameter(of: Field[Any], names: dict[str, Any]) -> str:
    if of.default is not MISSING:
        names[f"_{of.name}_"] = of.default
        return f"{of.name}=_{of.name}_"
    return of.name if of.default_factory is MISSING else f"{of.name}=_absent_"


def _values(found: tuple[Field[Any], ...], names: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What __init__ sets each field to, as code."""
    for each in found:
        name = each.name
        if each.default_factory is not MISSING:
            names[f"_{name}_"] = each.default_factory
            made = f"_{name}_()"
            yield name, f"{made} if {name} is _absent_ else {name}" if each.init else made
        elif each.init:
            yield name, name


def _repr(found: tuple[Field[Any], ...]) -> _Method:
    shown = [f.name for f in found if f.repr]

    @recursive_repr()
    def method(self: Any) -> str:
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({inside})"

    return method


def _getter(names: list[str]) -> Callable[[Any], Any]:
    """Gives a tuple: of the attributes of an object, or of one of them twice."""
    return attrgetter(*names, *names[: len(names) == 1]) if names else lambda _: ()


def _eq(found: tuple[Field[Any], ...]) -> _Method:
    get = _getter([f.name for f in found if f.compare])

    def method(self: Any, other: Any) -> Any:
        return get(self) == get(other) if other.__class__ is self.__class__ else NotImplemented

    return method


def _hash(found: tuple[Field[Any], ...]) -> _Method:
    get = _getter([f.name for f in found if (f.compare if f.hash is None else f.hash)])
    return lambda self: hash(get(self))


def _frozen(cls: Any, found: tuple[Field[Any], ...]) -> tuple[_Method, _Method]:
    names = frozenset(f.name for f in found)

    def set_(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return set_, delete
