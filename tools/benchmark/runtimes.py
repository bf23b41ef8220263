"""Compared runtimes, and how each loads an ONNX model."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

THREADS = os.cpu_count() or 1
Feeds: TypeAlias = "dict[str, NDArray[Any]]"
Forward: TypeAlias = "Callable[[Feeds], object]"
Kind: TypeAlias = Literal["clrt", "onnxruntime", "openvino"]

ONNXRUNTIME = "ONNX Runtime"
OPENVINO = "OpenVINO"


@dataclass(frozen=True)
class Runtime:
    """A runtime on a device.

    Attributes:
        name: What tables call it; "clrt PoCL", say.
        device: clrt's device request.
    """

    name: str
    kind: Kind
    device: str = ""


@dataclass(frozen=True)
class ModelFiles:
    """One model for all runtimes.

    Attributes:
        source: What `clrt.load` takes: a Hugging Face folder or an ONNX file.
        onnx: The same graph and weights as ONNX, for the peers.
    """

    name: str
    source: Path
    onnx: Path


def clrt_runtimes() -> list[Runtime]:
    """A runtime per usable device that is no simulator."""
    import clrt

    usable = [d for d in clrt.devices() if d.usable and not d.caps.simulator]
    labels = [f"clrt {short_platform(d.platform)}" for d in usable]
    return [
        Runtime(label if labels.count(label) == 1 else f"{label} [{d.index}]", "clrt", str(d.index))
        for d, label in zip(usable, labels, strict=True)
    ]


def short_platform(platform: str) -> str:
    """A platform's name for tables: PoCL, Intel, NVIDIA, …"""
    if platform.startswith("Portable Computing Language"):
        return "PoCL"
    return platform.split()[0].removesuffix("(R)")


def peer_runtimes() -> list[Runtime]:
    """Returns the installed peers."""
    known = (Runtime(ONNXRUNTIME, "onnxruntime"), Runtime(OPENVINO, "openvino"))
    return [r for r in known if is_installed(r.kind)]


def is_installed(module: str) -> bool:
    """Returns whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def package_folder(module: str) -> Path:
    """Returns the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def import_runtime(runtime: Runtime) -> None:
    """Imports what `load_forward` will need and no more."""
    importlib.import_module(runtime.kind)


def load_forward(runtime: Runtime, files: ModelFiles) -> tuple[list[str], Forward]:
    """The names of the model's inputs, and what runs it: every output comes back as an array."""
    if runtime.kind == "clrt":
        import clrt

        model = clrt.load(files.source, device=runtime.device, strict=True)
        return [s.name for s in model.inputs], model.run
    if runtime.kind == "onnxruntime":
        session = onnx_session(files.onnx)
        return [i.name for i in session.get_inputs()], lambda feeds: session.run(None, feeds)
    return _load_openvino(files.onnx)


def onnx_session(path: Path) -> Any:
    """Opens an ONNX Runtime session with one thread per core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.log_severity_level = 3  # errors; exporters leave much to warn of
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _load_openvino(path: Path) -> tuple[list[str], Forward]:
    import openvino

    # Where the CPU has bfloat16 its default would be that.
    settings = {
        "INFERENCE_NUM_THREADS": THREADS,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(path)), "CPU", settings)
    return [i.get_any_name() for i in compiled.inputs], compiled


def make_feeds(names: list[str], batch: int, sequence: int) -> Feeds:
    """Token ids, a full mask and zero types, each int64 [batch, sequence]."""
    rng = np.random.default_rng(0)
    feeds: Feeds = {
        "input_ids": rng.integers(1000, 20000, (batch, sequence)),
        "attention_mask": np.ones((batch, sequence), np.int64),
        "token_type_ids": np.zeros((batch, sequence), np.int64),
    }
    return {n: feeds[n] for n in names}
