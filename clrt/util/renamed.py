"""`renamed`: keeps former names of attributes and arguments for one minor release."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from clrt.errors import InputError

T = TypeVar("T", bound=type)


def renamed(**names: str) -> Callable[[T], T]:
    """Class decorator by which former names of attributes and methods keep working.

    Reading a former name emits a DeprecationWarning. Pickles with former attribute names load.

    Args:
        **names: The present name of each former name.
    """

    def decorate(cls: T) -> T:
        def set_state(self: Any, state: Mapping[str, Any]) -> None:
            vars(self).update({names.get(name, name): value for name, value in state.items()})

        for former, present in names.items():
            setattr(cls, former, property(_reader(cls.__name__, former, present)))
        cls.__setstate__ = set_state  # type: ignore[attr-defined]
        return cls

    return decorate


def renamed_arguments(**names: str) -> Callable[[T], T]:
    """Class decorator by which former names of constructor arguments work, with a warning.

    Args:
        **names: The present name of each former name.
    """

    def decorate(cls: T) -> T:
        present_init = cls.__init__  # type: ignore[misc]

        @wraps(present_init)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            present_init(self, *args, **present_names(cls.__name__, names, kwargs, stacklevel=3))

        cls.__init__ = init  # type: ignore[misc]
        return cls

    return decorate


def present_names(
    owner: str, names: Mapping[str, str], given: Mapping[str, Any], stacklevel: int = 2
) -> dict[str, Any]:
    """Returns keyword arguments under their present names; warns for each former name.

    Args:
        owner: Class or function that takes the arguments, for the warning.
        names: The present name of each former name.
        given: Arguments by present or former name.
        stacklevel: Number of call frames from this function to the code that the warning names.

    Raises:
        InputError: An argument is given by both names.
    """
    for former in given.keys() & names.keys():
        if names[former] in given:
            raise InputError(f"{owner} got {names[former]} and its former name {former}; give one.")
        _warn(owner, former, names[former], stacklevel + 1)
    return {names.get(name, name): value for name, value in given.items()}


def _reader(owner: str, former: str, present: str) -> Callable[[Any], Any]:
    """Returns the getter of an attribute's former name; it warns and reads the present name."""

    def read(self: Any) -> Any:
        _warn(owner, former, present, 3)
        return getattr(self, present)

    read.__doc__ = f"Deprecated name of `{present}`; reading it warns."
    return read


def _warn(owner: str, former: str, present: str, stacklevel: int) -> None:
    message = f"{owner}.{former} is now called {present}; the former name goes in the next release"
    warnings.warn(message, DeprecationWarning, stacklevel)
