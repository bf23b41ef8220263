"""Models of known geometries: clrt's launches, and its runs from arrays to arrays, beside torch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from benchmark.lab import Lab
from benchmark.turns import time_turn
from gpus.decoders import SOUND_PLACES, TEXT_PLACES
from gpus.models import MODELS

from clrt.ir.kv_cache_sizes import PAGE_TOKENS

from .state import Found, Item, Place
from .torch_peer import time_model

_SECONDS = 0.5


def items() -> Iterator[Item]:
    """Yields one item per model."""
    for title in MODELS:
        yield Item("models", title, partial(measure, title=title), 300)


def measure(place: Place, title: str) -> Found:
    """Measures ms of a model: its launches, a run with copies, and torch's run."""
    from clrt.errors import ModelError

    lab = Lab(str(place.device))
    try:
        model = MODELS[title](place.work)
        graph = model.read()
    except ModelError as error:
        return {"note": str(error)}  # its weights are in a package of their own
    loaded = lab.load(graph)
    shapes = {spec.name: model.shapes(graph)[spec.name] for spec in loaded.inputs}
    feeds = sample_feeds(loaded, shapes)
    bound = loaded.bind(shapes, {}, model.contract)
    lab.fill(bound, feeds)
    found: Found = {
        "launches": bound.plan.launches,
        "gflop": 1e-9 * bound.plan.flops,
        "device_ms": 1e3 * lab.time_bound(bound, _SECONDS),
    }
    if not model.contract.donated:  # else the cache would be copied, which no program does
        run = partial(loaded.run, feeds)
        found["run_ms"] = 1e3 * statistics.median(time_turn(run, _SECONDS))
    try:
        return found | {"torch": time_model(title, lab.info.caps.is_cpu, _SECONDS)}
    except Exception as error:  # what other packages raise is no reason to lose the rest
        return found | {"torch": {}, "note": f"torch: {error}"}


def sample_feeds(model: Any, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Inputs of a model: of a decoder one text, whose last token stands where its pages end.

    With an encoder the other row of the table has the sound, and the text as many places as it may.
    """
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for spec in model.inputs:
        shape, dtype = shapes[spec.name], spec.dtype.numpy
        if spec.name == "settings":
            feeds[spec.name] = np.zeros(shape, dtype)  # the best token
        elif np.dtype(dtype).kind == "f":
            feeds[spec.name] = rng.standard_normal(shape, np.float32).astype(dtype)
        elif spec.name == "allowed":  # a bit for each token
            feeds[spec.name] = np.full(shape, np.iinfo(dtype).max, dtype)
        elif "mask" in spec.name:
            feeds[spec.name] = np.ones(shape, dtype)
        elif spec.name == "table":
            feeds[spec.name] = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
        elif spec.name == "step":
            end = TEXT_PLACES if "cross" in shapes else PAGE_TOKENS * shapes["table"][1]
            feeds[spec.name] = np.zeros(shape, dtype)
            feeds[spec.name][:, 2] = np.arange(end - shape[0], end)
        elif spec.name in ("cross", "writes"):  # of the other row: its last place, and all
            places = np.arange(shape[1]) if spec.name == "writes" else SOUND_PLACES - 1
            feeds[spec.name] = np.zeros(shape, dtype)
            feeds[spec.name][..., 1], feeds[spec.name][..., 2] = 1, places
        elif spec.name == "lengths":
            feeds[spec.name] = np.full(shape, SOUND_PLACES, dtype)
        else:
            feeds[spec.name] = np.zeros(shape, dtype)
    return feeds
