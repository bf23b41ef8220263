"""Graphs built from safetensors checkpoints, run by onnxruntime against a NumPy forward."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from clrt.errors import ModelError, UnsupportedError
from clrt.importer.huggingface import build_model, inline_weights
from clrt.importer.huggingface.encoder import relative_buckets

Array = NDArray[Any]
Tensors = dict[str, Array]

HIDDEN, HEADS, LAYERS, WIDE, VOCABULARY, POSITIONS, LABELS, NARROW = 8, 2, 2, 12, 30, 200, 5, 6
ROBERTA_LIKE = ("roberta", "xlm-roberta", "camembert")
TYPED = ("bert", "albert", "electra")
FAMILIES = ("bert", *ROBERTA_LIKE, "distilbert", "mpnet", "albert", "electra")

# Spelled out from the reference implementations, independently of the table under test: what
# precedes a layer's tensors, then query, key, value, attention output, attention norm, both
# feed-forward layers, and the last norm.
BERT_LAYER = (
    "encoder.layer.{}.",
    "attention.self.query attention.self.key attention.self.value attention.output.dense "
    "attention.output.LayerNorm intermediate.dense output.dense output.LayerNorm",
)
LAYER_NAMES = {
    "bert": BERT_LAYER,
    "roberta": BERT_LAYER,
    "xlm-roberta": BERT_LAYER,
    "camembert": BERT_LAYER,
    "electra": BERT_LAYER,
    "distilbert": (
        "transformer.layer.{}.",
        "attention.q_lin attention.k_lin attention.v_lin attention.out_lin sa_layer_norm "
        "ffn.lin1 ffn.lin2 output_layer_norm",
    ),
    "mpnet": (
        "encoder.layer.{}.",
        "attention.attn.q attention.attn.k attention.attn.v attention.attn.o "
        "attention.LayerNorm intermediate.dense output.dense output.LayerNorm",
    ),
    "albert": (
        "encoder.albert_layer_groups.{}.albert_layers.0.",
        "attention.query attention.key attention.value attention.dense attention.LayerNorm "
        "ffn ffn_output full_layer_layer_norm",
    ),
}
PREFIXES = {
    "bert": "bert.",
    "roberta": "roberta.",
    "xlm-roberta": "roberta.",
    "camembert": "roberta.",
    "distilbert": "distilbert.",
    "mpnet": "mpnet.",
    "albert": "albert.",
    "electra": "electra.",
}
PROJECTIONS = {
    "albert": "encoder.embedding_hidden_mapping_in",
    "electra": "embeddings_project",
}
POOLERS = dict.fromkeys(("bert", *ROBERTA_LIKE, "mpnet"), "pooler.dense") | {"albert": "pooler"}
# The layers before the classifier's last, its last, and the activation between them.
CLASSIFIERS = {
    "bert": ("pooler", "classifier", "tanh"),
    "albert": ("pooler", "classifier", "tanh"),
    "distilbert": ("pre_classifier", "classifier", "relu"),
    "electra": ("classifier.dense", "classifier.out_proj", "gelu"),
} | dict.fromkeys((*ROBERTA_LIKE, "mpnet"), ("classifier.dense", "classifier.out_proj", "tanh"))
# Dense layer, norm, the bias of the decoder whose weight is tied to the word embeddings.
LM_HEADS = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    "albert": ("predictions.dense", "predictions.LayerNorm", "predictions.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "electra": (
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
    ),
} | dict.fromkeys((*ROBERTA_LIKE, "mpnet"), ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"))


# --- small random checkpoints -------------------------------------------------------------------


def embedding_size(family: str) -> int:
    return NARROW if family in PROJECTIONS else HIDDEN


def make_config(family: str, head: str = "Model", **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": ["Some" + head],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "layer_norm_eps": 1e-12 if family == "distilbert" else 1e-5,
        "pad_token_id": 0 if family in (*TYPED, "distilbert") else 1,
    }
    sizes = (HIDDEN, LAYERS, HEADS, WIDE, "gelu")
    if family == "distilbert":
        keys = ("dim", "n_layers", "n_heads", "hidden_dim", "activation")
    else:
        keys = (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "hidden_act",
        )
        config["type_vocab_size"] = 2
    config |= dict(zip(keys, sizes, strict=True))
    if family in PROJECTIONS:
        config["embedding_size"] = NARROW
    if family == "albert":
        config |= {"num_hidden_groups": LAYERS, "inner_group_num": 1}
    return config | changes


class Maker:
    """Draws the tensors of a checkpoint."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.tensors: Tensors = {}

    def table(self, name: str, *shape: int, scale: float = 0.5) -> None:
        drawn = self.random.normal(scale=scale, size=shape)
        self.tensors[name] = drawn.astype(np.float32)

    def linear(self, path: str, outputs: int, inputs: int) -> None:
        self.table(f"{path}.weight", outputs, inputs)
        self.table(f"{path}.bias", outputs)

    def norm(self, path: str, size: int) -> None:
        self.table(f"{path}.weight", size)
        self.tensors[f"{path}.weight"] += 1
        self.table(f"{path}.bias", size)


def make_tensors(family: str, head: str = "Model", *, prefixed: bool = True) -> Tensors:
    maker = Maker(seed=sum(map(ord, family + head)))
    prefix, size = PREFIXES[family] if prefixed else "", embedding_size(family)
    maker.table(f"{prefix}embeddings.word_embeddings.weight", VOCABULARY, size)
    maker.table(f"{prefix}embeddings.position_embeddings.weight", POSITIONS, size)
    if family not in ("distilbert", "mpnet"):
        maker.table(f"{prefix}embeddings.token_type_embeddings.weight", 2, size)
    maker.norm(f"{prefix}embeddings.LayerNorm", size)
    if family in PROJECTIONS:
        maker.linear(prefix + PROJECTIONS[family], HIDDEN, NARROW)
    if family == "mpnet":
        maker.table(f"{prefix}encoder.relative_attention_bias.weight", 32, HEADS, scale=2.0)
    if family in POOLERS:
        maker.linear(prefix + POOLERS[family], HIDDEN, HIDDEN)
    path, names = LAYER_NAMES[family]
    for layer in range(LAYERS):
        make_layer(maker, prefix + path.format(layer), names.split())
    make_head(maker, family, head)
    return maker.tensors


def make_layer(maker: Maker, path: str, names: list[str]) -> None:
    *attention, attention_norm, feed_in, feed_out, feed_norm = (path + name for name in names)
    for name in attention:
        maker.linear(name, HIDDEN, HIDDEN)
    maker.norm(attention_norm, HIDDEN)
    maker.linear(feed_in, WIDE, HIDDEN)
    maker.linear(feed_out, HIDDEN, WIDE)
    maker.norm(feed_norm, HIDDEN)


def make_head(maker: Maker, family: str, head: str) -> None:
    if head == "ForSequenceClassification":
        dense, output, _ = CLASSIFIERS[family]
        if dense != "pooler":
            maker.linear(dense, HIDDEN, HIDDEN)
        maker.linear(output, LABELS, HIDDEN)
    elif head == "ForTokenClassification":
        maker.linear("classifier", LABELS, HIDDEN)
    elif head == "ForQuestionAnswering":
        maker.linear("qa_outputs", 2, HIDDEN)
    elif head == "ForMaskedLM":
        dense, norm, bias = LM_HEADS[family]
        maker.linear(dense, embedding_size(family), HIDDEN)
        maker.norm(norm, embedding_size(family))
        maker.table(bias, VOCABULARY)


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_bfloat16(file: Path, tensors: Tensors) -> None:
    header: dict[str, Any] = {}
    data = b""
    for name, value in tensors.items():
        raw = value.astype(ml_dtypes.bfloat16).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


# --- the NumPy forward --------------------------------------------------------------------------


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


# --- running ------------------------------------------------------------------------------------


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
    model = inline_weights(*build_model(folder))
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


# --- the graphs compute what the models compute --------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_encoder_matches_reference(tmp_path: Path, family: str) -> None:
    config, tensors = make_config(family), make_tensors(family)
    session = open_session(write(tmp_path, config, tensors))
    reference = Reference(config, tensors)
    for batch, length, padded in ((1, 1, False), (1, 9, False), (3, 7, True), (2, 180, True)):
        feed = make_feed(batch, length, family=family, padded=padded)
        output, hidden = run(session, feed), reference.hidden(feed)
        assert_close(output["last_hidden_state"], hidden)
        assert ("pooler_output" in output) == (family in POOLERS)
        if family in POOLERS:
            assert_close(output["pooler_output"], reference.pooled(hidden))


@pytest.mark.parametrize(
    "head",
    ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM"],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_head_matches_reference(tmp_path: Path, family: str, head: str) -> None:
    config, tensors = make_config(family, head), make_tensors(family, head)
    session = open_session(write(tmp_path, config, tensors))
    reference = Reference(config, tensors)
    feed = make_feed(3, 6, family=family, padded=True)
    output = run(session, feed)
    expected = reference.head(head, reference.hidden(feed))
    assert list(output)[: len(expected)] == list(expected)
    for name, value in expected.items():
        assert_close(output[name], value)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(tmp_path: Path, activation: str) -> None:
    config, tensors = make_config("bert", hidden_act=activation), make_tensors("bert")
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_albert_groups_share_weights_and_transposes(tmp_path: Path) -> None:
    config, tensors = make_config("albert", num_hidden_groups=1), make_tensors("albert")
    write(tmp_path, config, tensors)
    first = {name: value for name, value in tensors.items() if "_groups.0." in name}
    shared = {name.replace("_groups.0.", "_groups.1."): v for name, v in first.items()}
    assert_hidden_matches(tmp_path, Reference(config, tensors | shared))
    proto, weights = build_model(tmp_path)
    transposed = [n.input[0] for n in proto.graph.node if n.op_type == "Transpose"]
    weight_transposes = [name for name in transposed if name in weights]
    assert len(weight_transposes) == len(set(weight_transposes))


def test_albert_projects_equal_sizes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NARROW", HIDDEN)
    config, tensors = make_config("albert"), make_tensors("albert")
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_electra_of_equal_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PROJECTIONS, "electra")
    config = make_config("electra", embedding_size=HIDDEN)
    tensors = make_tensors("electra")
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_masked_lm_prefers_its_own_decoder(tmp_path: Path) -> None:
    config, tensors = make_config("bert", "ForMaskedLM"), make_tensors("bert", "ForMaskedLM")
    own = np.full((VOCABULARY, HIDDEN), 0.25, np.float32)
    tensors["cls.predictions.decoder.weight"] = own
    tensors["cls.predictions.decoder.bias"] = np.linspace(-1, 1, VOCABULARY, dtype=np.float32)
    session = open_session(write(tmp_path, config, tensors))
    feed = make_feed(1, 4, family="bert", padded=False)
    reference = Reference(config, tensors)
    hidden = reference.hidden(feed)
    reference.t["bert.embeddings.word_embeddings.weight"] = own.astype(np.float64)
    reference.t["cls.predictions.bias"] = reference.t["cls.predictions.decoder.bias"]
    assert_close(run(session, feed)["logits"], reference.head("ForMaskedLM", hidden)["logits"])


def test_relative_buckets_at_the_borders() -> None:
    distances = np.array([0, -1, -7, -8, -11, -12, -16, -127, -128, -5000, 1, 8, 5000])
    expected = [0, 1, 7, 8, 8, 9, 10, 15, 15, 15, 17, 24, 31]
    assert relative_buckets(distances).tolist() == expected


# --- what checkpoints may look like --------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_without_prefix(tmp_path: Path, family: str) -> None:
    config, tensors = make_config(family), make_tensors(family, prefixed=False)
    write(tmp_path, config, tensors)
    assert_hidden_matches(tmp_path, Reference(config, tensors, prefixed=False))


def test_old_norm_names(tmp_path: Path) -> None:
    config, tensors = make_config("bert"), make_tensors("bert")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for name, value in tensors.items()
    }
    write(tmp_path, config, renamed)
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_half_precision_is_widened(tmp_path: Path) -> None:
    config = make_config("bert")
    tensors = {name: value.astype(np.float16) for name, value in make_tensors("bert").items()}
    write(tmp_path, config, tensors)
    assert {array.dtype for array in build_model(tmp_path)[1].values()} == {np.dtype(np.float32)}
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_bfloat16_is_widened(tmp_path: Path) -> None:
    config, tensors = make_config("bert"), make_tensors("bert")
    write(tmp_path, config, tensors)
    write_bfloat16(tmp_path / "model.safetensors", tensors)
    rounded = {n: v.astype(ml_dtypes.bfloat16).astype(np.float32) for n, v in tensors.items()}
    for name, value in build_model(tmp_path)[1].items():
        np.testing.assert_array_equal(value, rounded[name])
    assert_hidden_matches(tmp_path, Reference(config, rounded))


def test_sharded_checkpoint(tmp_path: Path) -> None:
    config, tensors = make_config("bert"), make_tensors("bert")
    shard(write(tmp_path, config, tensors))
    assert_hidden_matches(tmp_path, Reference(config, tensors))


def test_encoder_saved_under_a_head_s_architecture(tmp_path: Path) -> None:
    write(tmp_path, make_config("bert", "ForMaskedLM"), make_tensors("bert"))
    proto, _ = build_model(tmp_path)
    assert [o.name for o in proto.graph.output] == ["last_hidden_state", "pooler_output"]


def test_bert_without_token_types(tmp_path: Path) -> None:
    tensors = make_tensors("bert")
    del tensors["bert.embeddings.token_type_embeddings.weight"]
    proto, _ = build_model(write(tmp_path, make_config("bert", type_vocab_size=0), tensors))
    assert [i.name for i in proto.graph.input] == ["input_ids", "attention_mask"]


def test_weights_stay_in_the_mapped_file(tmp_path: Path) -> None:
    proto, weights = build_model(write(tmp_path, make_config("bert"), make_tensors("bert")))
    stored = load_file(tmp_path / "model.safetensors")
    used = {name for node in proto.graph.node for name in node.input}
    assert set(weights) == set(stored) <= used
    assert not set(weights) & {tensor.name for tensor in proto.graph.initializer}
    for name, array in weights.items():
        assert not array.flags.owndata
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, stored[name])


def test_declared_interface(tmp_path: Path) -> None:
    config = make_config("bert", "ForSequenceClassification")
    tensors = make_tensors("bert", "ForSequenceClassification")
    proto, _ = build_model(write(tmp_path, config, tensors))
    assert proto.ir_version == 10
    assert [(opset.domain, opset.version) for opset in proto.opset_import] == [("", 20)]
    ids = ["batch", "sequence"]
    assert {i.name: dims(i) for i in proto.graph.input} == {
        "input_ids": ids,
        "attention_mask": ids,
        "token_type_ids": ids,
    }
    assert {o.name: dims(o) for o in proto.graph.output} == {
        "logits": ["batch", LABELS],
        "last_hidden_state": [*ids, HIDDEN],
        "pooler_output": ["batch", HIDDEN],
    }


def dims(value: onnx.ValueInfoProto) -> list[str | int]:
    return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]


# --- what cannot be built ------------------------------------------------------------------------


def shard(folder: Path) -> None:
    """Splits a folder's weights over two files and an index."""
    single = folder / "model.safetensors"
    tensors = load_file(single)
    names = sorted(tensors)
    weight_map = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, folder / file)
    single.unlink()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write(tmp_path / "bert", make_config("bert"), make_tensors("bert"))


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": "gpt2"}, "model type 'gpt2'.*albert, bert, camembert.*onnx/model.onnx"),
        ({"model_type": ["bert"]}, r"model type \['bert'\]"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'.*onnx/model.onnx"),
        ({"is_decoder": True}, "is_decoder.*onnx/model.onnx"),
        ({"hidden_act": "mish"}, "'mish'.*onnx/model.onnx"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 64}, "num_buckets 64"),
    ],
)
def test_unsupported_config(bert: Path, changes: dict[str, Any], what: str) -> None:
    change_config(bert, **changes)
    with pytest.raises(UnsupportedError, match=what):
        build_model(bert)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": None}, "has no 'model_type'"),
        ({"hidden_size": None}, "'hidden_size' as a whole number of at least 1, not None"),
        ({"vocab_size": "30"}, "'vocab_size'.*not '30'"),
        ({"num_attention_heads": 3}, "8 over 3 attention heads"),
        ({"layer_norm_eps": "small"}, "'layer_norm_eps' as a number"),
        ({"hidden_act": 3}, "'hidden_act' as a string"),
        ({"model_type": "distilbert", "hidden_size": 0}, "'dim'"),
    ],
)
def test_wrong_config_values(bert: Path, changes: dict[str, Any], what: str) -> None:
    change_config(bert, **changes)
    with pytest.raises(ModelError, match=what):
        build_model(bert)


@pytest.mark.parametrize(("text", "what"), [("{", "not valid JSON"), ("[]", "not a JSON object")])
def test_unreadable_config(bert: Path, text: str, what: str) -> None:
    (bert / "config.json").write_text(text)
    with pytest.raises(ModelError, match=what):
        build_model(bert)


def test_missing_config(bert: Path) -> None:
    (bert / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing; download"):
        build_model(bert)


def test_missing_weights(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors.*download"):
        build_model(bert)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_torch_weights_only(bert: Path, name: str) -> None:
    (bert / "model.safetensors").rename(bert / name)
    change_config(bert, architectures=["BertForMaskedLM"])
    with pytest.raises(ModelError, match=r"reads safetensors; convert.*import BertForMaskedLM as"):
        build_model(bert)


def test_hostile_architecture_stays_out_of_the_advice(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    change_config(bert, architectures=["os; os.system('x')"])
    with pytest.raises(ModelError, match="import AutoModel as") as caught:
        build_model(bert)
    assert "os.system" not in str(caught.value)


def test_missing_tensor(tmp_path: Path) -> None:
    tensors = make_tensors("bert")
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    write(tmp_path, make_config("bert"), tensors)
    message = r"'bert\.encoder\.layer\.1\.output\.dense\.bias' is missing from .*safetensors"
    with pytest.raises(ModelError, match=message):
        build_model(tmp_path)


@pytest.mark.parametrize("shape", [(HIDDEN, HIDDEN + 1), (HIDDEN,)])
def test_wrong_tensor_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = make_tensors("bert", "ForSequenceClassification")
    tensors["classifier.weight"] = np.zeros(shape, np.float32)
    write(tmp_path, make_config("bert", "ForSequenceClassification"), tensors)
    message = r"'classifier\.weight' in .* has shape \[8.*asks for \[any, 8\]"
    with pytest.raises(ModelError, match=message):
        build_model(tmp_path)


def test_quantised_tensor(tmp_path: Path) -> None:
    tensors = make_tensors("bert")
    name = "bert.encoder.layer.0.output.dense.weight"
    tensors[name] = tensors[name].astype(np.int8)
    with pytest.raises(UnsupportedError, match=r"dtype I8.*unquantised"):
        build_model(write(tmp_path, make_config("bert"), tensors))


def cut_short(data: bytes) -> bytes:
    return data[:-4]


def lose_a_value(data: bytes) -> bytes:
    return data.replace(b"[8,8]", b"[8,7]", 1)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (cut_short, "damaged: tensor '.*' lies outside it"),
        (lose_a_value, "damaged: tensor '.*' has not the bytes"),
        (lambda data: b"", "damaged: it is shorter"),
        (lambda data: data[:100], "damaged: it is shorter"),
        (lambda data: data[:8] + b"x" + data[9:], "damaged: its header cannot be read"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_damaged_weights(bert: Path, damage: Callable[[bytes], bytes], what: str) -> None:
    file = bert / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match=what):
        build_model(bert)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_damaged_index(bert: Path, text: str) -> None:
    shard(bert)
    (bert / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match="not a safetensors index"):
        build_model(bert)


def test_missing_shard(bert: Path) -> None:
    shard(bert)
    (bert / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1\.safetensors is missing, but .* lists it"):
        build_model(bert)


def test_shards_outside_the_folder_are_not_read(bert: Path) -> None:
    shard(bert)
    outside = bert.parent / "elsewhere.safetensors"
    shutil.move(bert / "part-1.safetensors", outside)
    index = bert / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("part-1", "../elsewhere"))
    with pytest.raises(ModelError, match=r"elsewhere\.safetensors is missing"):
        build_model(bert)
