"""Registry of op classes by domain and name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from clrt.ops.base import Op

OpClass = TypeVar("OpClass", bound=type[Op])


@dataclass
class Registry:
    """Op classes by (domain, ONNX name); the domain ai.onnx is ""."""

    classes: dict[tuple[str, str], type[Op]] = field(default_factory=dict)

    def add(self, cls: type[Op]) -> None:
        """Adds an op class.

        Raises:
            ValueError: The domain and name are registered already.
        """
        key = (cls.domain, cls.name)
        if key in self.classes:
            raise ValueError(f"op {key} is registered twice")
        self.classes[key] = cls

    def find(self, domain: str, name: str) -> type[Op] | None:
        """Returns the op class, or None if clrt does not have the op."""
        return self.classes.get((domain, name))

    def named(self, name: str) -> type[Op]:
        """Returns the class of a name "Op" or "domain.Op", as the IR's text form prints it.

        Raises:
            KeyError: clrt does not have the op.
        """
        domain, _, short = name.rpartition(".")
        return self.classes[(domain, short)]


REGISTRY = Registry()


def register(cls: OpClass) -> OpClass:
    """Class decorator: names the op after its class unless `name` is set, and registers it."""
    if "name" not in cls.__dict__:
        cls.name = cls.__name__
    REGISTRY.add(cls)
    return cls
