"""Public names and signatures equal the committed list."""

from __future__ import annotations

import difflib
from pathlib import Path

from tools.public_api import public_api

COMMITTED = Path(__file__).with_name("public_api.txt")


def test_public_api_matches_committed_list() -> None:
    before, now = COMMITTED.read_text("utf-8").splitlines(), public_api()
    changes = [x for x in difflib.ndiff(before, now) if x[0] in "+-"]
    assert not changes, (
        "python tools/public_api.py > tests/unit/public_api.txt if this is meant:\n"
        + ("\n".join(changes))
    )
