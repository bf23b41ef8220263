"""Whether the wheel's requirements can be installed on each system and Python that clrt is for.

    make check-wheels

Asks the package index, by uv, which takes another system's markers and tags. Nothing is installed
and nothing is built: what has no wheel for a system counts as missing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# uv's names.
SYSTEMS = (
    "x86_64-manylinux_2_28",
    "aarch64-manylinux_2_28",
    "x86_64-pc-windows-msvc",
    "aarch64-apple-darwin",
    "x86_64-apple-darwin",
)
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
# Extras that only developers of clrt install, on a system of theirs.
DEVELOPERS = {"bench", "demo", "dev", "docs", "oracles"}
PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> int:
    """Prints a line for each pair; 1 where one has no solution."""
    failed = 0
    project = tomllib.loads(PROJECT.read_text("utf-8"))["project"]
    extras = sorted(project["optional-dependencies"].keys() - DEVELOPERS)
    print(f"clrt[{','.join(extras)}]")
    for system in SYSTEMS:
        for version in VERSIONS:
            reason = _missing(system, version, extras)
            print(f"{system}, Python {version}: {reason or 'all there'}", flush=True)
            failed |= bool(reason)
    return failed


def _missing(system: str, version: str, extras: Sequence[str]) -> str:
    """Why there is no solution; empty where there is one."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--only-binary", ":all:"]
    command += ["--python-platform", system, "--python-version", version, str(PROJECT)]
    command += [f"--extra={extra}" for extra in extras]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=300)
    return " ".join(done.stderr.split()) if done.returncode else ""


if __name__ == "__main__":
    sys.exit(main())
