"""Errors of encoder checkpoints that are unsupported, incomplete or damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import ModelError, UnsupportedError
from clrt.models.encoders.checkpoint_graph import import_checkpoint
from tests.unit.models.encoders.checkpoints import HIDDEN, make_config, make_tensors, shard, write


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
def test_unsupported_config_is_refused(bert: Path, changes: dict[str, Any], what: str) -> None:
    change_config(bert, **changes)
    with pytest.raises(UnsupportedError, match=what):
        import_checkpoint(bert)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model_type": None}, "has no 'model_type'"),
        ({"hidden_size": None}, "'hidden_size' as a whole number of at least 1, not None"),
        ({"vocab_size": "30"}, "'vocab_size'.*not '30'"),
        ({"num_attention_heads": 3}, "size of 8, .* by 3 attention heads"),
        ({"layer_norm_eps": "small"}, "'layer_norm_eps' as a number"),
        ({"hidden_act": 3}, "'hidden_act' as a string"),
        ({"model_type": "distilbert", "hidden_size": 0}, "'dim'"),
    ],
)
def test_invalid_config_values_are_refused(bert: Path, changes: dict[str, Any], what: str) -> None:
    change_config(bert, **changes)
    with pytest.raises(ModelError, match=what):
        import_checkpoint(bert)


@pytest.mark.parametrize(
    ("text", "what"), [("{", "not valid JSON"), ("[]", "must hold a JSON object")]
)
def test_unreadable_config_is_refused(bert: Path, text: str, what: str) -> None:
    (bert / "config.json").write_text(text)
    with pytest.raises(ModelError, match=what):
        import_checkpoint(bert)


def test_missing_config_is_reported(bert: Path) -> None:
    (bert / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing; download"):
        import_checkpoint(bert)


def test_missing_weights_are_reported(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"holds no model\.safetensors.*download"):
        import_checkpoint(bert)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_torch_weights_are_refused_with_conversion_hint(bert: Path, name: str) -> None:
    (bert / "model.safetensors").rename(bert / name)
    change_config(bert, architectures=["BertForMaskedLM"])
    with pytest.raises(
        ModelError, match=r"reads only safetensors; convert.*import BertForMaskedLM as"
    ):
        import_checkpoint(bert)


def test_hostile_architecture_name_is_not_in_conversion_hint(bert: Path) -> None:
    (bert / "model.safetensors").rename(bert / "pytorch_model.bin")
    change_config(bert, architectures=["os; os.system('x')"])
    with pytest.raises(ModelError, match="import AutoModel as") as caught:
        import_checkpoint(bert)
    assert "os.system" not in str(caught.value)


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    tensors = make_tensors("bert")
    del tensors["bert.encoder.layer.1.output.dense.bias"]
    write(tmp_path, make_config("bert"), tensors)
    message = r"'bert\.encoder\.layer\.1\.output\.dense\.bias' is missing from .*safetensors"
    with pytest.raises(ModelError, match=message):
        import_checkpoint(tmp_path)


@pytest.mark.parametrize("shape", [(HIDDEN, HIDDEN + 1), (HIDDEN,)])
def test_wrong_tensor_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = make_tensors("bert", "ForSequenceClassification")
    tensors["classifier.weight"] = np.zeros(shape, np.float32)
    write(tmp_path, make_config("bert", "ForSequenceClassification"), tensors)
    message = r"'classifier\.weight' in .* has shape \[8.*implies \[any, 8\]"
    with pytest.raises(ModelError, match=message):
        import_checkpoint(tmp_path)


def test_quantised_tensor_is_refused(tmp_path: Path) -> None:
    tensors = make_tensors("bert")
    name = "bert.encoder.layer.0.output.dense.weight"
    tensors[name] = tensors[name].astype(np.int8)
    with pytest.raises(UnsupportedError, match=r"dtype I8.*unquantised"):
        import_checkpoint(write(tmp_path, make_config("bert"), tensors))


def cut_short(data: bytes) -> bytes:
    return data[:-4]


def lose_a_value(data: bytes) -> bytes:
    return data.replace(b"[8,8]", b"[8,7]", 1)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (cut_short, "damaged: tensor '.*' is outside the file"),
        (lose_a_value, "damaged: tensor '.*' does not have the bytes"),
        (lambda data: b"", "damaged: it is shorter"),
        (lambda data: data[:100], "damaged: it is shorter"),
        (lambda data: data[:8] + b"x" + data[9:], "damaged: its header cannot be read"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_damaged_weights_are_refused(
    bert: Path, damage: Callable[[bytes], bytes], what: str
) -> None:
    file = bert / "model.safetensors"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ModelError, match=what):
        import_checkpoint(bert)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": {"a": 1}}'])
def test_damaged_shard_index_is_refused(bert: Path, text: str) -> None:
    shard(bert)
    (bert / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelError, match=r"index\.json"):
        import_checkpoint(bert)


def test_missing_shard_is_named(bert: Path) -> None:
    shard(bert)
    (bert / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1\.safetensors is missing, but .* lists it"):
        import_checkpoint(bert)


def test_shards_outside_folder_are_not_read(bert: Path) -> None:
    shard(bert)
    outside = bert.parent / "elsewhere.safetensors"
    shutil.move(bert / "part-1.safetensors", outside)
    index = bert / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("part-1", "../elsewhere"))
    with pytest.raises(ModelError, match=r"elsewhere\.safetensors is missing"):
        import_checkpoint(bert)
