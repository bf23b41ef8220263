"""What tests found on OpenCL implementations, and the page of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from .testing import ROOT, Counts

# The op tests run in so many processes, one after the other.
PARTS = 20
_INTRO = """\
# Portability

Results of op and model tests on OpenCL implementations, each in its own processes. `make
portability` generates this page for the installed implementations; it is not part of continuous
integration. *as a GPU* treats a CPU device as a GPU, so that it runs the GPU kernels. *GPU kernels*
is the number of these that were launched. The op tests run each variant of each op on its samples,
and further tests of GPU kernels; some ran in parts, which the row names. An empty cell means that
the tests did not run. Oclgrind is a simulator that detects bad accesses; its tests are those of
`tests/ops/test_oclgrind.py`.
"""
OCLGRIND = "Oclgrind"
_RUSTICL = "rusticl"
# Of the kernels that GPUs get how many there are, and why each of those not launched was not.
Missing: TypeAlias = "tuple[int, Mapping[str, str]]"


@dataclass(frozen=True)
class PortabilityRow:
    """What came of an implementation.

    Attributes:
        caps: Capabilities of its device, as JSON; "" where it is not here.
        parts: The counts of each part of the op tests that ran.
        ops: Those of op tests that have no parts.
        quick: Whether the slow ones of these were left out.
        launched: Entry points of kernels that the op tests launched.
    """

    caps: str = ""
    parts: Mapping[int, Counts] = field(default_factory=dict)
    ops: Counts | None = None
    quick: bool = False
    models: Counts | None = None
    launched: frozenset[str] = frozenset()

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> PortabilityRow:
        """The inverse of `record`."""
        ops, models = (record[k] and _counts(record[k]) for k in ("ops", "models"))
        parts = {int(part): _counts(counts) for part, counts in record["parts"].items()}
        launched = frozenset(record["launched"])
        return cls(record["caps"], parts, ops, record["quick"], models, launched)

    def record(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {**asdict(self), "launched": sorted(self.launched)}

    @property
    def device(self) -> str:
        """Its device and driver."""
        caps = json.loads(self.caps) if self.caps else {}
        return f"{caps['name']}, {caps['driver']}" if caps else "not here"

    @property
    def is_gpu(self) -> bool:
        """Whether it got kernels that are meant for GPUs."""
        return bool(self.parts) and json.loads(self.caps)["kind"] != "cpu"

    def on(self, caps: str) -> PortabilityRow:
        """The same; nothing but a device where another device or driver was."""
        return self if self.caps == caps else PortabilityRow(caps)

    def with_part(self, part: int, counts: Counts, launched: Sequence[str]) -> PortabilityRow:
        """With a further part of the op tests."""
        parts = {**self.parts, part: counts}
        return replace(self, parts=parts, launched=self.launched | set(launched))

    def with_whole(
        self, name: Literal["ops", "models"], counts: Counts, quick: bool
    ) -> PortabilityRow:
        """With tests that have no parts."""
        if name == "models":
            return replace(self, models=counts)
        return replace(self, ops=counts, quick=quick)

    def counts(self) -> Iterator[Counts]:
        """Of all that ran."""
        yield from (c for c in (*self.parts.values(), self.ops, self.models) if c is not None)

    def shown(self) -> str:
        """The device, the op tests and the models, as cells of a table."""
        ops = _cell(self.ops) + (" of the quick ones" if self.quick and self.ops else "")
        if self.parts:
            some = "" if len(self.parts) == PARTS else f" in {len(self.parts)} of {PARTS} parts"
            ops = _cell(_sum(self.parts.values())) + some
        return " | ".join((self.device, ops, _cell(self.models)))


class Rows:
    """The rows, kept in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        records = json.loads(path.read_text("utf-8")) if path.exists() else {}
        self.found = {name: PortabilityRow.read(record) for name, record in records.items()}

    def of(self, name: str) -> PortabilityRow:
        """What there is of an implementation."""
        return self.found.get(name, PortabilityRow())

    def keep(self, name: str, row: PortabilityRow) -> None:
        """Writes a row."""
        self.found[name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({n: r.record() for n, r in self.found.items()}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def missing(self) -> dict[str, Missing]:
        """By implementation, the kernels for GPUs that it did not launch."""
        asked = {name: row for name, row in self.found.items() if row.is_gpu}
        done = subprocess.run(
            [sys.executable, "-m", "tests.ops.gpu_kernels"],
            input=json.dumps([[r.caps, sorted(r.launched)] for r in asked.values()]),
            cwd=ROOT,
            env={**os.environ, "OCL_ICD_VENDORS": os.devnull},  # it needs no device
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return {
            name: (count, why)
            for name, (count, why) in zip(asked, json.loads(done.stdout), strict=True)
        }


@dataclass(frozen=True)
class Check:
    """What must hold of all rows together.

    Attributes:
        holds: None where what it takes did not run.
        lacks: What is missing for it; "" where it holds.
    """

    claim: str
    holds: bool | None
    lacks: str = ""

    def shown(self) -> str:
        """A line of the page."""
        answer = {None: "not known", True: "yes", False: "**no**"}[self.holds]
        return f"- {self.claim}: {answer}" + (f", {self.lacks}" if self.lacks else "")


def checks(rows: Mapping[str, PortabilityRow], missing: Mapping[str, Missing]) -> list[Check]:
    """Whether rusticl launched all kernels for GPUs, and Oclgrind found nothing."""
    whole = [missing[n][1] for n, r in rows.items() if _is_whole_rusticl(n, r)]
    # A row without fp16 and fp64 may lack what one with them has.
    left = sorted(set.intersection(*map(set, whole))) if whole else []
    names = ", ".join(f"`{name}`" for name in left)
    lacks = f"it lacks {names}" if left else "" if whole else "no row of it has all parts"
    launched = Check("rusticl launched each kernel for GPUs", not left if whole else None, lacks)
    row = rows.get(OCLGRIND, PortabilityRow())
    ran = row.ops is not None and row.ops.passed + row.ops.failed > 0
    clean = row.ops is not None and not (row.ops.failed or row.ops.note)
    few = "with its quick tests" if row.quick else ""
    lacks = (few if clean else "see below") if ran else "its tests did not run, or not to their end"
    return [launched, Check("Oclgrind's log is empty", clean if ran else None, lacks)]


def _is_whole_rusticl(name: str, row: PortabilityRow) -> bool:
    return name.startswith(_RUSTICL) and row.is_gpu and len(row.parts) == PARTS


def page(rows: Mapping[str, PortabilityRow], missing: Mapping[str, Missing]) -> str:
    """PORTABILITY.md: a cell has passed and failed tests."""
    parts = [_INTRO]
    parts += ["| Implementation | Device, driver | Op tests | Model tests | GPU kernels |"]
    parts += ["|---|---|---|---|---|"]
    for name, row in rows.items():
        count, why = missing.get(name, (0, {}))
        launched = f"{count - len(why)} of {count}" if name in missing else ""
        parts.append(f"| {name} | {row.shown()} | {launched} |")
    parts += ["", "Conditions on all of them:", ""]
    parts += [check.shown() for check in checks(rows, missing)]
    for name, row in rows.items():
        lines = [f"- `{test}` failed" for c in row.counts() for test in c.failures]
        lines += [f"- {c.note}" for c in row.counts() if c.note]
        if len(row.parts) == PARTS:
            lines += _unlaunched(missing.get(name, (0, {}))[1])
        if lines:
            parts += ["", f"## {name}", "", *lines]
    return "\n".join(parts) + "\n"


def _unlaunched(why: Mapping[str, str]) -> Iterator[str]:
    """A line for each reason, with the kernels that were not launched for it."""
    for reason in dict.fromkeys(why.values()):
        names = ", ".join(f"`{name}`" for name, other in why.items() if other == reason)
        yield f"- not launched, {reason}: {names}"


def _counts(record: Mapping[str, Any]) -> Counts:
    return Counts(**{**record, "failures": tuple(record["failures"])})


def _sum(counts: Iterable[Counts]) -> Counts:
    """All of them as one; what did not end counts as one that failed."""
    found = list(counts)
    return Counts(
        sum(c.passed for c in found),
        sum(c.failed + bool(c.note) for c in found),
        sum(c.skipped for c in found),
    )


def _cell(counts: Counts | None) -> str:
    if counts is None:
        return ""
    if counts.note:
        return "did not end"
    return f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"
