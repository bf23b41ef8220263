"""Modules `version` of packages run with the version known, as if they had asked for it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from clrt.runtime.opencl.package_versions import versions_known

NAME = "package_with_version"
ASKS = f'from importlib import metadata\n\nTEXT = metadata.version("{NAME}")\n'
OTHERWISE = f'import importlib.metadata as m\n\nTEXT = m.version("{NAME}")\n'


@pytest.mark.parametrize(
    ("source", "folders", "asks"),
    [
        (ASKS, ["2026.1"], False),
        (ASKS, ["2026.1-1"], True),
        (ASKS, ["2026.1", "2026.2"], True),
        (ASKS + "FILES = metadata.files\n", ["2026.1"], True),
        (OTHERWISE, ["2026.1"], True),
    ],
)
def test_version_is_known_unless_module_or_folder_is_unusual(
    source: str,
    folders: list[str],
    asks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / NAME
    package.mkdir()
    (package / "__init__.py").write_text(f"import {NAME}.version\n")
    (package / "version.py").write_text(source)
    for version in folders:
        folder = tmp_path / f"{NAME}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {NAME}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (NAME, f"{NAME}.version", "importlib.metadata"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    finders = list(sys.meta_path)
    with versions_known("another_package", NAME):
        imported = importlib.import_module(NAME)
    assert sys.meta_path == finders
    assert imported.version.TEXT in folders
    assert Path(imported.version.__file__) == package / "version.py"
    assert ("importlib.metadata" in sys.modules) == asks
