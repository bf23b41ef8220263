"""All operators: importing this package fills the registry."""

from __future__ import annotations

import importlib
import pkgutil

from clrt.ops.registry import REGISTRY

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["REGISTRY"]
