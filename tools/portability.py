"""Runs op and model tests on each OpenCL implementation of this machine: PORTABILITY.md.

python tools/portability.py                       # an hour and more: compilers for CPUs are slow
python tools/portability.py --quick               # one test of 40
python tools/portability.py --only Intel --icd "PoCL 6=/opt/pocl6/libpocl.so"
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpulab.testing import ROOT, Counts, run_tests

_VENDORS = Path("/etc/OpenCL/vendors")
_FILES = (
    "test_ops",
    "test_indices",
    "test_row_norm",
    "test_gemm_gpu",
    "test_conv_gpu",
    "test_attention_gpu",
)
_OPS = tuple(f"tests/ops/{name}.py" for name in _FILES)
_MODELS = ("tests/models",)
_INTEL = "Intel(R) OpenCL"
_QUICK = ("--shard", "3/40")
_LIST = """
import json, clrt
print(json.dumps([[d.index, d.platform, d.name, d.caps.driver, d.usable] for d in clrt.devices()]))
"""
_INTRO = """\
# Portability

Op and model tests on OpenCL implementations, each alone in its processes. `make portability` makes
this page from those that are installed; it is no part of continuous integration. *as a GPU* takes a
CPU device for a GPU, so that it runs the kernels that are meant for GPUs. Oclgrind simulates, and
finds bad accesses; its tests are those of `tests/ops/test_oclgrind.py`, whose log must be empty.
"""


@dataclass(frozen=True)
class Implementation:
    """An OpenCL implementation, in a certain shape.

    Attributes:
        device: What `CLRT_DEVICE` takes, or how the platform's name begins.
        environment: Variables that show it, and set it up.
        as_gpu: Whether its CPU devices are taken for GPUs.
    """

    name: str
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    as_gpu: bool = False


@dataclass(frozen=True)
class PortabilityRow:
    """What came of an implementation.

    Attributes:
        device: Its device and driver; "" where it is not here.
    """

    name: str
    device: str = ""
    ops: Counts | None = None
    models: Counts | None = None


def main() -> None:
    """Runs the tests and writes the page; ends with 1 where a test failed."""
    options = _parser().parse_args()
    rows = []
    for implementation in _implementations(options.icd):
        if any(w.lower() in implementation.name.lower() for w in options.only or [""]):
            rows.append(_run(implementation, options.quick, options.minutes))
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    options.output.write_text(page(rows, options.quick), encoding="utf-8")
    if any(c.failed or c.note for r in rows for c in (r.ops, r.models) if c is not None):
        sys.exit(f"Some tests failed; {options.output} has them.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--output", type=Path, default=ROOT / "PORTABILITY.md", help="the page")
    add("--only", nargs="+", metavar="NAME", help="parts of names of implementations")
    add("--icd", action="append", default=[], metavar="NAME=PATH", help="a further library")
    add("--quick", action="store_true", help="one test of 40, and no models")
    add("--minutes", type=float, default=120.0, help="the most that each part may take")
    return parser


def _implementations(icds: Sequence[str]) -> Iterator[Implementation]:
    """Those that may be here."""
    for name, device in (("PoCL of the wheel", "Portable"), ("Intel's runtime", _INTEL)):
        yield Implementation(name, device)
        yield Implementation(f"{name}, as a GPU", device, as_gpu=True)
    yield Implementation("Oclgrind", "Oclgrind")
    for icd in icds:
        name, _, path = icd.partition("=")
        yield Implementation(name, "", {"OCL_ICD_VENDORS": path})
        yield Implementation(f"{name}, as a GPU", "", {"OCL_ICD_VENDORS": path}, as_gpu=True)
    system = {"OCL_ICD_VENDORS": str(_VENDORS / "pocl.icd")}
    yield Implementation("PoCL of the system", "Portable", system)
    rusticl = {"OCL_ICD_VENDORS": str(_VENDORS / "rusticl.icd"), "RUSTICL_ENABLE": "llvmpipe"}
    for features in ("", "fp64", "fp16", "fp16,fp64"):
        variables = {"RUSTICL_DEVICE_TYPE": "gpu", "RUSTICL_FEATURES": features}
        name = f"rusticl as a GPU, {features.replace(',', ' and ') or 'neither fp16 nor fp64'}"
        yield Implementation(name, "rusticl", {**rusticl, **variables})


def _run(implementation: Implementation, quick: bool, minutes: float) -> PortabilityRow:
    variables = dict(implementation.environment)
    if not Path(variables.get("OCL_ICD_VENDORS", "/")).exists():
        return PortabilityRow(implementation.name)
    found = _find(implementation)
    if found is None:
        return PortabilityRow(implementation.name)
    index, device = found
    most_s = 60 * minutes
    if implementation.name == "Oclgrind":
        arguments = ("tests/ops/test_oclgrind.py", *(("-m", "not slow") if quick else ()))
        return PortabilityRow(implementation.name, device, run_tests(arguments, variables, most_s))
    variables |= {"CLRT_DEVICE": str(index)}
    variables |= {"CLRT_TEST_AS_GPU": "1"} if implementation.as_gpu else {}
    ops = run_tests((*_OPS, *(_QUICK if quick else ())), variables, most_s)
    models = None if quick else run_tests(_MODELS, variables, most_s)
    return PortabilityRow(implementation.name, device, ops, models)


def _find(implementation: Implementation) -> tuple[int, str] | None:
    """The index and description of its first usable device; None where there is none."""
    environment = {**os.environ, **implementation.environment, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _LIST]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return None
    for index, platform, name, driver, usable in json.loads(done.stdout.strip().splitlines()[-1]):
        # Intel's driver for GPUs has a longer name.
        wanted = implementation.device
        is_it = platform == wanted if wanted == _INTEL else platform.startswith(wanted)
        if usable and is_it:
            return int(index), f"{name}, {driver}"
    return None


def page(rows: Sequence[PortabilityRow], quick: bool) -> str:
    """PORTABILITY.md: a cell has passed and failed tests."""
    parts = [_INTRO]
    if quick:
        parts.append("This is of `--quick`: one test of 40.\n")
    parts += ["| Implementation | Device, driver | Op tests | Model tests |", "|---|---|---|---|"]
    parts += map(_line, rows)
    for row in rows:
        for counts in (row.ops, row.models):
            if counts is not None and (counts.failures or counts.note):
                lines = [f"- `{name}`" for name in counts.failures]
                lines += [f"- {counts.note}"] if counts.note else []
                parts += ["", f"## {row.name}", "", *lines]
    return "\n".join(parts) + "\n"


def _line(row: PortabilityRow) -> str:
    cells = (row.name, row.device or "not here", _cell(row.ops), _cell(row.models))
    return f"| {' | '.join(cells)} |"


def _cell(counts: Counts | None) -> str:
    if counts is None:
        return ""
    if counts.note:
        return "did not end"
    return f"{counts.passed} passed, {counts.failed} failed, {counts.skipped} skipped"


if __name__ == "__main__":
    main()
