"""Registry of the sample functions of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from clrt.ir.op import Array, IrOp
from clrt.ops.base import Op


@dataclass(frozen=True)
class Sample:
    """One test case of an op: the op with its attributes and the inputs it gets."""

    op: IrOp
    inputs: tuple[Array | None, ...]


Good = Callable[[Any], Iterator[Sample]]
Bad = Callable[[Any], Iterator[tuple[Sample, type[Exception]]]]
GoodT = TypeVar("GoodT", bound=Good)
BadT = TypeVar("BadT", bound=Bad)

_GOOD: dict[type, Good] = {}
_BAD: dict[type, Bad] = {}


def samples_of(base: type) -> Callable[[GoodT], GoodT]:
    """Registers a function of an op class: test cases of `base` and of the classes derived from it.

    They are attribute corners, tails around tiles, broadcasting, each dtype.
    """

    def add(function: GoodT) -> GoodT:
        assert base not in _GOOD, base
        _GOOD[base] = function
        return function

    return add


def error_samples_of(base: type) -> Callable[[BadT], BadT]:
    """Registers a function of an op class: what `infer` must refuse, with the error class."""

    def add(function: BadT) -> BadT:
        assert base not in _BAD, base
        _BAD[base] = function
        return function

    return add


def samples(cls: type[Op]) -> Iterator[Sample]:
    """Returns the test cases of an op class, or of its nearest base class with test cases."""
    found = next((_GOOD[base] for base in cls.__mro__ if base in _GOOD), None)
    return iter(()) if found is None else found(cls)


def error_samples(cls: type[Op]) -> Iterator[tuple[Sample, type[Exception]]]:
    """Returns the inputs that an op must refuse, looked up like `samples`."""
    found = next((_BAD[base] for base in cls.__mro__ if base in _BAD), None)
    return iter(()) if found is None else found(cls)
