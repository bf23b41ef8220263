"""`dataclass`: as that of the standard library, but defining a class takes a tenth of the time.

The standard library compiles six methods for each class when its module is imported, which took
half of the time of importing clrt. Here a method is compiled when it is first used, or is a closure
over the names of the fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from inspect import get_annotations
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, cast

_FIELDS, _PARAMS = "__dataclass_fields__", "__dataclass_params__"

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, eq=True):
        """Class decorator with the effect of `dataclasses.dataclass`.

        InitVar is not supported.

        Args:
            cls: Class; None if the decorator is called with options.
            frozen: Whether instances are immutable.
            eq: Whether instances are compared by their fields; with `frozen`, also hashed.
        """

        if cls is not None:
            return _define(cls, frozen, eq)
        return lambda cls: _define(cls, frozen, eq)


def _define(cls: Any, frozen: bool, eq: bool) -> Any:
    """Turns a class into a dataclass, in place; returns it.

    Raises:
        TypeError: A frozen class inherits from one that is not frozen or the reverse, or a field
            without default follows one with a default.
    """
    members = dict(vars(cls))
    has_hash = members.get("__hash__") is not None
    _collect_fields(cls, frozen, eq)
    own = fields(cls)
    positional = [f for f in own if f.init and not f.kw_only]
    _check_defaults(positional)
    cls.__match_args__ = tuple(f.name for f in positional)  # type: ignore[misc]
    if "__init__" not in members:
        cls.__init__ = _LazyMethod(cls, "__init__", lambda: _compile_init(cls, frozen))
    if "__repr__" not in members:
        cls.__repr__ = _make_repr(tuple(f.name for f in own if f.repr))
    if eq and "__eq__" not in members:
        cls.__eq__ = _LazyMethod(cls, "__eq__", lambda: _compile_eq(cls))
    if eq and not has_hash:
        cls.__hash__ = _LazyMethod(cls, "__hash__", lambda: _compile_hash(cls)) if frozen else None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _make_guards(cls, frozenset(f.name for f in own))
    return cls


def _collect_fields(cls: Any, frozen: bool, eq: bool) -> None:
    """Sets the attributes of `cls` by which the functions of `dataclasses` find its fields.

    The standard library finds the fields in a copy of the class without bases and methods, for
    which it compiles nothing.

    Raises:
        TypeError: A frozen class inherits from one that is not frozen, or the reverse.
    """
    members = vars(cls)
    annotations = get_annotations(cls)
    copied = {n: x for n, x in members.items() if n in annotations or isinstance(x, Field)}
    copied |= {"__module__": cls.__module__, "__annotations__": annotations, "__doc__": "A copy."}
    copy: Any = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)(
        type(cls.__name__, (), copied)
    )
    found: dict[str, Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:
        if _FIELDS in vars(base):
            found |= vars(base)[_FIELDS]
            if vars(base)[_PARAMS].frozen != frozen:
                raise TypeError(
                    f"{cls.__name__} and its base {base.__name__}: one is frozen, one is not"
                )
    params = copy.__dataclass_params__
    params.frozen, params.eq, params.init, params.repr = frozen, eq, True, True
    setattr(cls, _FIELDS, found | getattr(copy, _FIELDS))
    setattr(cls, _PARAMS, params)
    if hasattr(copy, "__replace__"):  # Python 3.13
        cls.__replace__ = copy.__replace__
    for name, value in copied.items():
        if isinstance(value, Field) and value.default is MISSING:
            delattr(cls, name)
        elif isinstance(value, Field):
            setattr(cls, name, value.default)


def _check_defaults(positional: Iterable[Field[Any]]) -> None:
    """Checks that no field without default follows one with a default."""
    optional = ""
    for field in positional:
        if field.default is not MISSING or field.default_factory is not MISSING:
            optional = field.name
        elif optional:
            raise TypeError(f"field {field.name!r} without default follows {optional!r}")


class _Factory:
    """Default in the signature of `__init__` for a field with a `default_factory`."""

    def __repr__(self) -> str:
        return "<factory>"


class _LazyMethod:
    """Descriptor in place of a method of a dataclass, which it compiles at the first use.

    Args:
        cls: The dataclass.
        name: Name of the method.
        make: Compiles the method.
    """

    def __init__(self, cls: Any, name: str, make: Callable[[], Callable[..., Any]]) -> None:
        self._cls, self._name, self._make = cls, name, make

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if vars(self._cls).get(self._name) is self:
            method = self._make()
            method.__qualname__ = f"{self._cls.__qualname__}.{self._name}"
            method.__module__ = self._cls.__module__
            setattr(self._cls, self._name, method)
        method = vars(self._cls)[self._name]
        return method if instance is None else method.__get__(instance, owner)


def _compile_init(cls: Any, frozen: bool) -> Callable[..., None]:
    """Returns the `__init__` of a dataclass: its parameters are the fields."""
    known: dict[str, Any] = {"FACTORY_": _Factory(), "set_": object.__setattr__}
    first: list[str] = []
    last: list[str] = []
    body: list[str] = []
    for field in fields(cls):
        name = field.name
        default, factory = f"default_{name}", f"factory_{name}"
        if field.default_factory is not MISSING:
            known[factory] = field.default_factory
        if not field.init and field.default_factory is MISSING:
            continue
        value = name
        if field.init:
            parameter = name
            if field.default is not MISSING:
                known[default] = field.default
                parameter = f"{name}={default}"
            elif field.default_factory is not MISSING:
                parameter = f"{name}=FACTORY_"
                value = f"{factory}() if {name} is FACTORY_ else {name}"
            (last if field.kw_only else first).append(parameter)
        else:
            value = f"{factory}()"
        body.append(f"set_(self_, {name!r}, {value})" if frozen else f"self_.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self_.__post_init__()")
    parameters = ", ".join(["self_", *first, *(["*", *last] if last else [])])
    lines = "\n ".join(body or ["pass"])
    init = _compile(f"def __init__({parameters}):\n {lines}", known)
    init.__annotations__ = {f.name: f.type for f in fields(cls) if f.init} | {"return": None}
    return init


def _compile_eq(cls: Any) -> Callable[..., bool]:
    names = [f.name for f in fields(cls) if f.compare]
    mine, theirs = (f"({''.join(f'{x}.{n}, ' for n in names)})" for x in ("self", "other"))
    return _compile(
        "def __eq__(self, other):\n"
        f" return {mine} == {theirs} if other.__class__ is self.__class__ else NotImplemented"
    )


def _compile_hash(cls: Any) -> Callable[..., int]:
    names = (f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash))
    return _compile(f"def __hash__(self):\n return hash(({''.join(f'self.{n}, ' for n in names)}))")


def _compile(source: str, known: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Returns the function that `source` defines, with the globals `known`."""
    defined: dict[str, Any] = {}
    exec(source, {} if known is None else known, defined)
    (function,) = defined.values()
    return cast("Callable[..., Any]", function)


def _make_repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    @recursive_repr()
    def __repr__(self: Any) -> str:
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({values})"

    return __repr__


def _make_guards(cls: Any, names: frozenset[str]) -> tuple[Callable[..., None], ...]:
    """Returns `__setattr__` and `__delattr__` of a frozen dataclass, which refuse its fields."""

    def __setattr__(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__
