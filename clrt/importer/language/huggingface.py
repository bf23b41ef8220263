"""Decoders of Hugging Face folders: config.json, and safetensors under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clrt.importer.huggingface.checkpoint import Checkpoint
from clrt.importer.language.decoder import Decoder, Rotary
from clrt.ir.op import Array

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}


class HuggingFaceWeights:
    """The tensors of a folder under llama.cpp's names."""

    def __init__(self, checkpoint: Checkpoint, names: Mapping[str, str]) -> None:
        self._checkpoint, self._names = checkpoint, names

    def __contains__(self, name: str) -> bool:
        stored = self._stored(name)
        return stored is not None and stored in self._checkpoint

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        """A tensor in the dtype of the file.

        Raises:
            ModelError: It is missing, or has another shape.
        """
        return self._checkpoint.stored(self._stored(name) or name, shape)

    def _stored(self, name: str) -> str | None:
        path, _, kind = name.rpartition(".")
        parts = path.split(".")
        layer = parts[1] if parts[0] == "blk" else ""
        key = ".".join(["blk", "{}", *parts[2:]]) if layer else path
        found = self._names.get(key)
        return None if found is None else f"{found.format(layer)}.{kind}"


def read_folder(folder: Path, config: Mapping[str, Any]) -> tuple[Decoder, HuggingFaceWeights]:
    """What a folder's config.json describes, and its weights."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config.get("rope_parameters", {}).get("rope_theta", 1e4)
    frequencies = theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    decoder = Decoder(
        family=config["model_type"],
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_size=size,
        intermediate=config["intermediate_size"],
        context=config["max_position_embeddings"],
        epsilon=config["rms_norm_eps"],
        activation=config["hidden_act"],
        rotary=Rotary(frequencies.astype(np.float32)),
    )
    return decoder, HuggingFaceWeights(Checkpoint(folder, "AutoModelForCausalLM"), _LLAMA)
