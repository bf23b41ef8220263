"""Import paths of earlier releases: each imports the module where it stands now."""

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

# By old path. Documentation and pickles of earlier releases name these.
MOVED = {
    "clrt.inspection": "clrt.runtime.inspection",
    "clrt.inspection.explain": "clrt.runtime.inspection.explain",
    "clrt.inspection.findings": "clrt.runtime.inspection.findings",
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
    "clrt.runtime.tensors": "clrt.runtime.opencl.tensors",
    "clrt.signature": "clrt.runtime.execution.signature",
    "clrt.worker": "clrt.runtime.model.worker",
}


class MovedFinder:
    """Finder for `sys.meta_path` that resolves the paths in `MOVED`.

    It stands first: a package under its old name has the folder of the new one, in which the usual
    finder would find the modules once more, as copies.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec that imports the module of an old path; None for all other names."""
        new = MOVED.get(name)
        return None if new is None else ModuleSpec(name, _Alias(new))


class _Alias(Loader):
    """Loader that puts the module of another name in `sys.modules`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves it to the import system to make a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Imports the module of the new name and registers it under the old one."""
        sys.modules[module.__name__] = import_module(self.name)


def find_moved() -> None:
    """Makes the old paths importable in this process."""
    if MovedFinder not in sys.meta_path:
        sys.meta_path.insert(0, MovedFinder)
