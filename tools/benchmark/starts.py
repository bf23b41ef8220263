"""Whole processes: from their start to the first result, clrt beside ONNX Runtime.

A process imports its runtime, loads a model, runs it once and says when it had the result. All
processes of a clrt device share one set of caches; the first finds them empty. Two rows have no
peer: the first token of a language model, and the command `clrt embed` from its start to its end.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from .conv_nets import conv_nets
from .results import ProcessRow
from .runtimes import ONNXRUNTIME, ModelFiles, Runtime, is_installed, package_folder
from .turns import call_apart, median_ratio

# Models of packages that have their own, by package: files below it.
_SHIPPED = {
    "magika": ("models/standard_v3_3/model.onnx",),
    "rapidocr_onnxruntime": ("models/ch_PP-OCRv4_det_infer.onnx",),
    "silero_vad": ("data/silero_vad.onnx",),
}
_CACHES = ("CLRT_CACHE_DIR", "POCL_CACHE_DIR", "NEO_CACHE_DIR", "XDG_CACHE_HOME")
_CLRT = """
import json, sys, time
import numpy as np
import clrt

inputs = {n: np.full(shape, fill, dtype) for n, shape, dtype, fill in json.loads(sys.argv[2])}
clrt.load(sys.argv[1], device=sys.argv[3]).run(inputs)
print(time.time())
"""
_PEER = """
import json, sys, time
import numpy as np
import onnxruntime

inputs = {n: np.full(shape, fill, dtype) for n, shape, dtype, fill in json.loads(sys.argv[2])}
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, inputs)
print(time.time())
"""
_GENERATE = """
import sys, time
import clrt

generator = clrt.TextGenerator(sys.argv[1], device=sys.argv[2])
with generator.stream("the cat sat on the mat", max_new_tokens=2, temperature=0) as stream:
    next(iter(stream))
    print(time.time())
"""
_EMBED = """
import sys
from clrt.cli import app

app(["embed", "--model", sys.argv[1], "a text", "--device", sys.argv[2]])
"""
# Shape and elements of the inputs of models that take no others, by the stem of the file.
_ASKED = {
    "silero_vad": {"input": ((1, 576), 0), "state": ((2, 1, 128), 0), "sr": ((), 16000)},
}
# Sizes of symbolic dims: of axis 1 of text models, of the sides of images, and of all others.
_SEQUENCE, _SIDE = 16, 320


def measure_starts(
    minilm: ModelFiles, runtimes: Sequence[Runtime], work: Path, repeats: int
) -> list[ProcessRow]:
    """Returns a row per model and way to start it.

    Args:
        minilm: Files of MiniLM.
        runtimes: clrt's devices.
        work: Folder for models.
        repeats: Processes of each kind, in turn with the others.
    """
    rows = []
    console = Console(stderr=True)
    models = _models(minilm.onnx, work) if is_installed("onnxruntime") else []
    for name, path in track(models, "starts", console=console):
        inputs = call_apart(_inputs, path)
        compiled = work / f"{name}.clrt"
        call_apart(_convert, path, compiled)
        starts: dict[str, list[str]] = {ONNXRUNTIME: [_PEER, str(path), inputs]}
        for r in runtimes:
            starts[f"{r.name} .onnx"] = [_CLRT, str(path), inputs, r.device]
            starts[f"{r.name} .clrt"] = [_CLRT, str(compiled), inputs, r.device]
        rows += _rows(name, starts, repeats)
    if is_installed("gguf"):
        file = work / "smollm2-135m-q4_0.gguf"
        if not file.exists():
            call_apart(_write_gguf, file)
        starts = {r.name: [_GENERATE, str(file), r.device] for r in runtimes}
        rows += _rows("SmolLM2-135M Q4_0, first token", starts, repeats)
    if minilm.source.is_dir():
        starts = {r.name: [_EMBED, str(minilm.source), r.device] for r in runtimes}
        rows += _rows('clrt embed "a text"', starts, repeats)
    return rows


def _rows(model: str, starts: Mapping[str, Sequence[str]], repeats: int) -> list[ProcessRow]:
    """Returns a row per way to start a model.

    Args:
        model: Name of the model.
        starts: Code and its arguments, by name.
        repeats: Processes of each kind, in turn with the others.
    """
    with tempfile.TemporaryDirectory() as caches:
        first = {label: _seconds(command, caches) for label, command in starts.items()}
        found: dict[str, list[float]] = {label: [] for label in starts}
        for _ in range(repeats):
            for label, command in starts.items():
                found[label].append(_seconds(command, caches))
    peer = found.get(ONNXRUNTIME)
    return [
        ProcessRow(
            model,
            label,
            first[label],
            statistics.median(seconds),
            None if peer is None else median_ratio(seconds, peer),
        )
        for label, seconds in found.items()
    ]


def _write_gguf(file: Path) -> None:
    from .random_gguf import write_random_gguf

    write_random_gguf(file)


def _models(minilm: Path, work: Path) -> list[tuple[str, Path]]:
    """Returns the models that are there, by name."""
    models = [("MiniLM", minilm)]
    net = work / "mobilenet_v2.onnx"
    if not net.exists():
        net.write_bytes(conv_nets()["MobileNetV2"])
    models.append(("MobileNetV2", net))
    for package, files in _SHIPPED.items():
        if is_installed(package):
            folder = package_folder(package)
            models += [
                (f"{package} {Path(f).stem}", folder / f) for f in files if (folder / f).exists()
            ]
    return models


def _inputs(path: Path) -> str:
    """Returns name, shape, dtype and number of each input as JSON."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dtypes = {"float": "float32", "double": "float64"}
    found: list[Any] = []
    for each in session.get_inputs():
        name = each.type.removeprefix("tensor(").removesuffix(")")
        images = len(each.shape) == 4
        sizes = (1, _SIDE, _SIDE, _SIDE) if images else (1, _SEQUENCE, *each.shape[2:])
        shape = [d if isinstance(d, int) else s for d, s in zip(each.shape, sizes, strict=False)]
        asked = _ASKED.get(path.stem, {}).get(each.name, (shape, 0))
        found.append([each.name, asked[0], dtypes.get(name, name), asked[1]])
    return json.dumps(found)


def _convert(path: Path, target: Path) -> None:
    code = "import sys; from clrt.cli.convert import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code, str(path), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)


def _seconds(command: Sequence[str], caches: str) -> float:
    """Returns the seconds from the start of a process to its first result.

    A process that prints no time ends with its result.

    Args:
        command: Code and its arguments.
        caches: Folder of all caches.
    """
    folders = {name: str(Path(caches) / name.lower()) for name in _CACHES}
    environment = os.environ | folders
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.time()
    done = subprocess.run(
        [sys.executable, "-c", *command],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    end = time.time()
    last = done.stdout.split()[-1]
    return (float(last) if last.replace(".", "").isdigit() else end) - start
