"""Decoders from GGUF files, against logits of llama.cpp and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.formats.gguf.file import read_gguf
from clrt.generation.engine import DecoderEngine
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.generation.sequences import ScheduledSequence
from clrt.ir.dtypes import DType
from clrt.kernels.tuned import TUNED
from clrt.kernels.tuning_records import record_for
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.gguf import read_gguf_decoder
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.weight_source import QuantizedMatrix, WeightSource
from clrt.runtime.execution import plan_maker
from clrt.runtime.opencl.devices import DeviceInfo
from tests.generation.checkpoints import DATA, Array
from tests.generation.gguf_decoders import CASES, CHANGES, PLACES, QUANTISED, UNANSWERED, case_file
from tests.generation.oracle_decoders import COLUMNS, LENGTHS, VOCABULARY
from tests.generation.test_token_decoders import LOGITS, TOLERANCE, Run
from tests.harness import quick_device
from tests.ops.test_ops import SHORT

LLAMA_CPP = np.load(DATA / "llama_cpp.npz")
# Activations of llama.cpp come from a table in float16; its Phi-3 has no window.
GELU_TOLERANCE = 1e-2
GELU = ("bloom", "falcon", "gemma", "gpt2", "gpt_neox", "gpt_bigcode", "mpt", "phi", "starcoder")
# Rows of activations are rounded to 127 levels for every 16 or 32 elements. For normal ones the
# largest of these is about 2.1 deviations, so that each element, and so each product, is off by
# 2.1 / 127 / sqrt(12) or 0.5 % of one. Ten products in a row, whose errors add up as squares, make
# 1.6 %, and layers of noise, whose scores spread by more than 1, double it. The largest of
# thousands of errors is seven deviations at most.
ROUNDED, LARGEST = 0.04, 7
# llama.cpp rounds K-quants' activations by blocks of 256, and others as clrt does, but elsewhere.
BESIDE_LLAMA_CPP = 1.25


def loaded(
    decoder: DecoderConfig, source: WeightSource, device: DeviceInfo | None = None
) -> clrt.Model:
    return clrt.load(decoder_graph(decoder, source), device=device or quick_device())


def all_logits(
    decoder: DecoderConfig, source: WeightSource, device: DeviceInfo | None = None
) -> list[Array]:
    """Of both texts, at once."""
    run = Run(decoder, loaded(decoder, source, device))
    found = run.step({text: range(length) for text, length in enumerate(LENGTHS)})
    return [found[text] for text in range(len(LENGTHS))]


@pytest.mark.parametrize("name", CASES)
def test_gguf_logits_match_transformers_and_llama_cpp(name: str, tmp_path: Path) -> None:
    decoder, source = read_gguf_decoder(read_gguf(case_file(name, tmp_path)))
    logits = all_logits(decoder, source)
    source.check_all_read()
    if name not in CHANGES:
        for text, found in enumerate(logits):
            wanted = LOGITS[f"{name}/{text}"]
            np.testing.assert_allclose(found[:, COLUMNS], wanted, atol=TOLERANCE, rtol=0)
    if name in UNANSWERED:
        return
    has_table = name.startswith(GELU) and not name.startswith("phi3")
    places = 3 if name == "phi3" else None  # those that lie within the window
    np.testing.assert_allclose(
        logits[0][PLACES][:places],
        LLAMA_CPP[name][:places],
        atol=GELU_TOLERANCE if has_table else TOLERANCE,
        rtol=0,
    )


class DequantisedWeights:
    """A source whose matrices are float32."""

    def __init__(self, source: WeightSource) -> None:
        self.source = source

    def __contains__(self, name: str) -> bool:
        return name in self.source

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        return self.source.load(name, shape)

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        found = self.source.matrix(name, rows, columns)
        if isinstance(found, QuantizedMatrix):
            return BLOCK_TYPES_BY_NAME[found.type].dequantise(found.raw)
        return found


@pytest.mark.parametrize("name", QUANTISED)
def test_quantized_gguf_logits_match_float32_and_llama_cpp(name: str, tmp_path: Path) -> None:
    decoder, source = read_gguf_decoder(read_gguf(case_file(name, tmp_path)))
    logits = all_logits(decoder, source)
    exact = all_logits(decoder, DequantisedWeights(source))
    for found, wanted in zip(logits, exact, strict=True):
        error, spread = found - wanted, wanted.std()
        assert error.std() < ROUNDED * spread
        assert np.abs(error).max() < LARGEST * ROUNDED * spread
    theirs = (LLAMA_CPP[name] - exact[0][PLACES]).std()
    assert (logits[0] - exact[0]).std() < BESIDE_LLAMA_CPP * theirs
    assert (logits[0][PLACES] - LLAMA_CPP[name]).std() < BESIDE_LLAMA_CPP * 2**0.5 * theirs


def test_gpu_kernels_read_quantized_gguf_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU device stands in for a GPU and runs GPU kernels, with small tiles."""

    def record(kernel: str, caps: DeviceCaps) -> Mapping[str, int]:
        own = TUNED[kernel].defaults if kernel in TUNED else {}
        return {k: v for k, v in SHORT.items() if k in own} or record_for(kernel, caps)

    monkeypatch.setattr(plan_maker, "record_for", record)
    own = quick_device()
    units = own.caps.compute_units + 1
    caps = replace(own.caps, kind="gpu", compute_units=units, matrix_shapes=frozenset())
    gpu = replace(own, caps=caps)
    decoder, source = read_gguf_decoder(read_gguf(case_file("Q4_K", tmp_path)))
    model = loaded(decoder, source, gpu)
    run = Run(decoder, model)
    texts = {text: range(length) for text, length in enumerate(LENGTHS)}
    first = run.step({text: places[:-1] for text, places in texts.items()})
    last = run.step({text: places[-1:] for text, places in texts.items()})
    exact = all_logits(decoder, DequantisedWeights(source))
    for text, wanted in enumerate(exact):
        found = np.concatenate([first[text], last[text]])
        np.testing.assert_allclose(found, wanted, atol=TOLERANCE * wanted.std(), rtol=0)
    raw = sum(v.nbytes for v in model._graph.constants() if v.dtype is DType.UINT8)
    assert model._runner.room.weights.nbytes < 1.2 * raw


def test_quantized_logits_are_bitwise_equal_for_any_step_size(tmp_path: Path) -> None:
    """Equal logits make sampling with the same seed give the same text."""
    device = quick_device()
    if not device.caps.int8_dot_isa:
        pytest.skip("products are of floats here")
    decoder, source = read_gguf_decoder(read_gguf(case_file("mixed", tmp_path)))
    engine = DecoderEngine(decoder_graph(decoder, source), 64, sequences=1, device=device)
    sampler = TokenSampler(Sampling(), VOCABULARY, seed=0)
    tokens = [(5 * k + 1) % VOCABULARY for k in range(48)]
    found = []
    for size in (1, 2, 3, 4, 7, 8, 16, 48):
        sequence, rows = engine.open(tokens, anew=True), []
        while sequence.left:
            count = min(size, sequence.left)
            rows += list(
                engine.step([ScheduledSequence(sequence, count, [sampler] * count)], ["logits"])[
                    "logits"
                ]
            )
        engine.close(sequence)
        found.append(np.array(rows).view(np.uint32))
    engine.close_model()
    assert all((rows == found[0]).all() for rows in found)
