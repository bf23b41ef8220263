"""The LoRA adapters of tiny decoders that are compared with peft, by configuration."""

from __future__ import annotations

from typing import Any, NamedTuple


class AdapterCase(NamedTuple):
    """An adapter.

    Attributes:
        base: Its model, of `oracle_decoders.DECODERS`.
        settings: Of peft's LoraConfig.
    """

    base: str
    settings: dict[str, Any]


_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_GATED = ["gate_proj", "up_proj", "down_proj"]

#: By name.
ADAPTERS: dict[str, AdapterCase] = {
    "llama": AdapterCase(
        "llama",
        {
            "r": 4,
            "lora_alpha": 6,
            "target_modules": [*_ATTENTION, *_GATED],
            "bias": "all",
            "rank_pattern": {"k_proj": 2, "^model.layers.1.mlp.up_proj": 5},
            "alpha_pattern": {"layers.0.self_attn.(q|k)_proj": 3, "o_proj": 11},
        },
    ),
    "llama_bias": AdapterCase(
        "llama",
        {"r": 3, "target_modules": ["q_proj", "down_proj", "lm_head"], "lora_bias": True},
    ),
    "tied": AdapterCase(
        "llama3",
        {"r": 4, "target_modules": ["embed_tokens", "q_proj", "v_proj"], "use_rslora": True},
    ),
    "tied_head": AdapterCase("llama3", {"r": 4, "target_modules": ["lm_head", "k_proj"]}),
    "kept_tied": AdapterCase(
        "llama3",
        {"r": 4, "target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    ),
    "gpt2": AdapterCase(
        "gpt2",
        {
            "r": 4,
            "target_modules": ["c_attn", "c_proj", "c_fc", "wpe"],
            "fan_in_fan_out": True,
            "bias": "lora_only",
        },
    ),
    "gpt2_dora": AdapterCase(
        "gpt2", {"r": 2, "target_modules": ["c_attn", "c_fc"], "use_dora": True}
    ),
    "phi3": AdapterCase(
        "phi3",
        {"r": 4, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]},
    ),
    "dora": AdapterCase(
        "qwen2",
        {"r": 4, "target_modules": ["embed_tokens", *_ATTENTION, *_GATED], "use_dora": True},
    ),
    "gpt_neox": AdapterCase(
        "gpt_neox",
        {
            "r": 4,
            "target_modules": ["query_key_value", "dense", "dense_h_to_4h"],
            "use_dora": True,
            "bias": "all",
        },
    ),
    "falcon_new": AdapterCase("falcon_new", {"r": 4, "target_modules": ["query_key_value"]}),
    "gemma": AdapterCase(
        "gemma",
        {
            "r": 4,
            "target_modules": ["q_proj", "up_proj"],
            "modules_to_save": ["lm_head", "norm", "k_proj", "input_layernorm"],
        },
    ),
    "cohere": AdapterCase("cohere", {"r": 4, "target_modules": _ATTENTION}),
    "smollm3": AdapterCase("smollm3", {"r": 4, "target_modules": _ATTENTION}),
}
#: Adapters of one model that are added up, with a factor each.
ADDED = ("llama_bias", {"llama_bias": 0.5, "llama_more": -1.5})
ADAPTERS["llama_more"] = AdapterCase("llama", {"r": 6, "target_modules": ["q_proj", "k_proj"]})


class GgufAdapterCase(NamedTuple):
    """An adapter in llama.cpp's form.

    Attributes:
        base: Its model, of `gguf_decoders.case_file`.
        shapes: Of the matrices that are changed, by their names in the file; of all experts they
            have three axes.
        alpha: 0 for none.
        factor: How much of it counts.
    """

    base: str
    shapes: dict[str, tuple[int, ...]]
    alpha: float = 6.0
    factor: float = 1.0


def _both(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """In both layers."""
    return {f"blk.{k}.{name}.weight": shape for k in range(2) for name, shape in shapes.items()}


_PROJECTIONS = {"attn_q": (96, 48), "attn_k": (32, 48), "attn_output": (48, 96)}
_NETWORK = {"ffn_gate": (80, 48), "ffn_down": (48, 80)}
_WIDE = {"attn_q": (256, 256), "attn_v": (256, 256), "ffn_up": (512, 256)}
#: By name. llama.cpp computes with the matrices of the base and the adapter apart.
GGUF_ADAPTERS: dict[str, GgufAdapterCase] = {
    "llama": GgufAdapterCase(
        "llama",
        {**_both({**_PROJECTIONS, **_NETWORK}), "token_embd.weight": (37, 48)}
        | {"output.weight": (37, 48)},
    ),
    "phi3": GgufAdapterCase(
        "phi3", _both({"attn_qkv": (80, 48), "ffn_up": (160, 48)}), alpha=0.0, factor=0.7
    ),
    "mixtral": GgufAdapterCase(
        "mixtral", _both({"ffn_up_exps": (4, 80, 48), "ffn_down_exps": (4, 48, 80)})
    ),
    "Q4_0": GgufAdapterCase("Q4_0", _both(_WIDE), factor=0.5),
}
GGUF_RANK = 4
