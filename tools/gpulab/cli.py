"""Command line of the lab."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from . import checks, models, products, tuning
from .page import page
from .state import Found, Item, State

# Stages in their order, with the share of what is left of the time that each may take.
_STAGES: dict[str, tuple[Callable[[], Iterator[Item]], float]] = {
    "checks": (checks.items, 0.4),
    "tuning": (tuning.items, 0.4),
    "models": (models.items, 0.6),
    "products": (products.items, 1.0),
}
_ABOUT = "about"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the items that fit the time budget, and writes the report of all results so far."""
    options = _parser().parse_args(arguments)
    # Nothing is looked up on the network, and a device that miscomputes is measured, too.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CLRT_SELF_TEST": "never"}
    index, about = _device(options.device)
    slug = re.sub(r"[^a-z0-9]+", "-", about["device"].lower()).strip("-")
    work = Path("build") / "gpu-lab" / slug
    target = options.output or Path("lab") / slug
    if options.anew:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    os.environ["CLRT_CACHE_DIR"] = str((work / "cache").resolve())
    state = State.read(work / "found.json", options.budget)
    if state.found.get(_ABOUT, {}).get("key", about) != about:
        sys.exit(f"{work} is of another driver or version of clrt; begin with --anew.")
    state.found[_ABOUT] = {"key": about}
    try:
        for stage in options.stages:
            _run(stage, state, index, work)
    finally:  # Ctrl-C ends it early
        _write(state, work, target)
    _say(f"{target / 'report.md'} has what was found.")
    if state.left_out:
        _say(f"There was no time for {len(state.left_out)} more; call it again to go on.")


def _run(stage: str, state: State, device: int, work: Path) -> None:
    """Runs the items of a stage that fit the remaining time."""
    items, share = _STAGES[stage]
    until_s = state.left_s * (1 - share)
    for item in items():
        before = item.name in state.found.get(item.stage, {})
        state.run(item, device, work, until_s)
        if not before and item not in state.left_out:
            _say(f"{item.stage}, {item.name}: {_short(state.found[item.stage][item.name])}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu_lab.py", description="Finds out all about a device; called again it goes on."
    )
    add = parser.add_argument
    add("--device", help="as for `clrt devices`; else a GPU, or what there is")
    add("--budget", type=float, default=900.0, metavar="SECONDS", help="for this call")
    add("--output", type=Path, metavar="FOLDER", help="for the report; else lab/<device>")
    add("--stages", nargs="+", choices=tuple(_STAGES), default=tuple(_STAGES))
    add("--anew", action="store_true", help="forget what was found before")
    return parser


def _device(request: str | None) -> tuple[int, Found]:
    """Returns the device's index, and a key of the device and driver that results hold for."""
    import clrt
    from clrt.errors import DeviceError
    from clrt.runtime.opencl.devices import choose_device

    try:
        info = choose_device(request or "gpu")
    except DeviceError:
        if request:
            raise
        info = choose_device("auto")
    caps = info.caps
    return info.index, {"device": caps.name, "driver": caps.driver, "clrt": clrt.__version__}


def _write(state: State, work: Path, target: Path) -> None:
    """Writes the report as a page and as JSON, and the tuning records."""
    target.mkdir(parents=True, exist_ok=True)
    found = {stage: runs for stage, runs in state.found.items() if stage != _ABOUT}
    (target / "report.md").write_text(page(found), "utf-8")
    (target / "report.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    records = work / "cache" / "tuning.json"
    if records.exists():
        shutil.copy(records, target / "records.json")


def _short(found: Found) -> str:
    if why := found.get("error") or found.get("note"):
        return str(why)
    shown = ("passed", "failed", "device_ms", "run_ms", "gflops")
    return ", ".join(f"{k} {found[k]}" for k in shown if k in found) or "done"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
