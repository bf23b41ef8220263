"""GGUF files of the tiny decoders, converted from Hugging Face folders as by llama.cpp."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.families import FAMILIES
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.huggingface import read_folder
from clrt.models.decoders.weight_source import QuantizedMatrix, WeightSource
from tests.generation.checkpoints import Array, load_json, write_folder

# What llama.cpp's files, or llama.cpp itself, cannot say otherwise: no windows for these families,
# every fourth layer of SmolLM3 turns nothing, the heads of Gemma and Cohere are their
# embeddings, gpt-oss has limits of 7.
CHANGES: dict[str, dict[str, Any]] = {
    "cohere2": {"tie_word_embeddings": True},
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gpt_oss": {"swiglu_limit": 7.0},
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"mlp_only_layers": []},
    "smollm3": {"no_rope_layer_interval": 4, "use_sliding_window": False},
    "starcoder2": {"sliding_window": None},
}
# llama.cpp has no Falcon whose scores fall with distance.
_WITHOUT = ("falcon_alibi",)
CASES = {
    name: case
    for name, case in load_json().items()
    if case["config"]["model_type"] in FAMILIES
    and FAMILIES[case["config"]["model_type"]].architecture
    and name not in _WITHOUT
}
# llama.cpp has norms of Cohere's heads for models of 64 layers or more.
UNANSWERED = ("cohere",)
#: Quantised files: their cases, and the types of their matrices in turns.
QUANTISED = {
    "Q8_0": ("llama3", (Kind.Q8_0,)),
    "Q4_0": ("llama3", (Kind.Q4_0,)),
    "Q5_1": ("llama3", (Kind.Q5_1,)),
    "Q4_K": ("llama3", (Kind.Q4_K,)),
    "Q6_K": ("llama3", (Kind.Q6_K,)),
    "mixed": ("llama3", (Kind.Q4_K, Kind.Q4_K, Kind.Q6_K, Kind.Q5_0, Kind.Q8_0)),
    "experts": ("mixtral", (Kind.Q8_0, Kind.Q4_0)),
}
#: Places of the first text whose logits are compared with llama.cpp's.
PLACES = slice(None, None, 7)
# Columns that blocks of 256 divide.
_WIDE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 16,
    "num_experts_per_tok": 4,  # all: their choice could turn on an error
    "sliding_window": None,
}
# Where the scales of a block lie; random levels times these deviate by about 1 from about 0.
_SCALES = {Kind.Q4_K: ((0, 4.2e-3), (2, 31.5e-3)), Kind.Q6_K: ((208, 0.74e-3),)}
# Whose pairs of a rotary embedding are made neighbours.
_PERMUTED = ("llama", "olmo", "granite", "granitemoe", "smollm3", "arcee")
_BEHIND_ATTENTION = ("gpt-oss", "seed_oss")
Encode = Callable[[str, Array], tuple[Array, Kind | None]]


class RecordedWeights:
    """A source that keeps what a graph reads of another."""

    def __init__(self, source: WeightSource) -> None:
        self.source = source
        self.read: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.source

    def load(self, name: str, shape: tuple[int, ...]) -> Array:
        self.read[name] = np.asarray(self.source.load(name, shape))
        return self.read[name]

    def matrix(self, name: str, rows: int, columns: int) -> Array | QuantizedMatrix:
        return self.load(name, (rows, columns))


def case_file(name: str, folder: Path, **metadata: Any) -> Path:
    """The file of a case, or a quantised one of `QUANTISED`, with further metadata."""
    if name in QUANTISED:
        case = copy.deepcopy(CASES[QUANTISED[name][0]])
        case["config"] |= _WIDE
        sizes = {48: 256, 80: 512, 16: 256}
        case["tensors"] = {n: [sizes.get(s, s) for s in d] for n, d in case["tensors"].items()}
        return convert(
            write_folder(folder / "hf", case), folder / f"{name}.gguf", _in_turns(name), **metadata
        )
    case = copy.deepcopy(CASES[name])
    case["config"] |= CHANGES.get(name, {})
    if name == "qwen2_moe":  # all layers have experts
        last = {n: shape for n, shape in case["tensors"].items() if "layers.0." not in n}
        first = {n.replace("layers.1.", "layers.0."): shape for n, shape in last.items()}
        case["tensors"] = {**first, **last}
    return convert(write_folder(folder / "hf", case), folder / f"{name}.gguf", **metadata)


def _in_turns(name: str) -> Encode:
    """Matrices in the types of a case of `QUANTISED`, one after the other."""
    kinds = itertools.cycle(QUANTISED[name][1])

    def encode(name: str, array: Array) -> tuple[Array, Kind | None]:
        if array.ndim == 1 or "ffn_gate_inp" in name:
            return as_it_is(name, array)
        return quantised(array, next(kinds))

    return encode


def quantised(array: Array, kind: Kind) -> tuple[Array, Kind]:
    """Rows in blocks of a type. The `gguf` package cannot make those of 256: theirs are noise."""
    if kind not in _SCALES:
        return gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind), kind
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = array.shape
    drawn = np.random.default_rng([rows, columns, int(array[0, 0] * 1e6) & 0xFFFF])
    raw = drawn.integers(0, 256, (rows, columns // elements, nbytes), np.uint8)
    for start, factor in _SCALES[kind]:
        scale = np.float16(factor * float(array.std()))
        raw[..., start : start + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return raw.reshape(rows, -1), kind


def permuted(rows: Array, heads: int) -> Array:
    """Rows of heads whose halves lie between each other."""
    halves = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def as_it_is(name: str, array: Array) -> tuple[Array, None]:
    """float32."""
    return np.ascontiguousarray(array, np.float32), None


def convert(folder: Path, file: Path, encode: Encode = as_it_is, **changes: Any) -> Path:
    """Writes a GGUF file of a Hugging Face folder.

    Args:
        encode: Gives a tensor's bytes, and their type if they are quantised.
        changes: Other values of metadata, under the names behind the architecture, or other tensors
            under their names; None leaves them out.
    """
    decoder, source = read_folder(folder)
    recorded = RecordedWeights(source)
    decoder_graph(decoder, recorded)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    architecture = FAMILIES[decoder.family].architecture
    tensors = _tensors(recorded.read, decoder, architecture)
    values = {
        "tokenizer.ggml.model": "none",
        "vocab_size": decoder.vocabulary,
        **_sizes(decoder),
        **_options(decoder, config),
        **_rope(decoder, config, tensors),
    }
    for name, change in changes.items():
        (tensors if "." in name and name.endswith(("weight", "bias")) else values)[name] = change
    write(file, architecture, values, tensors, encode)
    return file


def write(
    file: Path,
    architecture: str,
    values: Mapping[str, Any],
    tensors: Mapping[str, Array],
    encode: Encode = as_it_is,
) -> None:
    """Writes a GGUF file; what is None is left out."""
    writer = gguf.GGUFWriter(file, architecture)
    for name, value in values.items():
        key = name if name.startswith(("tokenizer.", "general.")) else f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, array in tensors.items():
        if array is not None:
            data, kind = encode(name, array)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(
    read: Mapping[str, Array], decoder: DecoderConfig, architecture: str
) -> dict[str, Array]:
    """Tensors as the converter names, permutes and shifts them."""
    made = {}
    two_norms = "blk.0.ffn_norm.weight" in read
    for name, array in read.items():
        layer, part = name.rpartition(".")[0].rpartition(".")[::2]
        stored = {"ffn_gate_up": "ffn_up"}.get(part, part)
        if architecture == "falcon" and two_norms:
            stored = {"attn_norm": "attn_norm_2", "ffn_norm": "attn_norm"}.get(part, part)
        if architecture in _BEHIND_ATTENTION and part == "ffn_norm":
            stored = "post_attention_norm"
        if architecture in _PERMUTED and part in ("attn_q", "attn_k"):
            array = permuted(array, decoder.heads if part == "attn_q" else decoder.kv_heads)
        if name.endswith("norm.weight"):
            array = array + np.float32(decoder.norm_shift)
        if part == "ffn_gate_inp_shexp":
            array = array.reshape(-1)
        made[f"{layer}{'.' * bool(layer)}{stored}.{name.rpartition('.')[2]}"] = array
    return made


def _sizes(decoder: DecoderConfig) -> dict[str, Any]:
    layer_norm = decoder.norm == "layer"
    epsilon = "layer_norm_epsilon" if layer_norm else "layer_norm_rms_epsilon"
    found = {
        "block_count": decoder.layers,
        "context_length": decoder.context,
        "embedding_length": decoder.hidden,
        "feed_forward_length": decoder.intermediate,
        "attention.head_count": decoder.heads,
        "attention.head_count_kv": decoder.kv_heads,
        "attention.key_length": decoder.head_size,
        "attention.value_length": decoder.head_size,
        f"attention.{epsilon}": float(decoder.epsilon),
    }
    experts = decoder.experts
    if experts is not None:
        found |= {"expert_count": experts.count, "expert_used_count": experts.used}
        found |= {"expert_feed_forward_length": experts.size, "feed_forward_length": experts.size}
        found |= {"expert_shared_feed_forward_length": experts.shared}
    return found


def _options(decoder: DecoderConfig, config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if config.get("sliding_window"):
        found["attention.sliding_window"] = config["sliding_window"]
    if "layer_types" in config:
        kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
        found["attention.sliding_window_pattern"] = kinds
    if decoder.softcap:
        found["attn_logit_softcapping"] = decoder.softcap
    if decoder.final_softcap:
        found["final_logit_softcapping"] = decoder.final_softcap
    if decoder.clip:
        found["attention.clamp_kqv"] = decoder.clip
    if decoder.family in ("gpt_neox", "stablelm"):
        found["use_parallel_residual"] = decoder.parallel
    if decoder.family == "mpt":
        found["attention.max_alibi_bias"] = 8.0
    if decoder.family in ("cohere", "cohere2"):
        found["logit_scale"] = decoder.logit_scale
    if decoder.family in ("granite", "granitemoe"):
        found |= {"logit_scale": 1 / decoder.logit_scale, "attention.scale": decoder.scale}
        found |= {"embedding_scale": decoder.embedding_scale}
        found |= {"residual_scale": decoder.residual_scale}
    return found


def _rope(
    decoder: DecoderConfig, config: Mapping[str, Any], tensors: dict[str, Array]
) -> dict[str, Any]:
    """Values that describe rotary embeddings; tensors that do are added."""
    rope = config.get("rope_parameters", {"rope_theta": 10000.0})
    if "full_attention" in rope:
        local, rope = rope["sliding_attention"], rope["full_attention"]
        values = {"rope.freq_base_swa": float(local["rope_theta"])}
    else:
        values = {}
    rotary = decoder.rotary_of(0)
    if rotary is None:
        return {}
    theta, kind = float(rope["rope_theta"]), rope.get("rope_type", "default")
    turned = 2 * len(rotary.frequencies)
    values |= {"rope.freq_base": theta, "rope.dimension_count": turned}
    if kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    original = config.get("original_max_position_embeddings")
    original = rope.get("original_max_position_embeddings", original)
    if original:
        values["rope.scaling.original_context_length"] = original
    if kind == "llama3":
        powers = theta ** -(np.arange(0, turned, 2) / turned)
        tensors["rope_freqs.weight"] = (powers / rotary.frequencies).astype(np.float32)
    if kind == "longrope":
        values |= {"rope.scaling.type": kind, "rope.scaling.attn_factor": rotary.factor}
        for which in ("long", "short"):
            factors = np.array(rope[f"{which}_factor"], np.float32)
            tensors[f"rope_factors_{which}.weight"] = factors
    return values
