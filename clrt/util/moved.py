"""Aliases for module paths of earlier releases: an old path imports the module at its new path."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:  # the import would cost every start
    Loader = object

# Current path by old path. Documentation and pickles of earlier releases contain the old ones.
MOVED = {
    "clrt.inspection": "clrt.runtime.inspection",
    "clrt.inspection.explain": "clrt.runtime.inspection.explain",
    "clrt.inspection.findings": "clrt.runtime.inspection.findings",
    "clrt.ir.code": "clrt.ir.cl_code",
    "clrt.model": "clrt.runtime.model.model",
    "clrt.picker": "clrt.tools.device_choice",
    "clrt.pickling": "clrt.runtime.model.pickling",
    "clrt.profiling": "clrt.runtime.profiling",
    "clrt.profiling.profile": "clrt.runtime.profiling.profile",
    "clrt.profiling.timings": "clrt.runtime.profiling.timings",
    "clrt.runs": "clrt.runtime.execution",
    "clrt.runs.run": "clrt.runtime.execution.run",
    "clrt.runs.state": "clrt.runtime.execution.state",
    "clrt.runtime.devices": "clrt.runtime.opencl.devices",
    "clrt.runtime.peaks": "clrt.runtime.opencl.peaks",
    "clrt.runtime.session": "clrt.runtime.opencl.session",
    "clrt.runtime.tensors": "clrt.runtime.opencl.tensors",
    "clrt.signature": "clrt.runtime.execution.signature",
    "clrt.worker": "clrt.runtime.model.worker",
}


class MovedFinder:
    """Finder for `sys.meta_path` that resolves module paths of earlier releases (`MOVED`).

    This finder must be first in `sys.meta_path`. Otherwise the default finder would find the
    modules of a package that was imported by its old path, and would load them again, as copies.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec that imports the moved module; None if `name` is not in `MOVED`."""
        new = MOVED.get(name)
        return None if new is None else ModuleSpec(name, _Alias(new))


class _Alias(Loader):
    """Loader that imports a module by its current path and registers it under an old path.

    Args:
        name: Current path of the module.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> None:
        """Returns None: the import system creates a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Imports the module by its current path and registers it under its old path."""
        sys.modules[module.__name__] = import_module(self.name)


def find_moved() -> None:
    """Installs `MovedFinder`, so that old paths can be imported in this process."""
    if MovedFinder not in sys.meta_path:
        sys.meta_path.insert(0, MovedFinder)
