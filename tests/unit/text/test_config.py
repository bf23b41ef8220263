"""Pooling, lengths and prompts read from a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.text.config import read_config

TRANSFORMER = {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
NORMALIZE = {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}


def write(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def pooling_folder(folder: Path, pooling: dict[str, Any]) -> Path:
    return write(folder, {"modules.json": [TRANSFORMER, POOLING], "1_Pooling/config.json": pooling})


@pytest.mark.parametrize(
    ("config", "modes"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, ("mean",)),
        ({"pooling_mode_cls_token": True}, ("cls",)),
        ({"pooling_mode_max_tokens": True}, ("max",)),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, ("mean_sqrt_len",)),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, ("cls", "mean")),
        ({"pooling_mode": "cls"}, ("cls",)),
        ({"pooling_mode": ["mean", "max"]}, ("mean", "max")),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, ("mean_sqrt_len",)),
        ({"pooling_mode_mean_tokens": False}, ("mean",)),
        ({"word_embedding_dimension": 8}, ("mean",)),
    ],
)
def test_pooling_config_gives_modes(
    tmp_path: Path, config: dict[str, Any], modes: tuple[str, ...]
) -> None:
    assert read_config(pooling_folder(tmp_path, config)).modes == modes


def test_pooling_argument_overrides_config(tmp_path: Path) -> None:
    folder = pooling_folder(tmp_path, {"pooling_mode_lasttoken": True})
    assert read_config(folder, "max").modes == ("max",)
    assert read_config(folder, "mean_sqrt_len_tokens").modes == ("mean_sqrt_len",)


def test_unsupported_pooling_is_named(tmp_path: Path) -> None:
    folder = pooling_folder(tmp_path, {"pooling_mode": "median"})
    with pytest.raises(UnsupportedError, match=r"median.*mean_sqrt_len"):
        read_config(folder)


def test_unknown_pooling_argument_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'average' is not one of cls, max, mean"):
        read_config(tmp_path, "average")


def test_include_prompt_is_read(tmp_path: Path) -> None:
    assert read_config(pooling_folder(tmp_path, {"pooling_mode": "cls"})).include_prompt
    assert not read_config(pooling_folder(tmp_path, {"include_prompt": False})).include_prompt


@pytest.mark.parametrize("config", [{}, {"pooling_mode": []}])
def test_missing_pooling_mode_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = pooling_folder(tmp_path, config)
    with pytest.raises(ModelError, match="has no pooling mode"):
        read_config(folder)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(ModelError, match="is missing or has no pooling mode"):
        read_config(folder)
    assert read_config(folder, "cls").modes == ("cls",)


def test_normalize_module_enables_normalization(tmp_path: Path) -> None:
    assert not read_config(pooling_folder(tmp_path, {"pooling_mode": "cls"})).normalize
    write(tmp_path, {"modules.json": [TRANSFORMER, POOLING, NORMALIZE]})
    assert read_config(tmp_path).normalize


def test_folder_without_modules_means_mean_pooling(tmp_path: Path) -> None:
    config = read_config(tmp_path)
    assert (config.modes, config.normalize, config.max_length) == (("mean",), False, None)


def test_transformer_subfolder_is_source(tmp_path: Path) -> None:
    moved = {**TRANSFORMER, "path": "0_Transformer"}
    pooling_folder(tmp_path, {"pooling_mode": "cls"})
    write(tmp_path, {"modules.json": [moved, POOLING]})
    config = read_config(tmp_path)
    assert config.folder == config.source == tmp_path / "0_Transformer"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "kind",
    ["CNN", "LSTM", "BoW", "WordEmbeddings", "WordWeights", "WeightedLayerPooling", "CLIPModel",
     "Router", "Asym", "SparseAutoEncoder", "SparseStaticEmbedding", "LogitScore",
     "MultiVectorMask", "TokenPooling"],
)  # fmt: skip
def test_unsupported_module_is_named(kind: str, first: bool, tmp_path: Path) -> None:
    """Modules of sentence-transformers 6, before pooling or instead of the transformer."""
    odd = {"path": "1", "type": f"sentence_transformers.sentence_transformer.modules.{kind}"}
    write(tmp_path, {"modules.json": [odd, POOLING] if first else [TRANSFORMER, odd, POOLING]})
    chain = f"{kind} -> Pooling" if first else f"Transformer -> {kind} -> Pooling"
    with pytest.raises(UnsupportedError, match=chain) as caught:
        read_config(tmp_path)
    assert caught.value.nodes == (kind,)


def test_modules_without_pooling_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"modules.json": [TRANSFORMER]})
    with pytest.raises(ModelError, match="pass pooling="):
        read_config(tmp_path)
    assert read_config(tmp_path, "cls").modes == ("cls",)


@pytest.mark.parametrize(
    ("files", "length"),
    [
        ({}, None),
        ({"sentence_bert_config.json": {"max_seq_length": 256}}, 256),
        ({"sentence_roberta_config.json": {"max_seq_length": 128}}, 128),
        ({"tokenizer_config.json": {"model_max_length": 512}}, 512),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, None),
        ({"config.json": {"model_type": "bert", "max_position_embeddings": 512}}, 512),
        (
            {"config.json": {"model_type": "mpnet", "max_position_embeddings": 514}},
            512,
        ),
        (
            {
                "config.json": {
                    "model_type": "roberta",
                    "max_position_embeddings": 514,
                    "pad_token_id": 1,
                },
                "tokenizer_config.json": {"model_max_length": 10**30},
            },
            512,
        ),
        ({"config.json": {"model_type": "xlnet", "max_position_embeddings": -1}}, None),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": None},
                "tokenizer_config.json": {"model_max_length": 384},
                "config.json": {"max_position_embeddings": 512},
            },
            384,
        ),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 1024},
                "config.json": {"max_position_embeddings": 512},
            },
            512,
        ),
    ],
)
def test_max_length_is_read_from_config_files(
    tmp_path: Path, files: dict[str, Any], length: int | None
) -> None:
    assert read_config(write(tmp_path, files)).max_length == length


def test_default_prompt_name_selects_prompt(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    write(tmp_path, {"config_sentence_transformers.json": {**prompts, "default_prompt_name": None}})
    assert read_config(tmp_path).prompt == ""
    named = {**prompts, "default_prompt_name": "query"}
    write(tmp_path, {"config_sentence_transformers.json": named})
    assert read_config(tmp_path).prompt == "query: "


@pytest.mark.parametrize(
    ("files", "token"),
    [
        ({}, ""),
        ({"tokenizer_config.json": {"pad_token": "<pad>"}}, "<pad>"),
        ({"tokenizer_config.json": {"pad_token": {"content": "<pad>"}}}, "<pad>"),
        ({"special_tokens_map.json": {"pad_token": "[PAD]"}}, "[PAD]"),
    ],
)
def test_pad_token_is_read_from_config_files(
    tmp_path: Path, files: dict[str, Any], token: str
) -> None:
    assert read_config(write(tmp_path, files)).pad_token == token


def test_onnx_file_uses_tokenizer_folder_above(tmp_path: Path) -> None:
    write(tmp_path, {"tokenizer.json": "{}", "onnx/model.onnx": "", "modules.json": [TRANSFORMER]})
    config = read_config(tmp_path / "onnx" / "model.onnx", "mean")
    assert config.folder == tmp_path
    assert config.source == tmp_path / "onnx" / "model.onnx"


def test_onnx_file_without_tokenizer_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": ""})
    with pytest.raises(ModelError, match=r"No tokenizer\.json is beside"):
        read_config(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("modules.json", "{}", "must hold a list of modules"),
        ("config.json", b"\xff\xfe\x00", "cannot be read: .* can't decode"),
    ],
)
def test_damaged_config_files_are_refused(
    tmp_path: Path, file: str, content: str | bytes, message: str
) -> None:
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


_WHOLE = "config_sentence_transformers.json"
_SENTENCE = "sentence_bert_config.json"


def test_config_supplies_prompt_and_limits(tmp_path: Path) -> None:
    prompts = {"prompts": {"q": "query: "}, "default_prompt_name": "q", "truncate_dim": 8}
    limits = {"tokenizer_args": {"model_max_length": 9}}
    config = read_config(write(tmp_path, {_WHOLE: prompts, _SENTENCE: limits}))
    assert (config.prompt, config.truncate_dim, config.max_length) == ("query: ", 8, 9)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({_WHOLE: {"prompts": {"q": ""}, "default_prompt_name": "d"}}, ModelError, "'d', but 'q'"),
        ({_WHOLE: {"prompts": "x", "default_prompt_name": ["q"]}}, ModelError, "but none"),
        ({_SENTENCE: {"config_args": {"hidden_act": "relu"}}}, UnsupportedError, "config_args"),
        ({_SENTENCE: {"transformer_task": "fill-mask"}}, UnsupportedError, "transformer_task"),
        ({"tokenizer_config.json": {"truncation_side": "LEFT"}}, ModelError, "'left' or 'right'"),
        ({"config.json": "[" * 100_000}, ModelError, "not valid JSON"),
        ({"modules.json": [{"type": "own.Transformer"}]}, UnsupportedError, "own.Transformer"),
    ],
)
def test_unsupported_or_invalid_config_is_refused(
    tmp_path: Path, files: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_config(write(tmp_path, files))


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": []},
        {"model_type": "roberta", "max_position_embeddings": 9, "pad_token_id": "x"},
    ],
)
def test_irrelevant_invalid_config_values_are_ignored(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    odd = {"pad_token": {"x": 1}, "added_tokens_decoder": [], "model_max_length": "16"}
    write(tmp_path, {"added_tokens.json": {"word": "no number"}})
    config = read_config(write(tmp_path, {"config.json": values, "tokenizer_config.json": odd}))
    assert config.pad_token == "" and not config.added_tokens
