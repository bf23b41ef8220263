"""NumPy forward pass of Hugging Face encoders, and helpers that run onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from clrt.models.encoders.checkpoint_graph import import_checkpoint
from clrt.models.onnx.export.exporter import export_model
from tests.unit.models.encoders.checkpoints import (
    CLASSIFIERS,
    HEADS,
    HIDDEN,
    LAYER_NAMES,
    LAYERS,
    LM_HEADS,
    POOLERS,
    PREFIXES,
    PROJECTIONS,
    ROBERTA_LIKE,
    TYPED,
    VOCABULARY,
    Array,
    Tensors,
)


def gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
    "silu": silu,
    "swish": silu,
    "tanh": np.tanh,
}


def mpnet_bucket(distance: int) -> int:
    steps, half = abs(distance), 16 if distance > 0 else 0
    if steps < 8:
        return steps + half
    return min(8 + int(math.log(steps / 8) / math.log(16) * 8 + 1e-9), 15) + half


class Reference:
    """A float64 forward pass of all families."""

    def __init__(self, config: dict[str, Any], tensors: Tensors, *, prefixed: bool = True) -> None:
        self.family = config["model_type"]
        self.prefix = PREFIXES[self.family] if prefixed else ""
        self.eps = config["layer_norm_eps"]
        self.act = ACTIVATIONS[config.get("hidden_act") or config["activation"]]
        self.t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def linear(self, x: Array, path: str) -> Array:
        return np.asarray(x @ self.t[f"{path}.weight"].T + self.t[f"{path}.bias"])

    def norm(self, x: Array, path: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + self.eps)
        return np.asarray(scaled * self.t[f"{path}.weight"] + self.t[f"{path}.bias"])

    def embed(self, ids: Array, types: Array) -> Array:
        path = f"{self.prefix}embeddings"
        places = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        if self.family in (*ROBERTA_LIKE, "mpnet"):
            places = np.cumsum(ids != 1, axis=1) * (ids != 1) + 1
        x = self.t[f"{path}.word_embeddings.weight"][ids]
        x = x + self.t[f"{path}.position_embeddings.weight"][places]
        if self.family not in ("distilbert", "mpnet"):
            x = x + self.t[f"{path}.token_type_embeddings.weight"][types]
        x = self.norm(x, f"{path}.LayerNorm")
        projection = PROJECTIONS.get(self.family)
        return self.linear(x, self.prefix + projection) if projection else x

    def bias(self, mask: Array) -> Array:
        bias = (1.0 - mask[:, None, None, :]) * float(np.finfo(np.float32).min)
        if self.family != "mpnet":
            return np.asarray(bias)
        places = range(mask.shape[1])
        buckets = [[mpnet_bucket(key - query) for key in places] for query in places]
        table = self.t[f"{self.prefix}encoder.relative_attention_bias.weight"]
        return np.asarray(table[np.array(buckets)].transpose(2, 0, 1) + bias)

    def layer(self, x: Array, bias: Array, path: str, names: list[str]) -> Array:
        query, key, value, out, norm, feed_in, feed_out, last = (path + name for name in names)
        batch, length, _ = x.shape
        q, k, v = (
            self.linear(x, name).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3)
            for name in (query, key, value)
        )
        scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(HIDDEN // HEADS) + bias
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = shares / shares.sum(-1, keepdims=True) @ v
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        x = self.norm(x + self.linear(mixed, out), norm)
        return self.norm(x + self.linear(self.act(self.linear(x, feed_in)), feed_out), last)

    def hidden(self, feed: Tensors) -> Array:
        ids = feed["input_ids"]
        x = self.embed(ids, feed.get("token_type_ids", np.zeros_like(ids)))
        path, names = LAYER_NAMES[self.family]
        for layer in range(LAYERS):
            prefix = self.prefix + path.format(layer)
            x = self.layer(x, self.bias(feed["attention_mask"]), prefix, names.split())
        return x

    def pooled(self, hidden: Array) -> Array:
        return np.tanh(self.linear(hidden[:, 0], self.prefix + POOLERS[self.family]))

    def head(self, head: str, hidden: Array) -> Tensors:
        if head == "ForSequenceClassification":
            return {"logits": self.classify(hidden)}
        if head == "ForTokenClassification":
            return {"logits": self.linear(hidden, "classifier")}
        if head == "ForQuestionAnswering":
            both = self.linear(hidden, "qa_outputs")
            return {"start_logits": both[..., 0], "end_logits": both[..., 1]}
        dense, norm, bias = LM_HEADS[self.family]
        x = self.norm(self.act(self.linear(hidden, dense)), norm)
        table = self.t[f"{self.prefix}embeddings.word_embeddings.weight"]
        return {"logits": x @ table.T + self.t[bias]}

    def classify(self, hidden: Array) -> Array:
        dense, output, activation = CLASSIFIERS[self.family]
        if dense == "pooler":
            return self.linear(self.pooled(hidden), output)
        return self.linear(ACTIVATIONS[activation](self.linear(hidden[:, 0], dense)), output)


def make_feed(batch: int, length: int, *, family: str, padded: bool) -> Tensors:
    random = np.random.default_rng(batch * 1000 + length)
    feed = {
        "input_ids": random.integers(2, VOCABULARY, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
    }
    if padded:
        for row in range(1, batch):
            cut = max(1, length - row * length // batch)
            feed["attention_mask"][row, cut:] = 0
            feed["input_ids"][row, cut:] = 1
    if family in TYPED:
        feed["token_type_ids"] = random.integers(0, 2, (batch, length))
    return feed


def open_session(folder: Path) -> onnxruntime.InferenceSession:
    model = export_model(import_checkpoint(folder))
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(session: onnxruntime.InferenceSession, feed: Tensors) -> Tensors:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def assert_close(actual: Array, expected: Array) -> None:
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def assert_hidden_matches(folder: Path, reference: Reference) -> None:
    feed = make_feed(2, 5, family=reference.family, padded=True)
    output = run(open_session(folder), feed)
    assert_close(output["last_hidden_state"], reference.hidden(feed))
