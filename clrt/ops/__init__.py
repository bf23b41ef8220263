"""All operators: importing this package fills the registry."""

from __future__ import annotations

import importlib
import pkgutil

from clrt.ops.base import REGISTRY

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["REGISTRY"]
