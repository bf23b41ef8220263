"""Runs of the project's tests on a device, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_MOST_NAMES = 50


@dataclass(frozen=True)
class Counts:
    """How tests ended.

    Attributes:
        failures: Names of those that failed, the first ones.
        note: Why there are no counts; "" where there are.
        timed_out: Whether that is for want of time.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    note: str = ""
    timed_out: bool = False


def run_tests(
    arguments: Sequence[str], environment: Mapping[str, str], most_s: float | None = None
) -> Counts:
    """The counts of one run of pytest.

    Args:
        arguments: Of pytest.
        environment: Variables besides those of this process.
        most_s: Seconds after which it is ended.
    """
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line", "-rfE"]
    try:
        done = subprocess.run(
            [*command, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=most_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Counts(note=f"took more than {most_s:.0f} s", timed_out=True)
    return read_counts(done.stdout, done.returncode)


def read_counts(output: str, code: int) -> Counts:
    """The counts in what pytest prints.

    Args:
        code: Its exit code: 0 and 1 are those of tests, 5 of none.
    """
    last = output.strip().rpartition("\n")[2]
    counts = {what: int(number) for number, what in _COUNT.findall(last)}
    if code not in (0, 1, 5):
        return Counts(note=f"pytest ended with {code}: {output.strip()[-600:]}")
    failures = tuple(_FAILED.findall(output)[:_MOST_NAMES])
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return Counts(counts.get("passed", 0), failed, counts.get("skipped", 0), failures)
