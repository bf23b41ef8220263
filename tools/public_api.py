"""Lists the public API: each documented name with its signature, public members included.

    python tools/public_api.py > tests/unit/public_api.txt

Public are the names in `clrt.__all__` and those that the reference pages document, except the
contracts of ops, passes and kernels in `docs/reference/extending.md`, which may change at any time.
`tests/unit/test_public_api.py` compares. A change of the file is a change of the API and belongs in
the changelog.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"


def documented_names() -> list[str]:
    """Returns the dotted names of the reference pages and of `clrt.__all__`, sorted."""
    import clrt

    names = {f"clrt.{name}" for name in clrt.__all__}
    for page in REFERENCE.glob("*.md"):
        if page.name != "extending.md":
            names |= set(re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE))
    return sorted(names)


def resolve(name: str) -> Any:
    """Imports the object of a dotted name."""
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ImportError:
        return getattr(importlib.import_module(module), attribute)


def describe(name: str, item: Any) -> Iterator[str]:
    """Yields a line for an object, and for a class one for each public member."""
    if isinstance(item, type):
        own = [base for base in reversed(item.__mro__) if base.__module__.startswith("clrt")]
        members = {key: value for base in own for key, value in vars(base).items()}
        bases = [b.__name__ for b in item.__mro__[1:] if issubclass(b, BaseException)]
        yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
        if issubclass(item, Enum):
            yield from (f"{name}.{member}" for member in item.__members__)
        elif "__init__" in members:
            yield f"{name}{signature(item)}"
        if dataclasses.is_dataclass(item):
            yield from (f"{name}.{f.name}: {f.type}" for f in dataclasses.fields(item))
        for member, value in sorted(members.items()):
            yield from _describe_member(f"{name}.{member}", member, value)
    elif callable(item):
        yield f"{name}{signature(item)}"
    else:
        yield name


def _describe_member(name: str, member: str, value: Any) -> Iterator[str]:
    if member.startswith("_"):
        return
    if isinstance(value, property):
        annotation = inspect.signature(value.fget).return_annotation if value.fget else "Any"
        yield f"{name}: {annotation}"
    elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
        function = value if inspect.isfunction(value) else value.__func__
        yield f"{name}{signature(function)}"


class _Annotation(str):
    """Text of an annotation that prints without quotation marks."""

    def __repr__(self) -> str:
        return str(self)


def signature(item: Any) -> str:
    """Returns a signature as text, on one line; defaults by their `repr`, without addresses."""
    plain = inspect.signature(item)
    parameters = [
        p.replace(annotation=_Annotation(p.annotation)) if isinstance(p.annotation, str) else p
        for p in plain.parameters.values()
    ]
    returned = plain.return_annotation
    if isinstance(returned, str):
        returned = _Annotation(returned)
    text = str(plain.replace(parameters=parameters, return_annotation=returned))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def public_api() -> list[str]:
    """Returns one line for each public name, sorted."""
    return sorted({line for name in documented_names() for line in describe(name, resolve(name))})


if __name__ == "__main__":
    print("\n".join(public_api()))
