"""Extension of Griffe, by which MkDocs shows the signatures of `clrt.util.fast_dataclass`."""

from __future__ import annotations

from typing import Any

from griffe import Alias, Extension, Module

_OURS, _STANDARD = "clrt.util.fast_dataclass.dataclass", "dataclasses.dataclass"


class FastDataclasses(Extension):
    """Presents classes decorated by `fast_dataclass.dataclass` as standard dataclasses."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Redirects the imports of the decorator in a loaded package; Griffe calls the method."""
        modules = [pkg]
        for module in modules:
            imported = module.members.get("dataclass")
            if isinstance(imported, Alias) and imported.target_path == _OURS:
                imported.target_path = _STANDARD
            modules += [m for m in module.members.values() if isinstance(m, Module)]
