"""Plans for all GPU profiles contain no launch that a device would refuse; no GPU needed.

Decoders are cut to one layer, since all layers use the same kernels; float32 ones are narrowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.sources import read_graph
from clrt.ops.op_builder import OpBuilder
from tests.models.oracle import model_folder
from tools.gpus.compiling import refusals
from tools.gpus.decoders import CONTRACT, DECODERS, KnownDecoder, step_shapes
from tools.gpus.planning import Model, Planned, plan_model
from tools.gpus.profiles import profiles

LEAST = next(p for p in profiles() if p.caps.vendor == "Nobody")


def _net() -> Graph:
    """Returns a small convolutional net."""
    build, rng = OpBuilder(), np.random.default_rng(0)

    def conv(
        x: Value, maps: int, channels: int, window: int, stride: int = 1, group: int = 1
    ) -> Value:
        weights = rng.standard_normal((maps, channels // group, window, window), np.float32)
        attributes = {"pads": (window // 2,) * 4, "strides": (stride,) * 2, "group": group}
        y = build("Conv", x, weights, np.ones(maps, np.float32), **attributes)
        return build("Relu", y)

    x = build.feed("x", DType.FLOAT32, 1, 3, 56, 56)
    y = build("MaxPool", conv(x, 32, 3, 7, 2), kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4)
    wide = conv(conv(y, 32, 32, 1), 32, 32, 3)
    y = build("Add", conv(wide, 32, 32, 3, group=32), y)
    y = build("Flatten", build("GlobalAveragePool", conv(y, 64, 32, 1)))
    weights = rng.standard_normal((64, 1000), np.float32)
    return build.graph("net", build.inputs, [build("MatMul", y, weights)], ["y"])


def _cut(known: KnownDecoder, folder: Path) -> DecoderConfig:
    """Reads a decoder (and its encoder) cut to one layer."""
    found = known.read(folder)
    encoder = None if found.encoder is None else _cut_part(found.encoder, known)
    return replace(_cut_part(found, known), encoder=encoder)


def _cut_part(part: DecoderConfig, known: KnownDecoder) -> DecoderConfig:
    cut = replace(part, layers=1, rotaries=part.rotaries[:1], windows=())
    if known.weights.dtype is not np.float32 or known.weights.blocks:
        return cut
    sizes = {"heads": 2, "kv_heads": 2, "hidden": 2 * part.head_size, "intermediate": 256}
    return replace(cut, vocabulary=1000, **sizes)  # type: ignore[arg-type]


def _models(work: Path) -> Iterator[Model]:
    yield Model("net", _net, lambda graph: {"x": (1, 3, 56, 56)})
    texts = partial(read_graph, model_folder())
    yield Model("MiniLM", texts, lambda graph: {v.name: (1, 128) for v in graph.inputs})
    for known in DECODERS:
        cut = replace(known, read=partial(_cut, known))
        for run in known.runs:
            shapes = partial(step_shapes, run)
            title = f"{known.name}, {run.title}"
            yield Model(title, partial(cut.graph, work), shapes, CONTRACT)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> list[Planned]:
    work = tmp_path_factory.mktemp("decoders")
    return [p for model in _models(work) for p in plan_model(model, profiles())]


@pytest.mark.lengthy
def test_models_plan_for_gpu_profiles_without_host_fallback(plans: list[Planned]) -> None:
    """Only the least profile may lack memory for a model; the error says how much."""
    for planned in plans:
        where = f"{planned.model} on {planned.profile.name}"
        if planned.error:
            assert planned.profile is LEAST and " more than " in planned.error, where
        else:
            assert planned.work and not planned.host, (where, planned.host)


def test_planned_launches_fit_every_gpu_profile(plans: list[Planned]) -> None:
    """Local memory is excluded: it is known only after compilation."""
    assert list(refusals(plans, {})) == []


def test_gpu_plans_use_no_fallback_kernels(plans: list[Planned]) -> None:
    """Fallback kernels are for devices with less local memory than any GPU."""
    kernels = {k.entry for p in plans for k, _ in p.kernels}
    assert {"gemm_any", "fused_attention_any", "paged_attention_any"}.isdisjoint(kernels)
    assert {"gemm_gpu", "fused_attention_gpu", "paged_attention_gpu"} <= kernels
