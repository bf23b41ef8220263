"""Model folders of tiny decoders. Weights are noise seeded by the tensor names."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[Any]

DATA = Path(__file__).parent / "data"


def load_json() -> dict[str, Any]:
    """By case: its config.json, and the shapes of the tensors by their names in the file."""
    found: dict[str, Any] = json.loads((DATA / "decoders.json").read_text(encoding="utf-8"))
    return found


def noise(name: str, shape: tuple[int, ...]) -> Array:
    """A tensor of noise that leaves activations about as large as they were."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if name.endswith("bias"):
        return drawn * np.float32(0.2)
    if len(shape) == 1 or "norm" in name:
        return 1 + drawn * np.float32(0.2)
    if name.endswith("Attention.q.weight"):  # T5 has the scale of scores in it
        drawn *= np.float32(0.25)
    return drawn * np.float32(1.5 / np.sqrt(shape[-1]))


def write_folder(folder: Path, case: dict[str, Any]) -> Path:
    """A model folder of a case of `load_json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case["config"]), encoding="utf-8")
    narrow = case["config"].get("dtype") == "bfloat16"
    dtype = np.dtype(ml_dtypes.bfloat16 if narrow else np.float32)
    tensors = {n: noise(n, tuple(s)).astype(dtype) for n, s in case["tensors"].items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def tokens(length: int) -> Array:
    """A text."""
    from tests.generation.oracle_decoders import VOCABULARY

    return np.random.default_rng(length).integers(0, VOCABULARY, length, np.int32)
