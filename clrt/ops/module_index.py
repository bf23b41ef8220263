"""Imports modules of clrt.ops on demand, by keys such as op names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from clrt.ops.index import FUSION_RULES, LOWERING_RULES, OPS

_PACKAGE = "clrt.ops."


class ModuleIndex:
    """Maps keys, such as op names, to the modules of clrt.ops that are needed for them.

    Args:
        listed: Keys by module, relative to clrt.ops; the keys are separated by whitespace.
    """

    def __init__(self, listed: Mapping[str, str]) -> None:
        self._names: dict[str, list[str]] = {}
        for module, keys in sorted(listed.items()):
            for key in keys.split():
                self._names.setdefault(key, []).append(_PACKAGE + module)
        # Modules by key, entered only after the import: until then, another thread would find
        # classes of a module whose functions are not all defined yet.
        self._modules: dict[str, tuple[ModuleType, ...]] = {}

    def load(self, key: str) -> tuple[ModuleType, ...]:
        """Imports and returns the modules of a key, sorted by name; () if the key is not listed."""
        modules = self._modules.get(key)
        if modules is None:
            modules = tuple(map(import_module, self._names.get(key, ())))
            if modules:
                self._modules[key] = modules
        return modules

    def load_all(self) -> None:
        """Imports all modules."""
        for key in self._names:
            self.load(key)


def import_all() -> None:
    """Imports all ops, lowering rules and launch fusion rules.

    Afterwards all tunables are declared, and all op classes are registered.
    """
    for listed in (OPS, LOWERING_RULES, FUSION_RULES):
        ModuleIndex(listed).load_all()


def class_key(cls: type) -> str:
    """Returns the key of a class of clrt.ops: its module relative to clrt.ops, and its name."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix(_PACKAGE)
