"""Test models and vectors made by `tools/oracles.py`, with their weights restored.

The files under `data/` carry no large weights. Each names, in its metadata, what every stripped
initializer is: a tensor of MiniLM's `model.safetensors`, or normal noise of a given spread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors import safe_open

DATA = Path(__file__).resolve().parent / "data"
REFILL_KEY = "clrt.refill"
"""Metadata of a stripped model: JSON, `{initializer: recipe}`.

A recipe is `{"tensor": name, "transposed": bool}` (MiniLM) or `{"std": float}` (a family).
"""

FloatArray = NDArray[np.float32]


def minilm_names() -> list[str]:
    """Returns the names of all-MiniLM-L6-v2 exports, such as `minilm_dynamo18`."""
    return sorted(path.stem for path in DATA.glob("minilm_*.onnx"))


def family_names() -> list[str]:
    """Returns the names of tiny models with random weights, such as `bert_dynamo20`."""
    return sorted(path.stem for path in DATA.glob("*.onnx") if path.stem not in minilm_names())


def load_minilm(name: str, model_folder: Path | str, data: Path = DATA) -> onnx.ModelProto:
    """Loads an export of all-MiniLM-L6-v2 with its weights.

    Args:
        name: One of `minilm_names()`.
        model_folder: The Hugging Face folder that holds `model.safetensors`.
        data: The folder of the stripped models.
    """
    with safe_open(Path(model_folder) / "model.safetensors", framework="np") as weights:

        def fill(recipe: dict[str, Any], dims: tuple[int, ...]) -> FloatArray:
            value = cast(FloatArray, weights.get_tensor(recipe["tensor"]))
            return (value.T if recipe["transposed"] else value).reshape(dims)

        return _refill(data / f"{name}.onnx", fill)


def load_family(name: str, seed: int = 0, data: Path = DATA) -> onnx.ModelProto:
    """Loads a tiny model of a family, with random weights determined by `seed`.

    Args:
        name: One of `family_names()`.
        seed: Seed of the random weights.
        data: The folder of the stripped models.
    """
    noise = np.random.default_rng(seed)

    def fill(recipe: dict[str, Any], dims: tuple[int, ...]) -> FloatArray:
        return noise.standard_normal(dims, dtype=np.float32) * np.float32(recipe["std"])

    return _refill(data / f"{name}.onnx", fill)


def sentences() -> list[str]:
    """Returns 200 texts: several scripts, emoji, odd whitespace, some above 512 tokens."""
    return [str(text) for text in _sentence_file()["sentences"]]


def max_seq_length() -> int:
    """Returns sentence-transformers' maximum token count per text, including special tokens."""
    return int(_sentence_file()["max_seq_length"])


def vectors(mode: str) -> FloatArray:
    """Returns sentence-transformers' vectors of `sentences()`, one row per text.

    Args:
        mode: `normalized` (mean pooling, unit length, every text), or a pooling mode without
            normalisation on the first 40 texts: `mean`, `cls`, `max`, `mean_sqrt_len_tokens`
            or `sum`.
    """
    with np.load(DATA / "vectors.npz") as archive:
        return cast(FloatArray, archive[mode])


def _sentence_file() -> dict[str, Any]:
    text = (DATA / "sentences.json").read_text(encoding="utf-8")
    return cast(dict[str, Any], json.loads(text))


def _refill(
    path: Path, fill: Callable[[dict[str, Any], tuple[int, ...]], FloatArray]
) -> onnx.ModelProto:
    """Reads a stripped model and fills every stripped initializer by `fill`."""
    proto = onnx.load(path)
    metadata = {prop.key: prop.value for prop in proto.metadata_props}
    recipes = json.loads(metadata[REFILL_KEY])
    for tensor in proto.graph.initializer:
        recipe = recipes.get(tensor.name)
        if recipe is None:
            continue
        dims = tuple(tensor.dims)
        value = np.ascontiguousarray(fill(recipe, dims), dtype="<f4")
        if value.size != math.prod(dims):
            raise ValueError(f"{path.name}: {tensor.name} wants {dims}, got {value.shape}")
        tensor.raw_data = value.tobytes()
    return proto
