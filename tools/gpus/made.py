"""Disk cache of compiler results: a report recompiles only changed programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from clrt.kernels.spec import KernelSpec

from . import loops, targets
from .loops import Loop
from .targets import Compiled
from .toolchain import stamp

FOLDER = Path("build/gpus")


def made_before(
    kernel: KernelSpec, target: str, items: int, make: Callable[[], Compiled], folder: Path = FOLDER
) -> Compiled:
    """Returns the cached result of a program, else that of `make`, which is cached.

    Args:
        items: Maximum work-group size.

    Raises:
        CompileError: `make` fails.
        MissingToolError: As `make`.
    """
    parts = (kernel.text, *kernel.build_options, target, str(items), _makers())
    kept = folder / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.json"
    if kept.exists():
        record = json.loads(kept.read_text("utf-8"))
        loop = record.pop("loop")
        return Compiled(**record, loop=None if loop is None else Loop(**loop))
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(asdict(made)), encoding="utf-8")
    return made


@cache
def _makers() -> str:
    """Compilers, and the functions that parse their output."""
    readers = (Path(str(m.__file__)).read_text("utf-8") for m in (loops, targets))
    return "\n".join((stamp(), *readers))
