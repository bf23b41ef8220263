"""Imports packages without importlib.metadata, which only tells their version and takes 15 ms."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_IMPORT = "from importlib import metadata\n"


@contextmanager
def versions_known(*packages: str) -> Iterator[None]:
    """Context manager for the import of packages whose module `version` asks importlib.metadata.

    In the block, such a module runs with the version that is in the name of the package's folder of
    metadata. Without effect if importlib.metadata is imported already.

    Args:
        packages: Names of packages, and of their distributions.
    """
    finder = _VersionFinder(packages)
    if "importlib.metadata" not in sys.modules:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _VersionFinder(MetaPathFinder):
    """Finds the modules `version` of packages, for `_VersionLoader`."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._names = {f"{package}.version": package for package in packages}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns how to load a module of versions; None for others, or if metadata are unclear."""
        package = self._names.get(fullname)
        if package is None or not path:
            return None
        file = Path(path[0], "version.py")
        folders = [f.name for f in file.parents[1].glob(f"{package}-*.dist-info")]
        known = re.fullmatch(rf"{package}-([0-9.]+[a-z0-9]*)\.dist-info", "".join(folders))
        if known is None or not file.is_file():
            return None
        loader = _VersionLoader(fullname, str(file), package, known[1])
        return spec_from_file_location(fullname, file, loader=loader)


class _VersionLoader(SourceFileLoader):
    """Loads a module `version`, with the version in place of the call that asks for it."""

    def __init__(self, name: str, path: str, package: str, version: str) -> None:
        super().__init__(name, path)
        self._question, self._answer = f'metadata.version("{package}")', repr(version)

    def exec_module(self, module: ModuleType) -> None:
        source = self.get_data(self.path).decode()
        if source.count("metadata") == 2 and _IMPORT in source and self._question in source:
            text = source.replace(_IMPORT, "\n").replace(self._question, self._answer)
            exec(compile(text, self.path, "exec"), vars(module))
        else:  # another version of the package
            super().exec_module(module)
