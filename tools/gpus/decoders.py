"""Decoders of known geometries with random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from clrt.importer.language.config import read_decoder
from clrt.importer.language.graph import decoder_graph
from clrt.importer.language.huggingface import read_folder
from clrt.ir.dims import substitute
from clrt.ir.graph import Graph
from clrt.ops.attention.pages import SLABS
from clrt.plan.contract import Contract

from .few_bits import FewBits

_CONFIGS: dict[str, dict[str, Any]] = {
    "GPT-2": {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
        "tie_word_embeddings": True,
    },
    "SmolLM2-135M (Llama)": {
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    },
    "Llama-3.2-1B in 4 bits (Q4_K_M)": {
        "model_type": "llama",
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "num_attention_heads": 32,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
}
DECODERS = tuple(_CONFIGS)
_KEPT = frozenset(f"slab{s}" for s in range(SLABS))
# The cache stays on the device, and is written in place.
CONTRACT = Contract(_KEPT, _KEPT, frozenset(f"kept{s}" for s in range(SLABS)))
# Pages of 32 tokens that a sequence has.
_PAGES = 16


def read_decoder_graph(name: str, work: Path) -> Graph:
    """The graph of one of `DECODERS`, whose folder is made under `work`."""
    folder, config = work / name, _CONFIGS[name]
    few_bits = "4 bits" in name
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if not few_bits:
            _write_weights(folder, config)
    if few_bits:
        return decoder_graph(read_decoder(folder)[0], FewBits(config))
    return decoder_graph(*read_folder(folder))


def layers_of(name: str) -> int:
    """The layers of one of `DECODERS`."""
    config = _CONFIGS[name]
    return int(config.get("n_layer") or config["num_hidden_layers"])


def step_shapes(tokens: int, graph: Graph) -> Mapping[str, tuple[int, ...]]:
    """The inputs of a step of one sequence that runs so many tokens and asks for the next one."""
    sizes = {"tokens": tokens, "pages": _PAGES, "pages0": _PAGES, "history": 0, "biases": 0}
    sizes |= dict.fromkeys((f"pages{s}" for s in range(1, SLABS)), 0)
    shapes = {v.name: v.shape or () for v in graph.inputs}
    names = {n for s in shapes.values() for d in s if not isinstance(d, int) for n in d.symbols}
    bindings = {name: sizes.get(name, 1) for name in names}
    return {n: tuple(int(substitute(d, bindings)) for d in s) for n, s in shapes.items()}


def _write_weights(folder: Path, config: Mapping[str, Any]) -> None:
    from safetensors.numpy import save_file

    dtype = ml_dtypes.bfloat16 if config.get("dtype") == "bfloat16" else np.float32
    rng = np.random.default_rng(0)
    tensors = _gpt2(config) if config["model_type"] == "gpt2" else _llama(config)
    # Small, or no logit would be a number.
    weights = {n: (0.02 * rng.standard_normal(s, np.float32)).astype(dtype) for n, s in tensors}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _gpt2(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of a checkpoint."""
    hidden = config["n_embd"]
    yield "transformer.wte.weight", (config["vocab_size"], hidden)
    yield "transformer.wpe.weight", (config["n_positions"], hidden)
    norms = ["transformer.ln_f"]
    for layer in (f"transformer.h.{i}" for i in range(config["n_layer"])):
        norms += [f"{layer}.ln_1", f"{layer}.ln_2"]
        for name, inputs, outputs in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, 4 * hidden),
            ("mlp.c_proj", 4 * hidden, hidden),
        ):
            yield f"{layer}.{name}.weight", (inputs, outputs)
            yield f"{layer}.{name}.bias", (outputs,)
    for name in norms:
        yield f"{name}.weight", (hidden,)
        yield f"{name}.bias", (hidden,)


def _llama(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of a checkpoint."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    kept = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for layer in (f"model.layers.{i}" for i in range(config["num_hidden_layers"])):
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        for name, inputs, outputs in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", hidden, kept),
            ("self_attn.v_proj", hidden, kept),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", hidden, wide),
            ("mlp.up_proj", hidden, wide),
            ("mlp.down_proj", wide, hidden),
        ):
            yield f"{layer}.{name}.weight", (outputs, inputs)
