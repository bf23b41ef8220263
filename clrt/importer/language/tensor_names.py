"""What tensors are called in checkpoints, by llama.cpp's names.

`{}` is the number of the layer; a second one counts what is stacked: experts, or heads. Of several
names the first that a checkpoint has counts. What all but the head may be preceded by is found by
`clrt.importer.language.weights`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Names: TypeAlias = Mapping[str, str | tuple[str, ...]]


def _layers(names: Mapping[str, str], layers: str = "layers") -> dict[str, str]:
    """Names of tensors of layers."""
    return {f"blk.{{}}.{ours}": f"{layers}.{{}}.{theirs}" for ours, theirs in names.items()}


_EDGES = {"token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head"}

_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}

#: Also those of Mistral, Qwen 2 and 3, SmolLM3, Gemma, Granite, OLMo and Cohere.
LLAMA: Names = {**_EDGES, **_layers(_ATTENTION | _GATED)}
