"""clrt's `dataclass` makes what that of the standard library does."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from clrt.dataclass import dataclass

Make = Callable[..., Any]


def _classes(make: Make) -> dict[str, Any]:
    """Classes of each kind that clrt has, by one decorator."""

    @make(frozen=True)
    class Plain:
        """Frozen."""

        a: int
        b: str = "b"
        kind: ClassVar[int] = 3
        hidden: int = field(default=1, repr=False, compare=False)

    @make(frozen=True)
    class Inner(Plain):
        """Of a base."""

        c: tuple[int, ...] = ()
        d: list[int] = field(default_factory=list, hash=False)
        e: int = field(default=5, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "e", self.e + 1)

    @make(frozen=True)
    class Single:
        """One field."""

        x: float

    @make(frozen=True)
    class Empty:
        """None."""

    @make
    class Open:
        """Not frozen."""

        a: int
        b: dict[str, int] = field(default_factory=dict)
        made: list[int] = field(init=False, default_factory=list)
        later: int = field(init=False)

    @make(eq=False)
    class Itself:
        """Equal to itself alone."""

        a: int

    @make(frozen=True)
    class Own:
        """With methods of its own."""

        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    return {c.__name__: c for c in (Plain, Inner, Single, Empty, Open, Itself, Own)}


OURS, THEIRS = _classes(dataclass), _classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Plain", (1,), {}),
    ("Plain", (1, "c"), {"hidden": 4}),
    ("Inner", (1, "b", 2, (3,)), {"d": [4], "e": 6}),
    ("Inner", (), {"a": 1}),
    ("Single", (float("nan"),), {}),
    ("Empty", (), {}),
    ("Open", (1,), {}),
    ("Open", (1, {"x": 2}), {}),
    ("Itself", (1,), {}),
    ("Own", (1,), {}),
]


@pytest.mark.parametrize(("name", "args", "named"), CALLS)
def test_objects_are_the_same(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = (classes[name](*args, **named) for classes in (OURS, THEIRS))
    assert vars(ours) == vars(theirs) or name == "Single"  # a number that is not itself
    if name != "Open":
        assert repr(ours).rpartition(".")[2] == repr(theirs).rpartition(".")[2]
        assert (ours == copy.copy(ours)) is (theirs == copy.copy(theirs))
    assert ours != theirs or name == "Own"
    assert [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert type(ours).__match_args__ == type(theirs).__match_args__
    parameters = [list(inspect.signature(type(x)).parameters) for x in (ours, theirs)]
    assert parameters[0] == parameters[1]
    hashes = [getattr(type(x), "__hash__", None) is None for x in (ours, theirs)]
    assert hashes[0] is hashes[1] is (name == "Open")


@pytest.mark.parametrize("classes", [OURS, THEIRS])
def test_what_counts(classes: dict[str, Any]) -> None:
    plain = classes["Plain"]
    assert plain(1, hidden=2) == plain(1, hidden=3)
    assert hash(plain(1, hidden=2)) == hash(plain(1, hidden=3))
    assert plain(1) != plain(2) and plain(1) != 1
    assert replace(plain(1), b="z") == plain(1, "z")
    assert hash(classes["Inner"](1, d=[1])) == hash(classes["Inner"](1, d=[2]))
    assert classes["Single"](2.0) != classes["Single"](3.0)
    assert "hidden" not in repr(plain(1))


@pytest.mark.parametrize("classes", [OURS, THEIRS])
def test_frozen_ones_do_not_change(classes: dict[str, Any]) -> None:
    for made in (classes["Plain"](1), classes["Inner"](1)):
        for name in ("a", "other"):
            with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
                setattr(made, name, 2)
        with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
            del made.a
    made = classes["Open"](1)
    made.a = 2
    assert made.a == 2


@dataclass(frozen=True)
class _Node:
    """One that may hold itself."""

    inside: list[Any]


def test_pickles_and_circles() -> None:
    made = _Node([1])
    assert pickle.loads(pickle.dumps(made)) == made
    made.inside.append(made)
    assert repr(made) == "_Node(inside=[1, ...])"


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match=r"Plain\.__init__\(\) missing 1 required"):
        OURS["Plain"]()
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        OURS["Plain"](1, z=2)
