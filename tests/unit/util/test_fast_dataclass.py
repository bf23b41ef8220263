"""`fast_dataclass.dataclass` behaves as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import pytest

from clrt.util import fast_dataclass

BOTH = (dataclasses.dataclass, fast_dataclass.dataclass)


def _point(dataclass: Callable[..., Any], **options: bool) -> Any:
    """Returns a class with each kind of field, and a subclass that overrides a default."""

    @dataclass(**options)
    class Base:
        """A base."""

        kind: ClassVar[str] = "base"
        x: int
        hidden: list[int] = field(default_factory=list, repr=False, compare=False, kw_only=True)
        y: float = 0.5
        made: tuple[int, ...] = field(default_factory=tuple, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    @dataclass(**options)
    class Point(Base):
        """A point."""

        y: float = 2.0
        name: str = field(default="p", hash=False, metadata={"unit": "none"})

    return Point


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


USES: dict[str, Callable[[Any], Any]] = {
    "repr": lambda p: repr(p(1, name="a")),
    "equal": lambda p: (
        p(1) == p(1),
        p(1) == p(2),
        p(1) != p(1),
        p(1) == "p",
        p(1, hidden=[1]) == p(1),
    ),
    "hash": lambda p: [hash(x) == hash(y) for x, y in pairwise((p(1), p(1, name="q"), p(2)))],
    "defaults": lambda p: vars(p(3)),
    "new defaults": lambda p: p(1).hidden is not p(1).hidden,
    "keywords": lambda p: vars(p(x=1, y=2, name="n", hidden=[1])),
    "missing argument": lambda p: p(),
    "unknown argument": lambda p: p(1, z=2),
    "keyword only": lambda p: p(1, 2.0, "n", [1]),
    "set field": lambda p: setattr(p(1), "x", 2),
    "set other": lambda p: setattr(p(1), "other", 2),
    "delete field": lambda p: delattr(p(1), "x"),
    "replace": lambda p: vars(replace(p(1, name="a"), x=5)),
    "copy": lambda p: vars(copy.deepcopy(p(1, hidden=[1]))),
    "dict": lambda p: asdict(p(1)),
    "fields": lambda p: [
        (f.name, f.type, f.init, f.repr, f.compare, f.hash, f.kw_only, dict(f.metadata))
        for f in fields(p)
    ],
    "class attributes": lambda p: (p.y, p.name, p.kind, hasattr(p, "made"), hasattr(p, "hidden")),
    "match": lambda p: p.__match_args__,
    "signature": lambda p: str(inspect.signature(p)),
    "hints": lambda p: typing.get_type_hints(p.__init__, {"int": int}),
    "names": lambda p: (p.__init__.__qualname__, p.__init__.__module__, p.__init__.__name__),
    "is dataclass": lambda p: (is_dataclass(p), is_dataclass(p(1)), p.__dataclass_params__.frozen),
    "subclass": lambda p: vars(type("Sub", (p,), {})(1)),
    "subclass sets": lambda p: setattr(type("Sub", (p,), {})(1), "other", 3),
    "subclass equals": lambda p: type("Sub", (p,), {})(1) == p(1),
    "super": lambda p: type("Sub", (p,), {"__init__": lambda s: p.__init__(s, 4)})().x,
}


@pytest.mark.parametrize(
    "options", [{}, {"frozen": True}, {"eq": False}, {"frozen": True, "eq": False}]
)
@pytest.mark.parametrize("use", USES)
def test_dataclass_behaves_as_standard_one(use: str, options: dict[str, bool]) -> None:
    expected, found = (_outcome(lambda d=d: USES[use](_point(d, **options))) for d in BOTH)
    assert found == expected


@pytest.mark.parametrize(("base", "derived"), [(0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("frozen", [True, False])
def test_both_dataclasses_inherit_from_each_other(base: int, derived: int, frozen: bool) -> None:
    point = _point(BOTH[base], frozen=frozen)

    @BOTH[derived](frozen=frozen)
    class Named(point):  # type: ignore[misc]
        """A point."""

        color: str = "red"

    assert repr(Named(1, color="b")).endswith("Named(x=1, y=2.0, made=(), name='p', color='b')")
    assert Named(1) == Named(1) != Named(2)
    if frozen:
        with pytest.raises(FrozenInstanceError):
            Named(1).color = "green"
    with pytest.raises(TypeError, match="frozen"):
        BOTH[derived](frozen=not frozen)(type("Other", (point,), {"__annotations__": {}}))


def test_explicit_methods_are_kept() -> None:
    @fast_dataclass.dataclass(frozen=True)
    class Own:
        """Has own methods."""

        x: int

        def __init__(self) -> None:
            object.__setattr__(self, "x", 7)

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 3

        def __repr__(self) -> str:
            return "own"

    assert (Own().x, Own() == 5, hash(Own()), repr(Own())) == (7, True, 3, "own")


@pytest.mark.parametrize("dataclass", BOTH)
def test_wrong_defaults_are_refused(dataclass: Any) -> None:
    with pytest.raises(TypeError):
        dataclass(type("A", (), {"__annotations__": {"x": "int", "y": "int"}, "x": 1}))
    with pytest.raises(ValueError, match="default_factory"):
        dataclass(type("A", (), {"__annotations__": {"x": "list[int]"}, "x": []}))
    with pytest.raises(TypeError):
        dataclass(type("A", (), {"x": field(default=1)}))


@fast_dataclass.dataclass(frozen=True)
class Picklable:
    """A class that pickle finds by name."""

    x: int
    y: tuple[int, ...] = ()


def test_instances_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Picklable(1, (2,)))) == Picklable(1, (2,))


def test_recursive_repr_ends() -> None:
    @fast_dataclass.dataclass
    class Loop:
        """Holds itself."""

        other: Any = None

    loop = Loop()
    loop.other = loop
    assert repr(loop).endswith("Loop(other=...)")
