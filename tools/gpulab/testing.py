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
    """Results of a test run.

    Attributes:
        failures: Names of failed tests, the first ones.
        note: Why there are no counts; "" if there are.
        timed_out: Whether that is because of a timeout.
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
    """Runs pytest once and returns its counts.

    Args:
        arguments: Arguments of pytest.
        environment: Additional environment variables.
        most_s: Timeout in seconds.
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
    """Parses the counts that pytest prints.

    Args:
        code: Its exit code: 0 and 1 with results, 5 without tests.
    """
    last = output.strip().rpartition("\n")[2]
    counts = {what: int(number) for number, what in _COUNT.findall(last)}
    if code not in (0, 1, 5):
        return Counts(note=f"pytest ended with {code}: {output.strip()[-600:]}")
    failures = tuple(_FAILED.findall(output)[:_MOST_NAMES])
    failed = counts.get("failed", 0) + counts.get("error", 0)
    return Counts(counts.get("passed", 0), failed, counts.get("skipped", 0), failures)
