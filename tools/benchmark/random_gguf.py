"""Writes a GGUF file of SmolLM2-135M's geometry in Q4_0, with random weights and vocabulary."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import numpy as np

_LAYERS, _HIDDEN, _WIDE, _HEADS, _KV_HEADS, _VOCABULARY = 30, 576, 1536, 9, 3, 49152
_Q4_0, _Q8_0 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0


def write_random_gguf(file: Path) -> None:
    """Writes the file; as llama.cpp's files of the model, it has embeddings in Q8_0."""
    writer: Any = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_WIDE)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_rope_dimension_count(_HIDDEN // _HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_VOCABULARY)
    _add_tokenizer(writer)
    drawn = np.random.default_rng(1)
    ones = np.ones(_HIDDEN, np.float32)
    kv = _HIDDEN // _HEADS * _KV_HEADS
    matrices = {"attn_q": (_HIDDEN, _HIDDEN), "attn_k": (kv, _HIDDEN), "attn_v": (kv, _HIDDEN)}
    matrices |= {"attn_output": (_HIDDEN, _HIDDEN), "ffn_down": (_HIDDEN, _WIDE)}
    matrices |= {"ffn_gate": (_WIDE, _HIDDEN), "ffn_up": (_WIDE, _HIDDEN)}
    shapes = {"token_embd.weight": (_VOCABULARY, _HIDDEN)}
    for layer in range(_LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in matrices.items()}
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
    writer.add_tensor("output_norm.weight", ones)
    for name, (rows, columns) in shapes.items():
        array = drawn.standard_normal((rows, columns), np.float32) / np.float32(columns**0.5)
        kind = _Q8_0 if name.startswith("token_embd") else _Q4_0
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: Any) -> None:
    """Adds a byte-pair vocabulary as large as the model's, of made-up words."""
    letters = [chr(256 + b) if b < 33 else chr(b) for b in range(127)]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    merges = []
    seen = set(tokens)
    words = ["", *ascii_lowercase]
    for first, second in product(range(1, 50_000), ascii_lowercase):
        if len(tokens) == _VOCABULARY:
            break
        word = words[first]
        if word + second not in seen:
            merges.append(f"{word} {second}")
            tokens.append(word + second)
            seen.add(word + second)
            words.append(word + second)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (_VOCABULARY - 3)])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
