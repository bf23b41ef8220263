"""Registry of op classes by domain and name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from clrt.ops.base import Op

OpClass = TypeVar("OpClass", bound=type[Op])


@dataclass
class Registry:
    """The op classes of clrt, found by domain and ONNX name; the domain ai.onnx is ""."""

    classes: dict[tuple[str, str], type[Op]] = field(default_factory=dict)

    def add(self, cls: type[Op]) -> None:
        """Adds an op class under its domain and name.

        Raises:
            ValueError: The domain and name are registered already.
        """
        key = (cls.domain, cls.name)
        if key in self.classes:
            raise ValueError(f"op {key} is registered twice")
        self.classes[key] = cls

    def find(self, domain: str, name: str) -> type[Op] | None:
        """Returns the class of op `name` in `domain`; None if clrt does not have the op."""
        return self.classes.get((domain, name))

    def named(self, name: str) -> type[Op]:
        """Returns the class of an op named "Op" (domain ai.onnx) or "domain.Op".

        Raises:
            KeyError: clrt does not have the op.
        """
        domain, _, short = name.rpartition(".")
        return self.classes[(domain, short)]


REGISTRY = Registry()


def register(cls: OpClass) -> OpClass:
    """Class decorator that adds an op to REGISTRY, under its class name unless `name` is set."""
    if "name" not in cls.__dict__:
        cls.name = cls.__name__
    REGISTRY.add(cls)
    return cls
