"""ONNX decoder with random weights, whose key/value cache grows by the tokens of each run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, SIZE, HEADS, KV_HEADS, HEAD, INNER = 50, 24, 6, 2, 4, 40


class _Writer:
    """Collects nodes and weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self._rng = np.random.default_rng(0)

    def __call__(self, op: str, *inputs: Any, to: str = "", **attributes: Any) -> str:
        """Adds a node and returns its output; operands that are not names become constants."""
        output = to or f"{op}_{len(self.nodes)}"
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self.nodes.append(helper.make_node(op, names, [output], output, **attributes))
        return output

    def constant(self, value: Any) -> str:
        """Adds a constant, as float32 if it has floats, else as int64; returns its name."""
        array = np.asarray(value)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        name = f"c{len(self.weights)}"
        self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._rng.normal(0, 0.2, shape))


def decoder(layers: int) -> onnx.ModelProto:
    """Returns Llama in the exporters' form: rotary positions, grouped heads, past and present.

    Inputs are `input_ids` [batch, sequence], `attention_mask` [batch, total] and, by layer,
    `past.N.key` and `past.N.value` [batch, KV_HEADS, past, HEAD].
    """
    w = _Writer()
    ids, past = w("Shape", "input_ids"), w("Shape", "past.0.key")
    batch, length = w("Gather", ids, 0), w("Gather", ids, 1)
    before = w("Gather", past, 2)
    total = w("Add", before, length)
    q = w("Unsqueeze", w("Range", before, total, 1), [1])
    k = w("Unsqueeze", w("Range", 0, total, 1), [0])
    causal = w("Unsqueeze", w("LessOrEqual", k, q), [0, 1])
    padding = w("Unsqueeze", w("Equal", "attention_mask", 1), [1, 2])
    mask = w("Where", w("And", causal, padding), 0.0, -1e9)
    frequencies = 100.0 ** -(np.arange(HEAD // 2) * 2.0 / HEAD)
    angles = w("Mul", w("CastLike", q, 0.0), frequencies)
    angles = w("Concat", angles, angles, axis=-1)
    cos, sin = w("Cos", angles), w("Sin", angles)
    x = w("Gather", w.weight(VOCABULARY, SIZE), "input_ids")
    sizes = (batch, length, total)
    for layer in range(layers):
        x = w("Add", x, _attention(w, _norm(w, x), layer, sizes, (cos, sin), mask))
        h = _norm(w, x)
        gate = w("MatMul", h, w.weight(SIZE, INNER))
        gate = w("Mul", gate, w("Sigmoid", gate))
        up = w("Mul", gate, w("MatMul", h, w.weight(SIZE, INNER)))
        x = w("Add", x, w("MatMul", up, w.weight(INNER, SIZE)))
    w("MatMul", _norm(w, x), w.weight(SIZE, VOCABULARY), to="logits")
    return _model(w, layers)


def _norm(w: _Writer, x: str) -> str:
    """RMSNorm."""
    mean = w("ReduceMean", w("Pow", x, 2.0), [-1], keepdims=1)
    scaled = w("Mul", x, w("Reciprocal", w("Sqrt", w("Add", mean, 1e-5))))
    return w("Mul", scaled, w.weight(SIZE))


def _attention(
    w: _Writer, x: str, layer: int, sizes: tuple[str, str, str], turn: tuple[str, str], mask: str
) -> str:
    batch, length, total = (w("Unsqueeze", s, [0]) for s in sizes)

    def heads(count: int) -> str:
        y = w("MatMul", x, w.weight(SIZE, count * HEAD))
        shape = w("Concat", batch, length, [count], [HEAD], axis=0)
        return w("Transpose", w("Reshape", y, shape), perm=[0, 2, 1, 3])

    def rotated(y: str) -> str:
        first, last = w("Slice", y, [0], [HEAD // 2], [3]), w("Slice", y, [HEAD // 2], [HEAD], [3])
        half = w("Concat", w("Neg", last), first, axis=-1)
        return w("Add", w("Mul", y, turn[0]), w("Mul", half, turn[1]))

    def cached(y: str, kind: str) -> str:
        whole = w("Concat", f"past.{layer}.{kind}", y, axis=2, to=f"present.{layer}.{kind}")
        groups = HEADS // KV_HEADS
        wide = w("Concat", batch, [KV_HEADS], [groups], total, [HEAD], axis=0)
        shape = w("Concat", batch, [HEADS], total, [HEAD], axis=0)
        return w("Reshape", w("Expand", w("Unsqueeze", whole, [2]), wide), shape)

    q, k, v = rotated(heads(HEADS)), cached(rotated(heads(KV_HEADS)), "key"), heads(KV_HEADS)
    scores = w("Mul", w("MatMul", q, w("Transpose", k, perm=[0, 1, 3, 2])), HEAD**-0.5)
    found = w("MatMul", w("Softmax", w("Add", scores, mask), axis=-1), cached(v, "value"))
    flat = w("Concat", batch, length, [HEADS * HEAD], axis=0)
    joined = w("Reshape", w("Transpose", found, perm=[0, 2, 1, 3]), flat)
    return w("MatMul", joined, w.weight(HEADS * HEAD, SIZE))


def _model(w: _Writer, layers: int) -> onnx.ModelProto:
    def info(name: str, *dims: str | int, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, dtype, dims)

    states = [f"{n}.{kind}" for n in range(layers) for kind in ("key", "value")]
    inputs = [
        info("input_ids", "batch", "sequence", dtype=TensorProto.INT64),
        info("attention_mask", "batch", "total", dtype=TensorProto.INT64),
        *(info(f"past.{s}", "batch", KV_HEADS, "past", HEAD) for s in states),
    ]
    outputs = [
        info("logits", "batch", "sequence", VOCABULARY),
        *(info(f"present.{s}", "batch", KV_HEADS, "total", HEAD) for s in states),
    ]
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, list(w.weights.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
