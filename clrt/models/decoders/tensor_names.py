"""Names of tensors in Hugging Face checkpoints, by llama.cpp's names.

The first `{}` in a name stands for the index of the layer; a second `{}` stands for the index of an
expert or head, if each has a tensor of its own. If there are several names, the first one that the
checkpoint has is used. Names may have prefixes, which `clrt.models.decoders.weights` adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Names: TypeAlias = Mapping[str, str | tuple[str, ...]]


def _layers(names: Names, layers: str = "layers") -> dict[str, str | tuple[str, ...]]:
    """Returns full names of tensors for names relative to a layer.

    llama.cpp's names get the prefix "blk.{}.", names in checkpoints the prefix "<layers>.{}.".

    Args:
        names: Name or names in checkpoints by llama.cpp's name, relative to a layer.
        layers: Path of the list of layers in checkpoints.
    """

    def within(theirs: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(theirs, str):
            return f"{layers}.{{}}.{theirs}"
        return tuple(f"{layers}.{{}}.{one}" for one in theirs)

    return {f"blk.{{}}.{ours}": within(theirs) for ours, theirs in names.items()}


_EDGES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}

_ATTENTION: Names = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
_GATED: Names = {
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

#: Llama, Mistral, Qwen 2 and 3, SmolLM3, Gemma, Granite, OLMo and Cohere.
LLAMA: Names = {**_EDGES, **_layers({**_ATTENTION, **_GATED})}

#: Gemma 2 and 3: norms before and after attention and feed-forward network.
GEMMA2: Names = {
    **LLAMA,
    **_layers(
        {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    ),
}

#: OLMo 2: norms after attention and feed-forward network only.
OLMO2: Names = {
    **LLAMA,
    **_layers(
        {
            "post_attention_norm": "post_attention_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    ),
}

#: Phi-3: Q, K and V as one, gate and up projection as one.
PHI3: Names = {
    **LLAMA,
    **_layers({"attn_qkv": "self_attn.qkv_proj", "ffn_gate_up": "mlp.gate_up_proj"}),
}

#: Phi-1 and 2: attention and feed-forward network share a norm.
PHI: Names = {
    **_EDGES,
    "output_norm": "final_layernorm",
    **_layers(
        {
            **{name: path for name, path in _ATTENTION.items() if name != "ffn_norm"},
            "attn_output": "self_attn.dense",
            "attn_q_norm": "self_attn.q_layernorm",
            "attn_k_norm": "self_attn.k_layernorm",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        }
    ),
}

STABLELM: Names = {
    **LLAMA,
    **_layers(
        {
            "attn_q_norm": "self_attn.q_layernorm.norms.{}",
            "attn_k_norm": "self_attn.k_layernorm.norms.{}",
        }
    ),
}

STARCODER2: Names = {
    **_EDGES,
    **_layers({**_ATTENTION, "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
}

GPT2: Names = {
    "token_embd": "wte",
    "position_embd": "wpe",
    "output_norm": "ln_f",
    "output": "lm_head",
    **_layers(
        {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        },
        "h",
    ),
}

_FUSED: Names = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}

GPT_NEOX: Names = {
    "token_embd": "embed_in",
    "output_norm": "final_layer_norm",
    "output": "embed_out",
    **_layers(
        {
            **_FUSED,
            "attn_qkv": "attention.query_key_value",
            "attn_output": "attention.dense",
        }
    ),
}

BLOOM: Names = {
    "token_embd": "word_embeddings",
    "token_embd_norm": "word_embeddings_layernorm",
    "output_norm": "ln_f",
    "output": "lm_head",
    **_layers(
        {
            **_FUSED,
            "attn_qkv": "self_attention.query_key_value",
            "attn_output": "self_attention.dense",
        },
        "h",
    ),
}

#: Falcon: larger models have two norms per layer, under other names.
FALCON: Names = {
    **{name: path for name, path in BLOOM.items() if name != "token_embd_norm"},
    **_layers(
        {
            "attn_norm": ("ln_attn", "input_layernorm"),
            "ffn_norm": ("ln_mlp", "post_attention_layernorm"),
        },
        "h",
    ),
}

MPT: Names = {
    "token_embd": "wte",
    "output_norm": "norm_f",
    "output": "lm_head",
    **_layers(
        {
            "attn_norm": "norm_1",
            "attn_qkv": "attn.Wqkv",
            "attn_output": "attn.out_proj",
            "ffn_norm": "norm_2",
            "ffn_up": "ffn.up_proj",
            "ffn_down": "ffn.down_proj",
        },
        "blocks",
    ),
}

_EXPERTS: Names = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}

#: Qwen 3 MoE, and Qwen 2 MoE with a shared expert.
QWEN_MOE: Names = {
    **LLAMA,
    **_layers(
        {
            **_EXPERTS,
            "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
            "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
            "ffn_up_shexp": "mlp.shared_expert.up_proj",
            "ffn_down_shexp": "mlp.shared_expert.down_proj",
        }
    ),
}

MIXTRAL: Names = {
    **LLAMA,
    **_layers(
        {
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
            "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
            "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
        }
    ),
}

GRANITE_MOE: Names = {
    **LLAMA,
    **_layers(
        {
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_gate_exps": "block_sparse_moe.input_linear",
            "ffn_up_exps": "block_sparse_moe.input_linear",
            "ffn_down_exps": "block_sparse_moe.output_linear",
        }
    ),
}

#: gpt-oss: attention sinks, and experts with biases.
GPT_OSS: Names = {
    **LLAMA,
    **_layers(
        {
            "attn_sinks": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_gate_exps": "mlp.experts.gate_up_proj",
            "ffn_up_exps": "mlp.experts.gate_up_proj",
            "ffn_down_exps": "mlp.experts.down_proj",
        }
    ),
}

GLM4: Names = {
    **LLAMA,
    **_layers(
        {
            "ffn_gate_up": "mlp.gate_up_proj",
            "post_attention_norm": "post_self_attn_layernorm",
            "post_ffw_norm": "post_mlp_layernorm",
        }
    ),
}

#: Arcee: Llama without the gate projection.
ARCEE: Names = {name: path for name, path in LLAMA.items() if name != "blk.{}.ffn_gate"}

GPT_J: Names = {
    "token_embd": "wte",
    "output_norm": "ln_f",
    "output": "lm_head",
    **_layers(
        {
            "attn_norm": "ln_1",
            "attn_q": "attn.q_proj",
            "attn_k": "attn.k_proj",
            "attn_v": "attn.v_proj",
            "attn_output": "attn.out_proj",
            "ffn_up": "mlp.fc_in",
            "ffn_down": "mlp.fc_out",
        },
        "h",
    ),
}

_OPT_LAYER: Names = {
    "attn_norm": "self_attn_layer_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "ffn_up": "fc1",
    "ffn_down": "fc2",
}

OPT: Names = {
    "token_embd": "embed_tokens",
    "position_embd": "embed_positions",
    "output_norm": "final_layer_norm",
    "output": "lm_head",
    **_layers(_OPT_LAYER),
}

_WHISPER_DECODER_LAYER: Names = {
    **_OPT_LAYER,
    "cross_attn_norm": "encoder_attn_layer_norm",
    "cross_attn_q": "encoder_attn.q_proj",
    "cross_attn_k": "encoder_attn.k_proj",
    "cross_attn_v": "encoder_attn.v_proj",
    "cross_attn_output": "encoder_attn.out_proj",
}

WHISPER: Names = {
    "token_embd": "decoder.embed_tokens",
    "position_embd": "decoder.embed_positions",
    "output_norm": "decoder.layer_norm",
    "output": "proj_out",
    **_layers(_WHISPER_DECODER_LAYER, "decoder.layers"),
    "enc.conv1": "encoder.conv1",
    "enc.conv2": "encoder.conv2",
    "enc.position_embd": "encoder.embed_positions",
    "enc.output_norm": "encoder.layer_norm",
    **{f"enc.{name}": path for name, path in _layers(_OPT_LAYER, "encoder.layers").items()},
}


def _t5_layers(ours: str, theirs: str, cross: bool) -> dict[str, str | tuple[str, ...]]:
    """Returns the names of tensors in the layers of T5's encoder or decoder, by llama.cpp's names.

    Args:
        ours: Prefix of llama.cpp's names: "enc." or "".
        theirs: "encoder" or "decoder".
        cross: Whether layers have cross-attention.
    """
    attention = {"q": "q", "k": "k", "v": "v", "output": "o"}
    self_attention, feed = "layer.0.SelfAttention", f"layer.{1 + cross}"
    names: dict[str, str | tuple[str, ...]] = {
        "attn_norm": "layer.0.layer_norm",
        **{f"attn_{name}": f"{self_attention}.{path}" for name, path in attention.items()},
        "attn_rel_b": f"{self_attention}.relative_attention_bias",
        "ffn_norm": f"{feed}.layer_norm",
        "ffn_gate": f"{feed}.DenseReluDense.wi_0",
        "ffn_up": (f"{feed}.DenseReluDense.wi_1", f"{feed}.DenseReluDense.wi"),
        "ffn_down": f"{feed}.DenseReluDense.wo",
    }
    if cross:
        names["cross_attn_norm"] = "layer.1.layer_norm"
        names |= {f"cross_attn_{n}": f"layer.1.EncDecAttention.{p}" for n, p in attention.items()}
    return {f"{ours}{name}": path for name, path in _layers(names, f"{theirs}.block").items()}


T5: Names = {
    "token_embd": ("shared", "decoder.embed_tokens", "encoder.embed_tokens"),
    "enc.output_norm": "encoder.final_layer_norm",
    "output_norm": "decoder.final_layer_norm",
    "output": "lm_head",
    **_t5_layers("enc.", "encoder", cross=False),
    **_t5_layers("", "decoder", cross=True),
}
