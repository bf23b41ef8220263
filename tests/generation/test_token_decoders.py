"""Decoders from Hugging Face folders, against transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler, sampler_inputs
from clrt.ir.dtypes import DType
from clrt.ir.kv_cache_sizes import MAX_SLABS
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.huggingface import read_folder
from clrt.passes.pipeline import optimize
from tests.generation.checkpoints import DATA, Array, load_json, tokens, write_folder
from tests.generation.oracle_decoders import COLUMNS, GIVEN, LENGTHS
from tests.harness import quick_device

CASES = load_json()
LOGITS = np.load(DATA / "decoders.npz")
# Pages of both texts, in no order and in two slabs; numbers in between are nobody's.
TABLE = np.array([[6, 1, 3], [0, 5, 2]], np.int32)
PAGES = (2, 6)
# The largest difference from logits that spread by 0.1 to 10.
TOLERANCE = 1e-4
# A cache of float16 rounds keys and values to 11 bits.
HALF_TOLERANCE = 2e-2


class Run:
    """A decoder with both texts in its cache."""

    def __init__(
        self, decoder: DecoderConfig, model: clrt.Model, cache: DType = DType.FLOAT32
    ) -> None:
        self.model, self.vocabulary = model, decoder.vocabulary
        self.long_beyond = decoder.long_beyond
        counts = [*PAGES, *[0] * (MAX_SLABS - len(PAGES))]
        shapes = {f"slab{s}": (n, decoder.page_elements(cache)) for s, n in enumerate(counts)}
        self.state = model.new_state({f"slab{s}": f"kept{s}" for s in range(MAX_SLABS)}, shapes)

    def step(self, parts: dict[int, range]) -> dict[int, Array]:
        """The logits of some places of texts, whose tokens lie between each other.

        A token of no text stands behind each.
        """
        order = [
            (place / len(places), text, place, int(tokens(LENGTHS[text])[place]))
            for text, places in parts.items()
            for place in places
        ]
        steps, rows = [], {text: [] for text in parts}
        for _, text, place, token in sorted(order):
            rows[text].append(len(steps))
            steps.append((token, text, place))
            if place % 7 == 0 or len(parts) == len(order):
                steps.append((0, -1, 0))
        wanted = [row for text in parts for row in rows[text]]
        feeds = {
            "step": np.array(steps, np.int32),
            "table": TABLE,
            "rows": np.array(wanted, np.int32),
        }
        if self.long_beyond:
            # The oracle read each text as a whole.
            lengths = [LENGTHS[text] if text >= 0 else 0 for _, text, _ in steps]
            feeds["long"] = np.array([n > self.long_beyond for n in lengths], np.int32)
        sampler = TokenSampler(Sampling(), self.vocabulary)
        feeds |= sampler_inputs([sampler] * len(wanted), [[]] * len(wanted), self.vocabulary)
        found = self.model.run(feeds, state=self.state)
        logits = found["logits"]
        np.testing.assert_array_equal(found["token"], logits.argmax(axis=1))
        ends = np.cumsum([len(rows[text]) for text in parts])[:-1]
        return dict(zip(parts, np.split(np.asarray(logits), ends), strict=True))


def largest_error(name: str, folder: Path, cache: DType = DType.FLOAT32, **options: Any) -> float:
    """How far logits of both texts are from transformers', each given in part, then by token."""
    decoder, source = read_folder(write_folder(folder, CASES[name]), **options)
    model = clrt.load(decoder_graph(decoder, source, cache), device=quick_device())
    run = Run(decoder, model, cache)
    steps = [{text: range(n) for text, n in enumerate(GIVEN)}]
    for k in range(LENGTHS[0] - GIVEN[0]):
        steps.append({text: range(n + k, n + k + 1) for text, n in enumerate(GIVEN)})
    worst = 0.0
    for parts in steps:
        for text, got in run.step(parts).items():
            expected = LOGITS[f"{name}/{text}"][parts[text].start : parts[text].stop]
            worst = max(worst, float(np.abs(got[:, COLUMNS] - expected).max()))
    return worst


@pytest.mark.parametrize("name", CASES)
def test_decoder_logits_match_transformers(name: str, tmp_path: Path) -> None:
    assert largest_error(name, tmp_path / name) < TOLERANCE


@pytest.mark.parametrize("cache", [DType.FLOAT16, DType.BFLOAT16, DType.UINT8])
def test_decoder_logits_with_narrow_cache_match_transformers(cache: DType, tmp_path: Path) -> None:
    parts = {DType.FLOAT16: 1, DType.BFLOAT16: 8, DType.UINT8: 16}[cache]
    assert largest_error("llama", tmp_path, cache) < HALF_TOLERANCE * parts


@pytest.mark.parametrize(
    "name, cache", [("llama_bf16", DType.FLOAT16), ("qwen3_moe", DType.BFLOAT16)]
)
def test_decoder_16_bit_weights_and_cache_get_no_casts(
    name: str, cache: DType, tmp_path: Path
) -> None:
    """Casts of the cache or the weights would copy all of them."""
    graph = decoder_graph(*read_folder(write_folder(tmp_path, CASES[name])), cache)
    optimize(graph)
    casts = [n for n in graph.nodes if n.op.name == "Cast"]
    assert {n.arg(0).dtype for n in casts} <= {DType.INT32, DType.BFLOAT16}
    assert not any("slab" in n.arg(0).name or "weight" in n.arg(0).name for n in casts)
    constants = [v for v in graph.constants() if len(v.dims) > 1]
    assert {v.dtype for v in constants} == {DType.BFLOAT16}
