"""Sentences to vectors: `clrt.SentenceEncoder` beside sentence-transformers, on real text.

The ONNX peer is sentence-transformers' own `encode` (its tokenizer, order, padding, pooling and
normalisation) whose transformer is an ONNX Runtime session. Its "onnx" backend does the same
through the optimum package, which excludes newer releases of transformers.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from rich.console import Console
from rich.progress import track

from .results import EncodeRow
from .runtimes import THREADS, ModelFiles, Runtime, is_installed, onnx_session
from .turns import Handler, median_ratio, open_workers, take_turns

BATCH = 32
TORCH = "sentence-transformers, torch"
ONNX = "sentence-transformers, ONNX Runtime"
_FIRST, _REPEAT = "first", "repeat"
Encode: TypeAlias = "Callable[[list[str]], np.ndarray[Any, Any]]"


def measure_encode(
    files: ModelFiles, clrt_devices: Sequence[Runtime], texts: list[str], turns: int
) -> list[EncodeRow]:
    """Returns a row per runtime.

    Args:
        files: A sentence encoder's folder.
        turns: Number of passes over all texts after the first, which is reported separately.
    """
    makers: dict[str, tuple[Any, ...]] = {
        r.name: (_make_clrt, r.device, files.source, texts) for r in clrt_devices
    }
    for name, peer, backend in ((TORCH, _make_peer, "torch"), (ONNX, _make_peer, "onnx")):
        if is_installed("sentence_transformers"):
            makers[name] = (peer, backend, files, texts)
    with open_workers(makers) as workers:
        answers = {w.name: w.ask(_FIRST) for w in workers}
        first = {name: seconds for name, (seconds, _) in answers.items()}
        vectors = {name: found for name, (_, found) in answers.items()}
        times: dict[str, list[float]] = {w.name: [] for w in workers}
        for _ in track(range(turns), "encode", console=Console(stderr=True)):
            for name, seconds in take_turns(workers, _REPEAT, 1).items():
                times[name] += seconds
    return encode_rows(len(texts), first, times, vectors)


def encode_rows(
    texts: int,
    first: dict[str, float],
    times: dict[str, list[float]],
    vectors: dict[str, np.ndarray[Any, Any]],
) -> list[EncodeRow]:
    """Returns speeds relative to the peers', and the distance of vectors from torch's."""
    return [
        EncodeRow(
            name,
            texts,
            texts_per_s=texts / statistics.median(own),
            first_texts_per_s=texts / first[name],
            to_torch=median_ratio(times[TORCH], own) if TORCH in times else None,
            to_onnx=median_ratio(times[ONNX], own) if ONNX in times else None,
            least_cosine=least_cosine(vectors[name], vectors[TORCH]) if TORCH in times else None,
        )
        for name, own in times.items()
    ]


def least_cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    """Returns the smallest cosine between rows of equal index, in float64."""
    left, right = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / lengths).min())


def _make_clrt(device: str, folder: Path, texts: list[str]) -> Handler:
    import clrt

    encoder = clrt.SentenceEncoder(folder, device=device, strict=True)
    return _handler(lambda t: encoder.encode(t, batch_size=BATCH, show_progress_bar=False), texts)


def _make_peer(backend: Literal["torch", "onnx"], files: ModelFiles, texts: list[str]) -> Handler:
    os.environ["TQDM_DISABLE"] = "1"
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    encoder = SentenceTransformer(str(files.source), device="cpu", local_files_only=True)
    if backend == "onnx":
        encoder[0].forward = _session_forward(files.onnx)

    def encode(sentences: list[str]) -> np.ndarray[Any, Any]:
        vectors = encoder.encode(
            sentences, batch_size=BATCH, normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors)

    return _handler(encode, texts)


def _session_forward(path: Path) -> Callable[..., dict[str, Any]]:
    """Runs the transformer module by an ONNX Runtime session."""
    import torch

    session = onnx_session(path)
    names = [i.name for i in session.get_inputs()]

    def forward(features: dict[str, Any], **_: object) -> dict[str, Any]:
        feeds = {n: features[n].numpy() for n in names}
        (tokens,) = session.run(["last_hidden_state"], feeds)
        return {**features, "token_embeddings": torch.from_numpy(tokens)}

    return forward


def _handler(encode: Encode, texts: list[str]) -> Handler:
    """Returns a handler that answers with the encoding seconds, and vectors the first time."""

    def answer(request: str) -> Any:
        start = time.perf_counter()
        vectors = encode(texts)
        seconds = time.perf_counter() - start
        return (seconds, vectors) if request == _FIRST else seconds

    return answer
