"""Overhead of a token: launches, plans, programs and allocations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clrt.generation.engine import DecoderEngine
from clrt.generation.text_generator import TextGenerator
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.plan.steps import HostStep, Region
from tests.generation.gguf_decoders import case_file
from tests.generation.test_gguf_models import TOKENS
from tests.generation.text_folders import make_generator, write_texts

LAUNCHES = 6
"""Of a layer, at most."""


@pytest.fixture(params=["folder", "gguf"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TextGenerator]:
    is_folder = request.param == "folder"
    source = write_texts(tmp_path) if is_folder else case_file("Q4_0", tmp_path, **TOKENS)
    with make_generator(source) as made:
        yield made


def engine_of(model: TextGenerator) -> DecoderEngine:
    return model._scheduler.engine


def test_decoder_layer_launch_count_is_bounded(model: TextGenerator) -> None:
    engine = engine_of(model)
    model.generate([5, 9, 2], max_new_tokens=3)
    latest = engine.model._runner.planner.kept.latest
    assert latest is not None
    counts: Counter[str] = Counter()
    for step in latest[1].plan.steps:
        assert not isinstance(step, HostStep)
        names = [n.name for n in step.nodes] if isinstance(step, Region) else [step.node.name]
        found = re.search(r"blk\.(\d+)", names[-1])
        counts[found[1] if found else ""] += len(step.launches)
    layers = [count for layer, count in counts.items() if layer]
    assert len(layers) == model._model.decoder.layers
    assert max(layers) <= LAUNCHES


def test_token_step_plans_compiles_and_allocates_nothing(model: TextGenerator) -> None:
    engine = engine_of(model)
    planner, session = engine.model._runner.planner, engine.model._session
    options: dict[str, Any] = {"max_new_tokens": 3 * PAGE_TOKENS, "logit_bias": {1: float("-inf")}}
    model.generate([4, 4, 4], **options)  # the cache is as large as it will be
    stream = model.stream([5, 9, 2], **options)
    for _ in range(4):
        next(stream)

    def counted() -> tuple[object, ...]:
        slabs = [id(slab.lease.buffer) for slab in engine.cache.slabs if slab.lease and slab.nbytes]
        assert slabs  # a run keeps the cache where it is
        made = (session.programs.requests, session.allocations, session.allocated_bytes)
        return (*made, len(planner.kept), *slabs)

    before, done = counted(), engine.computed
    while engine.computed < done + PAGE_TOKENS - 6:
        next(stream)
        assert counted() == before
    stream.close()
