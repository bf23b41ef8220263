"""The command line of the report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from .compiling import Results, compile_all, describe, programs_of, refusals
from .models import models
from .planning import Planned, plan_model
from .profiles import profiles
from .report import Page
from .toolchain import MissingToolError


def main() -> None:
    """Makes the report, and ends with 1 where a kernel has a fault."""
    parser = argparse.ArgumentParser(description="Plans models for GPUs and compiles the kernels.")
    parser.add_argument("--output", type=Path, default=Path("docs/gpus.md"), help="the page")
    parser.add_argument("--models", nargs="*", default=[], help="only those with such names")
    parser.add_argument("--no-compile", action="store_true", help="plan alone")
    options = parser.parse_args()
    with Progress(console=Console(stderr=True)) as progress:
        plans = _plan(options.models, progress)
        try:
            results = Results() if options.no_compile else _compile(plans, progress)
        except MissingToolError as error:
            sys.exit(str(error))
    refused = list(refusals(plans, results.local_bytes()))
    options.output.write_text(str(Page(profiles(), plans, results, refused)), encoding="utf-8")
    faults = [f"{describe(p.kernel)} on {p.target}: {e}" for p, e in results.errors.items()]
    faults += [*results.misfits(), *refused]
    if faults:
        sys.exit("\n".join([*faults, f"{len(faults)} faults; {options.output} has the rest."]))


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
