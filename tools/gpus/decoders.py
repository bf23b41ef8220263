"""Decoders of known geometries with made-up weights, which plans do not read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.dims import substitute
from clrt.ir.graph import Graph
from clrt.ir.kv_cache_sizes import MAX_SLABS
from clrt.ir.op import Array
from clrt.models.decoders.config import read_decoder
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.weight_source import QuantizedMatrix
from clrt.plan.device_io import DeviceIo

_GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
_LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5}
SMOLLM2 = _LLAMA | {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_theta": 100000.0,
    "vocab_size": 49152,
}
_LLAMA_1B = _LLAMA | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
_KEPT = frozenset(f"slab{s}" for s in range(MAX_SLABS))
# The cache stays on the device, and is written in place.
CONTRACT = DeviceIo(_KEPT, _KEPT, frozenset(f"kept{s}" for s in range(MAX_SLABS)))
# Pages of 32 tokens that a sequence has: those of 512, or of the places of Whisper's sound.
_PAGES, _SOUND_PAGES = 16, 47
# Of Whisper.
SOUND_PLACES, TEXT_PLACES = 1500, 448


@dataclass(frozen=True)
class MadeUpWeights:
    """Tensors in all shapes that are asked for; matrices take no memory until they are read.

    Attributes:
        present: Optional tensors that exist, by the last two components of their names.
        dtype: Dtype of matrices.
        blocks: GGUF block type of matrices; "" for dense ones.
        turned: Matrices of layers are stored `[inputs, outputs]`.
    """

    present: frozenset[str]
    dtype: Any = np.float32
    blocks: str = ""
    turned: bool = False

    def __contains__(self, name: str) -> bool:
        return ".".join(name.split(".")[-2:]) in self.present

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """A tensor of no matter which number, but neither of 0 nor of 1, which passes leave out."""
        return np.full(shape, 0.75, np.float32)

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        """Zeros."""
        if self.blocks:
            width = BLOCK_TYPES_BY_NAME[self.blocks].row_bytes(columns)
            return QuantizedMatrix(self.blocks, np.zeros((rows, width), np.uint8))
        if self.turned and name.startswith("blk."):
            return np.zeros((columns, rows), self.dtype).T
        return np.zeros((rows, columns), self.dtype)


def _names(*parts: str, biases: bool = False) -> frozenset[str]:
    norms = ("attn_norm", "ffn_norm", "output_norm")
    found = {f"{part}.weight" for part in norms} | set(parts)
    return frozenset(found | {f"{part}.bias" for part in norms} if biases else found)


_OF_LLAMA = _names()
_OF_GPT2 = _names(
    *("attn_qkv.weight", "attn_qkv.bias", "attn_output.bias", "ffn_up.bias", "ffn_down.bias"),
    biases=True,
)
_OF_WHISPER = _names(
    *("attn_q.bias", "attn_v.bias", "attn_output.bias", "ffn_up.bias", "ffn_down.bias"),
    *("cross_attn_norm.weight", "cross_attn_norm.bias", "cross_attn_q.bias"),
    *("cross_attn_v.bias", "cross_attn_output.bias"),
    biases=True,
)


@dataclass(frozen=True)
class Run:
    """Work of a step of one sequence.

    Attributes:
        tokens: Number of tokens processed.
        sounds: Number of 30 s audio windows encoded.
    """

    title: str
    tokens: int
    sounds: int = 0


_RUNS = Run("a token", 1), Run("a prompt of 128", 128)


@dataclass(frozen=True)
class KnownDecoder:
    """A decoder, and the steps to plan.

    Attributes:
        read: What it is; a folder for what is made on the way is given.
    """

    name: str
    read: Callable[[Path], DecoderConfig]
    weights: MadeUpWeights
    runs: tuple[Run, ...] = _RUNS

    def graph(self, work: Path) -> Graph:
        """Returns its graph."""
        return decoder_graph(self.read(work / self.name), self.weights)

    def layers(self, work: Path) -> int:
        """Number of layers."""
        return self.read(work / self.name).layers


def _configured(config: Mapping[str, Any], folder: Path) -> DecoderConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return read_decoder(folder)[0]


def _whisper(folder: Path) -> DecoderConfig:
    """The base model."""
    decoder = DecoderConfig(
        family="whisper_decoder",
        vocabulary=51865,
        hidden=512,
        layers=6,
        heads=8,
        kv_heads=8,
        head_size=64,
        intermediate=2048,
        context=TEXT_PLACES,
        norm="layer",
        epsilon=1e-5,
        activation="gelu",
        gated=False,
        places=TEXT_PLACES,
    )
    encoder = replace(decoder, family="whisper_encoder", features=80, stride=2)
    encoder = replace(encoder, context=SOUND_PLACES, places=SOUND_PLACES)
    return replace(decoder, encoder=encoder)


_HALF = MadeUpWeights(_OF_LLAMA, ml_dtypes.bfloat16)
_FOUR_BITS = MadeUpWeights(_OF_LLAMA, blocks="Q4_0")
DECODERS = (
    KnownDecoder("GPT-2", partial(_configured, _GPT2), MadeUpWeights(_OF_GPT2, turned=True)),
    KnownDecoder("SmolLM2-135M (Llama)", partial(_configured, SMOLLM2), _HALF),
    KnownDecoder("Llama of 1B", partial(_configured, _LLAMA_1B), _HALF, _RUNS[:1]),
    KnownDecoder("Llama of 1B in 4 bits", partial(_configured, _LLAMA_1B), _FOUR_BITS, _RUNS[:1]),
    KnownDecoder(
        "Whisper base",
        _whisper,
        MadeUpWeights(_OF_WHISPER),
        (Run("30 s of sound and a token", 1, 1), Run("a token", 1)),
    ),
)


def step_shapes(run: Run, graph: Graph) -> Mapping[str, tuple[int, ...]]:
    """Returns the input shapes of a step."""
    shapes = {v.name: v.shape or () for v in graph.inputs}
    names = {n for s in shapes.values() for d in s if not isinstance(d, int) for n in d.symbols}
    # A sound has a row of the table of its own.
    hears = "places" in names
    pages = _SOUND_PAGES if hears else _PAGES
    sizes = {"tokens": run.tokens, "pages": pages, "pages0": pages, "history": 0, "biases": 0}
    sizes |= dict.fromkeys((f"pages{s}" for s in range(1, MAX_SLABS)), 0)
    if hears:
        places = SOUND_PLACES if run.sounds else 1
        sizes |= {"sequences": 2, "pages0": 2 * pages, "batch": run.sounds, "places": places}
    bindings = {name: sizes.get(name, 1) for name in names}
    return {n: tuple(int(substitute(d, bindings)) for d in s) for n, s in shapes.items()}
