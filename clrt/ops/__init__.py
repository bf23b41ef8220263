"""All operators; importing this package registers every op class."""

from __future__ import annotations

import importlib
import pkgutil

from clrt.ops.registry import REGISTRY

# Rules of import and export are loaded by the importer and the exporter.
_RULES = f"{__name__}.decompositions"

for _entry in pkgutil.iter_modules(__path__, f"{__name__}."):
    if _entry.name != _RULES:
        _module = importlib.import_module(_entry.name)
        for _inner in pkgutil.walk_packages(getattr(_module, "__path__", ()), f"{_entry.name}."):
            importlib.import_module(_inner.name)

importlib.import_module(f"{_RULES}.lowering_rules")

__all__ = ["REGISTRY"]
