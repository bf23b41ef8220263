"""Whole processes: from their start to the first result, clrt beside ONNX Runtime.

A process imports its runtime, loads a model, runs it once and says when it had the result. All
processes of a clrt device share one set of caches; the first finds them empty.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from .conv_nets import conv_nets
from .results import ProcessRow
from .runtimes import ONNXRUNTIME, Runtime, is_installed, package_folder
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

inputs = {n: np.zeros(shape, dtype) for n, shape, dtype in json.loads(sys.argv[2])}
clrt.load(sys.argv[1], device=sys.argv[3]).run(inputs)
print(time.time())
"""
_PEER = """
import json, sys, time
import numpy as np
import onnxruntime

inputs = {n: np.zeros(shape, dtype) for n, shape, dtype in json.loads(sys.argv[2])}
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
session.run(None, inputs)
print(time.time())
"""
# Sizes of symbolic dims: of axis 1 of text models, of the sides of images, and of all others.
_SEQUENCE, _SIDE = 16, 320


def measure_starts(
    minilm: Path, runtimes: Sequence[Runtime], work: Path, repeats: int
) -> list[ProcessRow]:
    """Returns a row per model and way to start it.

    Args:
        minilm: MiniLM as ONNX.
        runtimes: clrt's devices.
        work: Folder for models.
        repeats: Processes of each kind, in turn with the others.
    """
    rows = []
    for name, path in track(_models(minilm, work), "starts", console=Console(stderr=True)):
        inputs = call_apart(_inputs, path)
        compiled = work / f"{name}.clrt"
        call_apart(_convert, path, compiled)
        with tempfile.TemporaryDirectory() as caches:
            starts: dict[str, list[str]] = {ONNXRUNTIME: [_PEER, str(path), inputs]}
            for r in runtimes:
                starts[f"{r.name} .onnx"] = [_CLRT, str(path), inputs, r.device]
                starts[f"{r.name} .clrt"] = [_CLRT, str(compiled), inputs, r.device]
            first = {label: _seconds(command, caches) for label, command in starts.items()}
            found: dict[str, list[float]] = {label: [] for label in starts}
            for _ in range(repeats):
                for label, command in starts.items():
                    found[label].append(_seconds(command, caches))
        for label, seconds in found.items():
            ratio = median_ratio(seconds, found[ONNXRUNTIME])
            rows.append(ProcessRow(name, label, first[label], statistics.median(seconds), ratio))
    return rows


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
    """Returns name, shape and dtype of each input as JSON."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    dtypes = {"float": "float32", "double": "float64"}
    found: list[Any] = []
    for each in session.get_inputs():
        name = each.type.removeprefix("tensor(").removesuffix(")")
        images = len(each.shape) == 4
        sizes = (1, _SIDE, _SIDE, _SIDE) if images else (1, _SEQUENCE, *each.shape[2:])
        shape = [d if isinstance(d, int) else s for d, s in zip(each.shape, sizes, strict=False)]
        found.append([each.name, shape, dtypes.get(name, name)])
    return json.dumps(found)


def _convert(path: Path, target: Path) -> None:
    code = "import sys; from clrt.cli.convert import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code, str(path), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)


def _seconds(command: Sequence[str], caches: str) -> float:
    """Returns the seconds from the start of a process to its first result.

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
    return float(done.stdout.split()[-1]) - start
