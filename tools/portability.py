"""Runs op and model tests on each OpenCL implementation of this machine: PORTABILITY.md.

python tools/portability.py                       # about ten minutes for each on two cores
python tools/portability.py --quick               # one part of the tests
python tools/portability.py --minutes 30          # as many parts as that leaves time for
python tools/portability.py --only Intel --icd "PoCL 6=/opt/pocl6/libpocl.so"

What was found is kept below build/, and the page is of all that: another call goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpulab.portable import OCLGRIND, PARTS, PortabilityRow, Rows, checks, page
from gpulab.testing import ROOT, Counts, run_tests

_VENDORS = Path("/etc/OpenCL/vendors")
_FILES = (
    "test_ops",
    "test_float64",
    "test_indices",
    "test_row_norm",
    "test_gemm_gpu",
    "test_conv_gpu",
    "test_attention_gpu",
    "test_gemm_matrix_unit_gpu",
    "test_demote_exact_weights",
    "test_device_packing",
    "test_norm_gemm_fusion",
    "test_tied_embedding_fusion",
)
_OPS = tuple(f"tests/ops/{name}.py" for name in _FILES)
# Others are about one device, or none.
_WHOLE = (
    "test_families",
    "test_minilm",
    "test_light_models",
    "test_optimised",
    "test_quantized",
    "test_numbers",
    "test_boxes",
    "test_classical_ml",
    "test_control_flow",
)
_MODELS = tuple(f"tests/models/{name}.py" for name in _WHOLE)
_INTEL = "Intel(R) OpenCL"
_QUICK = 3
_MOST_ENDED = 5
_LIST = """
import json, clrt
print(json.dumps([[d.index, d.usable, d.caps.to_json()] for d in clrt.devices()]))
"""


@dataclass(frozen=True)
class Implementation:
    """An OpenCL implementation, in a certain shape.

    Attributes:
        device: What `CLRT_DEVICE` takes, or how the platform's name begins.
        environment: Variables that show it, and set it up.
        as_gpu: Whether its CPU devices are taken for GPUs.
        features: What it is asked to have; it is left out where it does not.
    """

    name: str
    device: str
    environment: Mapping[str, str] = field(default_factory=dict)
    as_gpu: bool = False
    features: tuple[str, ...] = ()


def main() -> None:
    """Runs the tests and writes the page; ends with 1 where a test or a check failed."""
    options = _parser().parse_args()
    rows = Rows(options.state)
    for implementation in _implementations(options.icd):
        if not any(w.lower() in implementation.name.lower() for w in options.only or [""]):
            continue
        name = implementation.name
        had = PortabilityRow() if options.anew else rows.of(name)
        for row in _parts(implementation, had, options.quick, 60 * options.minutes):
            rows.keep(name, row)
            print(f"{name} | {row.shown()}", file=sys.stderr, flush=True)
    missing = rows.missing()
    options.output.write_text(page(rows.found, missing), encoding="utf-8")
    if any(c.failed or c.note for row in rows.found.values() for c in row.counts()):
        sys.exit(f"Some tests failed; {options.output} has them.")
    if broken := [c.shown() for c in checks(rows.found, missing) if c.holds is False]:
        sys.exit("\n".join(broken))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--output", type=Path, default=ROOT / "PORTABILITY.md", help="the page")
    add("--state", type=Path, default=ROOT / "build/portability.json", help="what was found")
    add("--only", nargs="+", metavar="NAME", help="parts of names of implementations")
    add("--icd", action="append", default=[], metavar="NAME=PATH", help="a further library")
    add("--quick", action="store_true", help=f"one part of {PARTS}, and no models")
    add("--anew", action="store_true", help="forget what was found of these implementations")
    add("--minutes", type=float, default=600.0, help="the most that an implementation may take")
    return parser


def _implementations(icds: Sequence[str]) -> Iterator[Implementation]:
    """Those that may be here."""
    for name, device in (("PoCL of the wheel", "Portable"), ("Intel's runtime", _INTEL)):
        yield Implementation(name, device)
        yield Implementation(f"{name}, as a GPU", device, as_gpu=True)
    wheel = "PoCL of the wheel, on the calling thread"
    yield Implementation(wheel, "Portable", {"CLRT_TWINS": "on"})
    yield Implementation(OCLGRIND, OCLGRIND)
    others = [icd.partition("=")[::2] for icd in icds]
    others += [("PoCL of the system", str(_VENDORS / "pocl.icd"))]
    others += [("rusticl", str(_VENDORS / "rusticl.icd"))]
    for name, path in others:
        shown = {"OCL_ICD_VENDORS": path}
        if name.startswith("rusticl"):
            yield from _rusticl(name, shown)
            continue
        yield Implementation(name, "", shown)
        yield Implementation(f"{name}, as a GPU", "", shown, as_gpu=True)


def _rusticl(name: str, shown: Mapping[str, str]) -> Iterator[Implementation]:
    """Its software device, which it can show as a GPU."""
    variables = {**shown, "RUSTICL_ENABLE": "llvmpipe", "RUSTICL_DEVICE_TYPE": "gpu"}
    for features in ((), ("fp64",), ("fp16",), ("fp16", "fp64")):
        had = " and ".join(features) or "neither fp16 nor fp64"
        asked = {**variables, "RUSTICL_FEATURES": ",".join(features)}
        yield Implementation(f"{name} as a GPU, {had}", "rusticl", asked, features=features)


def _parts(
    implementation: Implementation, row: PortabilityRow, quick: bool, most_s: float
) -> Iterator[PortabilityRow]:
    """The row after each further part of the tests, as long as there is time."""
    until_s = time.monotonic() + most_s
    variables = dict(implementation.environment)
    found = None
    if Path(variables.get("OCL_ICD_VENDORS", "/")).exists():
        found = _find(implementation)
    if found is None:
        yield row
        return
    index, caps = found
    row = row.on(caps)
    if implementation.name == OCLGRIND:
        arguments = ("tests/ops/test_oclgrind.py", *(("-m", "not slow") if quick else ()))
        counts = run_tests(arguments, variables, most_s)
        yield row if counts.timed_out else row.with_whole("ops", counts, quick)
        return
    variables |= {"CLRT_DEVICE": str(index)}
    variables |= {"CLRT_TEST_AS_GPU": "1"} if implementation.as_gpu else {}
    for part in [_QUICK] if quick else range(PARTS):
        left_s = until_s - time.monotonic()
        if part in row.parts or left_s < 0:
            continue
        counts, launched = _run_part(part, variables, left_s)
        if not counts.timed_out:
            row = row.with_part(part, counts, launched)
            yield row
    left_s = until_s - time.monotonic()
    if not quick and row.models is None and left_s > 0:
        counts = run_tests(_MODELS, variables, left_s)
        yield row if counts.timed_out else row.with_whole("models", counts, quick)


def _run_part(
    part: int, variables: Mapping[str, str], most_s: float
) -> tuple[Counts, Sequence[str]]:
    """The counts of a part of the op tests, and the kernels that they launched.

    A test with which the process ends is one that failed; the others run without it.
    """
    until_s = time.monotonic() + most_s
    ended: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        kernels = Path(folder) / "kernels"
        kernels.touch()
        while True:
            noted = {"CLRT_TEST_KERNELS": str(kernels), "CLRT_TEST_WITHOUT": "\n".join(ended)}
            arguments = (*_OPS, "--shard", f"{part}/{PARTS}")
            counts = run_tests(arguments, {**variables, **noted}, until_s - time.monotonic())
            last = kernels.with_suffix(".test")
            if not counts.note or counts.timed_out or len(ended) == _MOST_ENDED:
                break
            ended.append(last.read_text("utf-8") if last.exists() else "collection")
        names = (*counts.failures, *(f"{name} (the process ended)" for name in ended))
        counts = replace(counts, failed=counts.failed + len(ended), failures=names)
        return counts, kernels.read_text("utf-8").split()


def _find(implementation: Implementation) -> tuple[int, str] | None:
    """The index and capabilities of its first usable device; None where there is none."""
    environment = {**os.environ, **implementation.environment, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _LIST]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return None
    for index, usable, text in json.loads(done.stdout.strip().splitlines()[-1]):
        caps = json.loads(text)
        platform, wanted = caps["platform"], implementation.device
        # Intel's driver for GPUs has a longer name.
        is_it = platform == wanted if wanted == _INTEL else platform.startswith(wanted)
        has_all = {f"cl_khr_{f}" for f in implementation.features} <= set(caps["extensions"])
        if usable and is_it and has_all:
            as_gpu = {"kind": "gpu", "matrix_shapes": []} if implementation.as_gpu else {}
            return int(index), json.dumps({**caps, **as_gpu})
    return None


if __name__ == "__main__":
    main()
