"""All expansions: importing this package fills their registry."""

from __future__ import annotations

import importlib
import pkgutil

from clrt.importer.expansions.body import expand, expanded_ops, has_expansion, is_dated

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["expand", "expanded_ops", "has_expansion", "is_dated"]
