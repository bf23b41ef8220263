"""Folders of tiny decoders as ONNX files. Weights are noise seeded by the tensor names.

The committed files have no weights: `stripped` takes them out, and `filled` makes them.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from tests.generation.checkpoints import DATA, Array, noise

# Smaller tensors are no weights but constants: shapes, places, numbers.
_LEAST = 128
_TABLES = ("cos_cache", "sin_cache", "inv_freq")


def load_graphs() -> dict[str, bytes]:
    """Models without weights, by case."""
    with np.load(DATA / "onnx_decoders.npz") as found:
        return {name: found[name].tobytes() for name in found}


def load_configs() -> dict[str, dict[str, object]]:
    """By case, JSON objects by the names of their files."""
    found: dict[str, dict[str, object]] = json.loads(
        (DATA / "onnx_decoders.json").read_text(encoding="utf-8")
    )
    return found


def _is_weight(tensor: onnx.TensorProto) -> bool:
    if any(name in tensor.name for name in _TABLES):
        return False
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.UINT8)
    return tensor.data_type in kinds and int(np.prod(tensor.dims)) >= min(_LEAST, 32)


def stripped(model: onnx.ModelProto) -> bytes:
    """A model without the elements of its weights, and without what only tells of its origin."""
    for tensor in model.graph.initializer:
        if _is_weight(tensor):
            for field in ("raw_data", "float_data", "int32_data"):
                tensor.ClearField(field)
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    del model.graph.value_info[:]
    return bytes(model.SerializeToString())


def filled(data: bytes) -> onnx.ModelProto:
    """A model with weights of noise in the place of those that are missing."""
    model = onnx.load_from_string(data)
    for tensor in model.graph.initializer:
        if _is_weight(tensor) and not tensor.raw_data:
            array = _weight(tensor.name, tuple(tensor.dims), tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def _weight(name: str, shape: tuple[int, ...], kind: int) -> Array:
    if kind == onnx.TensorProto.UINT8:
        drawn = np.random.default_rng(zlib.crc32(name.encode()))
        return drawn.integers(0, 256, shape, np.uint8)
    if "scales" in name:
        return (0.05 * (1 + 0.2 * np.abs(noise("w", shape)))).astype(np.float32)
    dtype = np.float16 if kind == onnx.TensorProto.FLOAT16 else np.float32
    return noise(name, shape).astype(dtype)


def write_onnx(folder: Path, case: str, *, external: bool = False) -> Path:
    """A folder of a case.

    Args:
        external: Weights lie in a file beside the model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in load_configs()[case].items():
        (folder / name).write_text(json.dumps(found), encoding="utf-8")
    model = filled(load_graphs()[case])
    options = dict(location="model.onnx.data", size_threshold=0) if external else {}
    onnx.save(model, folder / "model.onnx", save_as_external_data=external, **options)
    return folder


# As onnxruntime-genai's builder writes models whose heads do not share keys.
_MULTI_HEAD = """
<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
decoder (int64[batch, new] input_ids, int64[batch, total] attention_mask,
    int64[batch, new] position_ids, float[batch, 2, past, 16] past_key_0,
    float[batch, 2, past, 16] past_value_0)
  => (float[batch, new, 37] logits, float[batch, 2, total, 16] present_key_0,
    float[batch, 2, total, 16] present_value_0)
  <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1},
    int64[2] heads = {1, 2}, float nothing = {0}, float lowest = {-3.4e38}>
{
  all = Shape <start = 1> (attention_mask)
  count = Shape <start = 1> (input_ids)
  before = Sub (all, count)
  all_keys = Squeeze (all, first)
  all_rows = Squeeze (count, first)
  keys = Range (zero, all_keys, one)
  rows = Range (zero, all_rows, one)
  places = Add (rows, before)
  column = Unsqueeze (places, second)
  causal = GreaterOrEqual (column, keys)
  given = Cast <to = 9> (attention_mask)
  kept = Unsqueeze (given, heads)
  seen = And (causal, kept)
  bias = Where (seen, nothing, lowest)
  x = Gather (embedding, input_ids)
  q = MatMul (x, q_weight)
  k = MatMul (x, k_weight)
  v = MatMul (x, v_weight)
  q_bias = Add (q, q_vector)
  k_bias = Add (k_vector, k)
  v_bias = Add (v, v_vector)
  turned_q = com.microsoft.RotaryEmbedding (q_bias, position_ids, cos_cache, sin_cache)
  turned_k = com.microsoft.RotaryEmbedding (k_bias, position_ids, cos_cache, sin_cache)
  y, present_key_0, present_value_0 = com.microsoft.MultiHeadAttention <num_heads = 2>
    (turned_q, turned_k, v_bias, , , bias, past_key_0, past_value_0)
  mixed = Add (x, y)
  logits = MatMul (mixed, head)
}
"""


def write_multi_head(folder: Path) -> Path:
    """A folder of a decoder with com.microsoft's MultiHeadAttention."""
    model = onnx.parser.parse_model(_MULTI_HEAD)
    angles = np.arange(64)[:, None] / 10 ** (np.arange(8) / 2)
    arrays = {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}
    arrays |= {f"{part}_weight": noise(part, (32, 32)) for part in "qkv"}
    arrays |= {f"{part}_vector": noise(f"{part}.bias", (32,)) for part in "qkv"}
    arrays |= {"embedding": noise("embedding", (37, 32)), "head": noise("head", (32, 37))}
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(model, folder / "model.onnx")
    return folder
