"""Figures of a report as data, to detect regressions between reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from clrt.kernels.spec import KernelSpec

from .compiling import Results
from .planning import Planned
from .predict import predict
from .targets import STRICT, TARGETS, Compiled

# By model and device: launches, nodes on the host, idle launches, microseconds that are likely.
Times: TypeAlias = "dict[str, dict[str, list[int]]]"
# By kernel and target, the worst of its programs: bytes spilled or of stack, groups that a
# multiprocessor or scheduler has at a time (0 where none says it), what the main loop reaches.
Programs: TypeAlias = "dict[str, dict[str, list[int]]]"
_TIME_NAMES = "launches", "nodes on the host", "idle launches", "likely µs"
_PROGRAM_NAMES = "bytes spilled or of stack", "occupancy", "% of the main loop"
# Of predicted times, what is no news.
_SLACK = 1.01


class Figures:
    """Figures of plans and of programs.

    Attributes:
        models: By model and device.
        kernels: By kernel and target.
    """

    def __init__(self, models: Times, kernels: Programs) -> None:
        self.models, self.kernels = models, kernels

    @classmethod
    def of(cls, plans: Sequence[Planned], results: Results) -> Figures:
        """Collects the figures of a run."""
        shares = {t: results.shares(t) for t in TARGETS}
        models: Times = {}
        for planned in plans:
            if not planned.error:
                row = _times(planned, shares[planned.profile.target])
                models.setdefault(planned.model, {})[planned.profile.name] = row
        kernels: Programs = {}
        for (kernel, target), made in results.compiled.items():
            if target != STRICT:
                of = kernels.setdefault(_key(kernel), {})
                of[target] = _worst(of.get(target), _program(made))
        return cls(models, {k: kernels[k] for k in sorted(kernels)})

    @classmethod
    def read(cls, path: Path) -> Figures:
        """Reads the figures of a file; empty if it does not exist."""
        if not path.exists():
            return cls({}, {})
        record = json.loads(path.read_text("utf-8"))
        return cls(record["models"], record["kernels"])

    def write(self, path: Path) -> None:
        """Writes one line per model and kernel."""
        parts = [
            f' "{name}": {{\n' + ",\n".join(_lines(rows)) + "\n }"
            for name, rows in (("models", self.models), ("kernels", self.kernels))
        ]
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    def worse_than(self, before: Figures) -> Iterator[str]:
        """Yields the figures that are worse than in `before`, of those that both have."""
        for model, device, row, was in _pairs(self.models, before.models):
            for name, new, old in zip(_TIME_NAMES, row, was, strict=True):
                if new > old * _SLACK:
                    yield f"{model} on {device}: {new} {name}, {old} before"
        for kernel, target, row, was in _pairs(self.kernels, before.kernels):
            for place, name in enumerate(_PROGRAM_NAMES):
                new, old = row[place], was[place]
                # Of what is spilled more is worse, of all else less.
                if new > old if place == 0 else new < old:
                    yield f"{kernel} on {target}: {new} {name}, {old} before"


def _pairs(
    new: Mapping[str, Mapping[str, list[int]]], before: Mapping[str, Mapping[str, list[int]]]
) -> Iterator[tuple[str, str, list[int], list[int]]]:
    """Yields pairs of rows that both have."""
    for outer, rows in new.items():
        for inner, row in rows.items():
            if inner in before.get(outer, {}):
                yield outer, inner, row, before[outer][inner]


def _times(planned: Planned, shares: Mapping[KernelSpec, float]) -> list[int]:
    found = predict(planned, shares)
    return [len(planned.work), len(planned.host), found.idle, round(1e6 * found.likely)]


def _program(made: Compiled) -> list[int]:
    held = 0 if made.occupancy.startswith("SIMD") else int(made.occupancy.split()[0])
    reached = round(100 * made.loop.reached) if made.loop else 0
    return [made.spilled + made.stack, held, reached]


def _worst(before: list[int] | None, new: list[int]) -> list[int]:
    if before is None:
        return new
    return [max(before[0], new[0]), *map(min, before[1:], new[1:])]


def _key(kernel: KernelSpec) -> str:
    """A kernel with its tunables: the programs of one are much alike."""
    tunables = (f"{k}={v}" for k, v in kernel.defines if k.startswith("T_") and str(v).isdigit())
    return " ".join((kernel.entry, *tunables))


def _lines(rows: Mapping[str, object]) -> list[str]:
    return [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
