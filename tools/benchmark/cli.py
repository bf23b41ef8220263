"""Command line of the benchmark, and the order of its sections."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console

from .convolutions import measure_convolutions, page
from .encode import measure_encode
from .footprint import measure_memory, measure_startup
from .gemm import measure_gemm
from .generation import measure_generation
from .goals import goals_of
from .inputs import BERT_BASE, MINILM, prepare_model, read_texts
from .install import measure_import, measure_install, measure_left
from .kernels import measure_kernels, measure_launches
from .lab import lab_makers
from .limits import measure_limits
from .load import OtherPrograms
from .models import Shape, measure_model
from .neighbours import measure_neighbours
from .nets import measure_nets
from .programs import measure_programs
from .results import Report
from .runtimes import THREADS, ModelFiles, Runtime, clrt_runtimes, is_installed, peer_runtimes
from .small_nets import can_make_small, measure_small
from .starts import measure_starts
from .tables import all_tables, goal_table
from .turns import open_workers

SECTIONS = (
    *("models", "encode", "gemm", "kernels", "convolutions", "memory", "startup", "neighbours"),
    *("programs", "install", "nets", "small", "generation"),
)
_SHAPES: dict[str, tuple[Shape, ...]] = {
    MINILM: ((1, 16), (1, 128), (8, 128), (32, 128), (4, 512)),
    BERT_BASE: ((1, 128), (8, 128)),
}
# The environment of the first lacks it.
_WITHOUT_MINILM = {"programs", "convolutions", "nets", "small", "generation"}
_USUAL = (8, 128)
_PEERS = ("onnxruntime", "openvino", "sentence_transformers")
_VERSIONS = ("numpy", "pyopencl", "onnxruntime", "openvino", "torch", "sentence-transformers")
# Load per core above which times are not to be trusted.
_BUSY = 0.25
# CPU time of other programs above which the same holds.
_DISTURBED = 0.03
_FILE_WIDTH = 140


@dataclass(frozen=True)
class _Pace:
    """Amount of measurement: turns, repeats and seconds."""

    turns: int
    seconds: float
    passes: int
    texts: int
    starts: int


_FULL = _Pace(turns=7, seconds=0.4, passes=3, texts=1500, starts=3)
_QUICK = _Pace(turns=3, seconds=0.2, passes=2, texts=300, starts=1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parses the command line, measures, and shows and writes what was found."""
    options = _parser().parse_args(arguments)
    # Whatever a library would look up on the network is here or is not needed.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ.setdefault("CLRT_TIERS", "off")  # runs are measured with optimized programs
    report = Report(environment=_environment())
    notes = Console(stderr=True)
    _warn(notes, report.environment["load_average"])
    _warn_of_nets(notes, options.sections)
    others = OtherPrograms()
    with tempfile.TemporaryDirectory() as work:
        _measure(options, report, Path(options.work or work))
    report.environment["others_cpu_share"] = others.share()
    # A table that goes into a file needs no folding.
    console = Console(width=None if sys.stdout.isatty() else _FILE_WIDTH)
    for table in all_tables(report):
        console.print(table)
    if goals := goals_of(report):
        console.print(goal_table(goals))
    _warn_of_others(notes, report.environment["others_cpu_share"])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(report.to_json(), encoding="utf-8")
    if options.plot:
        from .plot import draw

        options.plot.parent.mkdir(parents=True, exist_ok=True)
        draw(report, options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench.py", description="Times clrt beside its peers, in turns."
    )
    add = parser.add_argument
    add("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="what to measure")
    add("--models", nargs="+", choices=(MINILM, BERT_BASE), default=(MINILM, BERT_BASE))
    add("--model", type=Path, help="an ONNX file or Hugging Face folder in place of --models")
    add(
        "--nets",
        nargs="+",
        metavar="NAME",
        help="parts of names of the nets, and small nets: resnet, vit, …",
    )
    add(
        "--language-models",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="GGUF files and folders of onnxruntime-genai to generate with",
    )
    add("--llama-bench", type=Path, help="llama.cpp's program, to measure it beside them")
    add("--work", type=Path, help="a folder to keep the nets in, which take a while to make")
    add("--shapes", nargs="+", type=_shape, help="batch x sequence of the models, as 8x128")
    add("--runtimes", nargs="+", metavar="NAME", help="parts of names: pocl, onnx, openvino, …")
    add("--texts", type=int, help="texts that `encode` takes")
    add("--turns", type=int, help="turns each runtime takes for one figure")
    add("--quick", action="store_true", help="fewer turns, texts and sizes")
    add("--json", type=Path, help="write all rows to this file")
    add("--page", type=Path, help="write the table of convolutions to this file, as Markdown")
    add("--plot", type=Path, help="draw them into this PNG file; needs matplotlib")
    return parser


def _shape(text: str) -> Shape:
    batch, _, sequence = text.partition("x")
    return int(batch), int(sequence)


def _measure(options: argparse.Namespace, report: Report, work: Path) -> None:
    """Runs the requested sections; those that need the device limits run after them."""
    pace = _QUICK if options.quick else _FULL
    turns = options.turns or pace.turns
    sections = set(options.sections)
    ours = _named(clrt_runtimes(), options.runtimes)
    runtimes = [*_named(peer_runtimes(), options.runtimes), *ours]
    # Before all else: where it is missing, nothing is lost that was measured.
    minilm = prepare_model(MINILM, None, work) if sections - _WITHOUT_MINILM else None
    if "programs" in sections:
        report.programs = measure_programs(ours, turns)
    if "convolutions" in sections:
        with open_workers(lab_makers(ours)) as labs:
            report.convolutions, best = measure_convolutions(labs, min(turns, 3))
        if options.page:
            options.page.write_text(page(report.convolutions, best), encoding="utf-8")
    if "nets" in sections and is_installed("diffusers"):
        report.nets = measure_nets(runtimes, options.nets, work, turns, pace.seconds)
    if "small" in sections and is_installed("onnxruntime"):
        beside = [r for r in runtimes if r.kind != "openvino"]
        report.small, report.small_failures = measure_small(
            beside, options.nets, work, turns, pace.seconds
        )
    if "generation" in sections and options.language_models:
        report.generation = measure_generation(
            options.language_models,
            options.llama_bench,
            ours,
            min(turns, 3),
            12 * pace.seconds,
        )
    if minilm is None:
        return
    if sections & {"models", "gemm", "kernels"}:
        _measure_labs(options, report, ours, minilm, turns)
    if "models" in sections:
        for files, shapes in _models(options, minilm, work):
            report.models += measure_model(
                files, runtimes, shapes, report.limits, turns, pace.seconds
            )
    if "encode" in sections:
        texts = read_texts(options.texts or pace.texts)
        report.encode = measure_encode(minilm, ours, texts, options.turns or pace.passes)
    if "memory" in sections:
        report.memory = measure_memory(minilm, runtimes, _USUAL)
    if "neighbours" in sections:
        report.neighbours = measure_neighbours(minilm, ours, turns)
    if "startup" in sections:
        report.startup, report.new_shapes = measure_startup(minilm, ours, _USUAL, pace.starts)
        report.processes = measure_starts(minilm, ours, work, pace.starts)
    if "install" in sections:
        report.install, report.imports = measure_install(), [measure_import()]
        report.left = measure_left(minilm, ours, _USUAL)


def _measure_labs(
    options: argparse.Namespace,
    report: Report,
    ours: list[Runtime],
    minilm: ModelFiles,
    turns: int,
) -> None:
    """Measures the device limits, and the sections that run on clrt's devices alone."""
    seconds = (_QUICK if options.quick else _FULL).seconds / 4
    with open_workers(lab_makers(ours)) as labs:
        report.limits = measure_limits(labs, turns, seconds)
        if "gemm" in options.sections:
            report.gemm = measure_gemm(labs, min(turns, 5), 0.6 * seconds, options.quick)
        if "kernels" in options.sections:
            report.kernels = measure_kernels(labs, min(turns, 5), seconds)
            report.launches = measure_launches(labs, minilm, _USUAL, turns)


def _models(
    options: argparse.Namespace, minilm: ModelFiles, work: Path
) -> list[tuple[ModelFiles, Sequence[Shape]]]:
    """Returns the models of the section `models`, each with its shapes."""
    if options.model:
        files = prepare_model(options.model.stem, options.model, work)
        return [(files, options.shapes or _SHAPES[MINILM])]
    found = {
        name: minilm if name == MINILM else prepare_model(name, None, work)
        for name in options.models
    }
    return [(files, options.shapes or _SHAPES[name]) for name, files in found.items()]


def _named(runtimes: list[Runtime], parts: Sequence[str] | None) -> list[Runtime]:
    if parts is None:
        return runtimes
    names = [p.lower().replace(" ", "") for p in parts]
    return [r for r in runtimes if any(n in r.name.lower().replace(" ", "") for n in names)]


def _environment() -> dict[str, Any]:
    """Returns the environment that the figures depend on, besides the code."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "threads": THREADS,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": {name: found for name in _VERSIONS if (found := _version(name))},
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _warn(notes: Console, load: float | None) -> None:
    """Warns of conditions that make figures worse or fewer."""
    if load is not None and load > _BUSY * THREADS:
        notes.print(
            f"The load average is {load:.2f} on {THREADS} cores: other programs are running, "
            "and times will be off.",
            style="yellow",
        )
    if missing := [p for p in _PEERS if not is_installed(p)]:
        notes.print(
            f'Not installed, so left out: {", ".join(missing)}. pip install ".[bench]" gets them.',
            style="yellow",
        )


def _warn_of_nets(notes: Console, sections: Sequence[str]) -> None:
    if "nets" in sections and not is_installed("diffusers"):
        notes.print(
            'The section nets is left out: pip install ".\\[bench-nets]" gets what makes them.',
            style="yellow",
        )
    if "small" in sections and not can_make_small():
        notes.print(
            "The section small makes no nets, and measures those of packages and of --work: "
            'pip install ".\\[bench-nets]" gets what makes the others.',
            style="yellow",
        )


def _warn_of_others(notes: Console, share: float | None) -> None:
    if share is not None and share > _DISTURBED:
        notes.print(
            f"Other programs had {share:.0%} of the machine's CPU time during the measurement: "
            "times, and ratios less so, are off.",
            style="yellow",
        )
