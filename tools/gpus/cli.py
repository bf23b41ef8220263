"""Command line of the report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from .checks import idle_faults, long_loops, slow_loops
from .compiling import Results, compile_all, describe, programs_of, refusals
from .faults import Faults
from .figures import Figures
from .models import models
from .planning import Planned, plan_model
from .profiles import profiles
from .report import Page
from .toolchain import MissingToolError

_PAGE = Path("docs/gpus.md")


def main() -> None:
    """Writes the report; exits with 1 if there are faults."""
    options = _options()
    with Progress(console=Console(stderr=True)) as progress:
        plans = _plan(options.models, progress)
        try:
            results = Results() if options.no_compile else _compile(plans, progress)
        except MissingToolError as error:
            sys.exit(str(error))
    figures, kept = Figures.of(plans, results), options.output.with_suffix(".json")
    faults = _faults(
        plans, results, Figures({}, {}) if options.accept else Figures.read(kept), figures
    )
    options.output.write_text(str(Page(profiles(), plans, results, faults)), encoding="utf-8")
    if not (options.models or options.no_compile or faults.worse):
        figures.write(kept)
    if lines := list(faults.lines()):
        sys.exit("\n".join([*lines, f"{len(lines)} faults; {options.output} has the rest."]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plans models for GPUs and compiles the kernels.")
    parser.add_argument(
        "--output", type=Path, default=_PAGE, help="the page; figures lie beside it"
    )
    parser.add_argument("--models", nargs="*", default=[], help="only those with such names")
    parser.add_argument("--no-compile", action="store_true", help="plan alone")
    parser.add_argument("--accept", action="store_true", help="keep figures that got worse")
    return parser.parse_args()


def _faults(plans: list[Planned], results: Results, before: Figures, figures: Figures) -> Faults:
    compiled = bool(results.compiled)
    return Faults(
        errors=[f"{describe(p.kernel)} on {p.target}: {e}" for p, e in results.errors.items()],
        misfits=list(results.misfits()),
        refused=list(refusals(plans, results.local_bytes())),
        slow=list(slow_loops(results)),
        # Without loops nothing is known of what kernels reach.
        idle=list(idle_faults(plans, results)) if compiled else [],
        long=list(long_loops(plans, results)),
        worse=list(figures.worse_than(before)) if compiled else [],
    )


def _plan(wanted: list[str], progress: Progress) -> list[Planned]:
    with tempfile.TemporaryDirectory() as work:
        found = [
            m
            for m in models(Path(work))
            if not wanted or any(w.lower() in m.name.lower() for w in wanted)
        ]
        bar = progress.add_task("plans", total=len(found) * len(profiles()))
        plans = []
        for model in found:
            for planned in plan_model(model, profiles()):
                plans.append(planned)
                progress.advance(bar)
    return plans


def _compile(plans: list[Planned], progress: Progress) -> Results:
    programs = programs_of(plans)
    bar = progress.add_task("programs", total=len(programs))
    return compile_all(programs, lambda: progress.advance(bar))
