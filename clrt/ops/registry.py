"""Registry of op classes by domain and name, which imports the modules of ops on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from clrt.ops.base import Op
from clrt.ops.index import OPS
from clrt.ops.module_index import ModuleIndex, import_all

OpClass = TypeVar("OpClass", bound=type[Op])


class Registry:
    """The op classes of clrt, found by domain and ONNX name; the domain ai.onnx is "".

    Attributes:
        registered: Classes by domain and name, of the modules imported so far.
    """

    def __init__(self) -> None:
        self.registered: dict[tuple[str, str], type[Op]] = {}
        self._index = ModuleIndex(OPS)

    def add(self, cls: type[Op]) -> None:
        """Adds an op class under its domain and name.

        Raises:
            ValueError: The domain and name are registered already.
        """
        key = (cls.domain, cls.name)
        if key in self.registered:
            raise ValueError(f"op {key} is registered twice")
        self.registered[key] = cls

    def find(self, domain: str, name: str) -> type[Op] | None:
        """Returns the class of op `name` in `domain`; None if clrt does not have the op."""
        self._index.load(op_title(domain, name))
        return self.registered.get((domain, name))

    def get(self, domain: str, name: str) -> type[Op]:
        """Returns the class of op `name` in `domain`.

        Raises:
            KeyError: clrt does not have the op.
        """
        self._index.load(op_title(domain, name))
        return self.registered[domain, name]

    def named(self, title: str) -> type[Op]:
        """Returns the class of an op titled "Op" (domain ai.onnx) or "domain.Op".

        Raises:
            KeyError: clrt does not have the op.
        """
        domain, _, name = title.rpartition(".")
        return self.get(domain, name)

    def all_classes(self) -> Mapping[tuple[str, str], type[Op]]:
        """Returns all op classes by domain and name, sorted; imports the modules of all ops."""
        import_all()
        return dict(sorted(self.registered.items()))


def op_title(domain: str, name: str) -> str:
    """Returns the title of an op: "Op" in the domain ai.onnx (""), else "domain.Op"."""
    return f"{domain}.{name}" if domain else name


REGISTRY = Registry()


def register(cls: OpClass) -> OpClass:
    """Class decorator that adds an op to REGISTRY, under its class name unless `name` is set."""
    if "name" not in cls.__dict__:
        cls.name = cls.__name__
    REGISTRY.add(cls)
    return cls
