"""sentence-transformers modules besides transformer and pooling, against NumPy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import clrt
from clrt.errors import ModelError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.models.decoders.sequence import sequence_graph
from clrt.ops.op_builder import OpBuilder
from clrt.runtime.model.model import load
from clrt.text.stages import VectorStage, read_stages, stages_of
from clrt.tools.convert import Options, convert, read_encoder, write
from tests.generation.checkpoints import load_json, noise, tokens, write_folder
from tests.generation.oracle_decoders import COLUMNS, LENGTHS
from tests.generation.test_token_decoders import LOGITS
from tests.harness import quick_device
from tests.models.text_folders import TEXTS, make_folder, sentence_files
from tests.unit.text.fakes import evaluate

Array = NDArray[Any]
KIND = "sentence_transformers.sentence_transformer.modules"
SIZE = 16
WORDS = ["[PAD]", "[UNK]", "[CLS]", "a", "cat", "dog", "on", "mat"]
CASES = load_json()


def static_folder(folder: Path, tensors: Mapping[str, Array], **modules: Any) -> Path:
    """Writes a folder of StaticEmbedding and other modules, each with a config and tensors."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file(dict(tensors), folder / "model.safetensors")
    listed = [{"path": "", "type": f"{KIND}.StaticEmbedding"}]
    for number, (name, (config, more)) in enumerate(modules.items(), start=1):
        path = f"{number}_{name}"
        listed.append({"path": path, "type": f"{KIND}.{name.rstrip('_')}"})
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
        if more:
            save_file(more, folder / path / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def dense(activation: str, inputs: int, outputs: int, **options: Any) -> Any:
    """Returns a Dense module with random weights."""
    config = {"in_features": inputs, "out_features": outputs, "bias": True,
              "activation_function": activation, **options}  # fmt: skip
    tensors = {
        "linear.weight": noise("w", (outputs, inputs)),
        "linear.bias": noise("b", (outputs,)),
    }
    if options.get("use_residual") and inputs != outputs:
        tensors["residual.weight"] = noise("r", (outputs, inputs))
    return config, tensors


def plain(text: str) -> Array:
    """Returns the mean of the rows of a text's tokens, without special tokens."""
    ids = [WORDS.index(w) if w in WORDS else 1 for w in text.split()]
    return TABLE[ids].mean(axis=0) if ids else np.zeros(SIZE, np.float32)


TABLE = noise("table", (len(WORDS), SIZE))
SHORT = ["a cat on a mat", "dog", "", "a bird"]


@pytest.mark.parametrize("compiled", [False, True])
def test_static_embedding_stages_match_numpy(compiled: bool, tmp_path: Path) -> None:
    scale, shift = noise("s", (8,)), noise("t", (8,))
    tanh = dense("torch.nn.modules.activation.Tanh", SIZE, 8, use_residual=True)
    norm = {"dimension": 8}, {"norm.weight": scale, "norm.bias": shift}
    folder = static_folder(tmp_path / "m", {"embedding.weight": TABLE}, Normalize=({}, {}),
                           Dense=tanh, LayerNorm=norm, Dropout=({"dropout": 0.5}, {}),
                           Normalize_=({}, {}))  # fmt: skip
    rows = np.stack([plain(t) for t in SHORT]).astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    tensors = tanh[1]
    rows = np.tanh(rows @ tensors["linear.weight"].T + tensors["linear.bias"]) + (
        rows @ tensors["residual.weight"].T
    )
    rows = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
    rows = rows * scale + shift
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    source = folder
    if compiled:
        source = tmp_path / "alone" / "m.clrt"
        source.parent.mkdir()
        settings, _ = read_encoder(folder)
        write(convert(folder, Options()), source, [], settings, quick_device().index)
    with clrt.SentenceEncoder(source, device=quick_device().index) as encoder:
        np.testing.assert_allclose(encoder.encode(SHORT, batch_size=2), rows, atol=1e-5)
        cut = encoder.encode(SHORT, truncate_dim=3)
        assert encoder.dimension == 8 and encoder.encode([]).shape == (0, 8)
    np.testing.assert_allclose(cut, rows[:, :3], atol=1e-5)


def test_model2vec_mapping_and_weights_match_numpy(tmp_path: Path) -> None:
    """Tokens may share a row, and each has a weight."""
    mapping, weights = np.arange(len(WORDS))[::-1] // 2, noise("f", (len(WORDS),))
    tensors = {"embeddings": TABLE.astype(np.float16), "mapping": mapping, "weights": weights}
    folder = static_folder(tmp_path, tensors)
    with clrt.SentenceEncoder(folder, device=quick_device().index) as encoder:
        found = encoder.encode("cat dog")
    table = TABLE.astype(np.float16)[mapping] * weights[:, None]
    np.testing.assert_allclose(found, table[4:6].mean(axis=0), atol=1e-5)
    save_file({**tensors, "mapping": mapping + 9}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"'mapping' of .* points outside"):
        clrt.SentenceEncoder(folder, device=quick_device().index)


_ERF = np.vectorize(math.erf)
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "activation.Tanh": np.tanh,
    "linear.Identity": lambda x: x,
    "activation.ReLU": lambda x: np.maximum(x, 0),
    "activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "activation.GELU": lambda x: x * (1 + _ERF(x / np.sqrt(2))) / 2,
    "activation.SiLU": lambda x: x / (1 + np.exp(-x)),
    "activation.LeakyReLU": lambda x: np.where(x > 0, x, 0.01 * x),
    "activation.ELU": lambda x: np.where(x > 0, x, np.expm1(x)),
    "activation.Softplus": lambda x: np.log1p(np.exp(x)),
    "activation.Softsign": lambda x: x / (1 + np.abs(x)),
    "activation.Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "activation.Hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


def test_dense_activations_match_torch(tmp_path: Path) -> None:
    x = noise("x", (5, 4))
    for number, (name, function) in enumerate(ACTIVATIONS.items()):
        config, tensors = dense(f"torch.nn.modules.{name}", 4, 3)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
        (stage,) = read_stages(tmp_path, [("Dense", str(number))])
        build = OpBuilder()
        y = stage.apply(build, build.feed("x", DType.FLOAT32, 5, 4))
        found = evaluate(build.graph("stage", build.inputs, [y], ["y"]), {"x": x})["y"]
        wanted = function(x @ tensors["linear.weight"].T + tensors["linear.bias"])
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softmax"}, "activation 'torch.nn."),
        ({"activation_function": "mine.Act"}, "activation 'mine.Act'"),
        ({"module_input_name": "token_embeddings"}, "module_input_name 'token_embeddings'"),
        ({"out_features": "8"}, "out_features '8'; expected a number above 0"),
        ({"out_features": 9}, "has shape"),
    ],
)
def test_unsupported_dense_config_is_refused(
    config: dict[str, Any], said: str, tmp_path: Path
) -> None:
    made, tensors = dense("torch.nn.modules.activation.Tanh", SIZE, 8)
    folder = static_folder(
        tmp_path, {"embedding.weight": TABLE}, Dense=({**made, **config}, tensors)
    )
    with pytest.raises((UnsupportedError, ModelError), match=said):
        clrt.SentenceEncoder(folder, device=quick_device().index)


def test_damaged_stored_stages_are_refused() -> None:
    stage = VectorStage("Dense", "Tanh", False, {"linear.weight": noise("w", (2, 3))})
    stored = json.loads(json.dumps(stage.stored()))
    (again,) = stages_of([stored]) or ()
    np.testing.assert_array_equal(again.tensors["linear.weight"], stage.tensors["linear.weight"])
    tensor = stored["tensors"]["linear.weight"]
    for broken in (
        {"kind": "Dense"}, {**stored, "kind": "Eval"}, {**stored, "activation": "x"},
        {**stored, "tensors": {}}, {**stored, "tensors": {"linear.weight": [[2, 4], tensor[1]]}},
        {**stored, "tensors": {"linear.weight": [[2, 3], "?"]}},
        {**stored, "tensors": {"linear.weight": [[-2, -3], tensor[1]]}},
        {**stored, "tensors": {"linear.weight": tensor, "more": tensor}},
    ):  # fmt: skip
        assert stages_of([broken]) is None
    assert stages_of({}) is None


@pytest.mark.parametrize("name", ["qwen3", "gemma3_text", "phi", "gptj", "gpt2", "mistral"])
def test_decoder_hidden_states_match_logits(name: str, tmp_path: Path) -> None:
    """Each token's hidden state yields its logits, independent of later tokens."""
    folder = write_folder(tmp_path, CASES[name])
    with load(sequence_graph(folder), device=quick_device()) as model:
        ids, mask = np.zeros((2, max(LENGTHS)), np.int64), np.zeros((2, max(LENGTHS)), np.int64)
        for row, length in enumerate(LENGTHS):
            ids[row, :length], mask[row, :length] = tokens(length), 1
        states = model.run({"input_ids": ids, "attention_mask": mask})["last_hidden_state"]
    shapes = CASES[name]["tensors"]
    head = next((n for n in ("lm_head.weight", "embed_out.weight") if n in shapes), None)
    head = head or next(n for n in shapes if n.endswith(("embed_tokens.weight", "wte.weight")))
    bias = noise("lm_head.bias", shapes["lm_head.bias"]) if "lm_head.bias" in shapes else 0
    cap = CASES[name]["config"].get("final_logit_softcapping")
    for row, length in enumerate(LENGTHS):
        logits = states[row, :length] @ noise(head, tuple(shapes[head])).T + bias
        logits = cap * np.tanh(logits / cap) if cap else logits
        np.testing.assert_allclose(logits[:, COLUMNS], LOGITS[f"{name}/{row}"], atol=2e-4)


def test_unsupported_decoder_encoders_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", CASES["bloom"])
    with pytest.raises(UnsupportedError, match="not supported for vectors of texts"):
        sequence_graph(folder)
    config = {**CASES["qwen3"]["config"], "is_causal": False}
    folder = write_folder(tmp_path / "b", {**CASES["qwen3"], "config": config})
    with pytest.raises(UnsupportedError, match="'is_causal' as False"):
        sequence_graph(folder)


@pytest.mark.parametrize("adds", ["file", "config"])
def test_last_token_pooling_matches_hidden_state(adds: str, tmp_path: Path) -> None:
    """End-of-text token from tokenizer.json or `add_eos_token`; padding on either side."""
    folder = write_folder(tmp_path, CASES["qwen3"])
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if adds == "file":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A [CLS]", special_tokens=[("[CLS]", 2)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"eos_token": "[CLS]", "add_eos_token": adds == "config", "padding_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    listed = [{"path": p, "type": f"sentence_transformers.models.{k}"} for p, k in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with load(sequence_graph(folder), device=quick_device()) as model:
        wanted = []
        for text in SHORT:
            ids = [[*(WORDS.index(w) if w in WORDS else 1 for w in text.split()), 2]]
            feeds = {"input_ids": np.array(ids), "attention_mask": np.ones_like(ids)}
            wanted.append(model.run(feeds)["last_hidden_state"][0, -1])
    with clrt.SentenceEncoder(folder, device=quick_device().index) as encoder:
        np.testing.assert_allclose(encoder.encode(SHORT), wanted, atol=1e-4)


def test_token_embeddings_exclude_padding(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, files=sentence_files({"pooling_mode": "weightedmean"}))
    with clrt.SentenceEncoder(folder, device=quick_device().index) as encoder:
        rows = encoder.encode(TEXTS, output_value="token_embeddings")
        found = encoder.encode(TEXTS)
    wanted = [np.average(r, axis=0, weights=1 + np.arange(len(r))) for r in rows]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
