"""Short example programs, run from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from clrt.models.locate import find_model

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_op_becomes_one_kernel() -> None:
    printed = _run("examples/own_op.py")
    assert "2.986" in printed  # Mish of 3
    assert "1 node, 1 kernel launch, 0 nodes on the host" in printed


def test_async_app_serves_while_event_loop_runs() -> None:
    printed = _run("examples/async_app.py", str(find_model("all-MiniLM-L6-v2")), "--device", "cpu")
    assert "8 requests" in printed
    assert int(printed.split()[-2]) > 0  # ticks of the clock


def test_readme_lists_every_example() -> None:
    text = (ROOT / "examples" / "README.md").read_text("utf-8")
    entries = [p.name for p in (ROOT / "examples").iterdir() if p.name[0] not in "_."]
    assert not [name for name in entries if name != "README.md" and f"`{name}" not in text]
