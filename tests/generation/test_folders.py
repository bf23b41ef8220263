"""Model folders: equivalent layouts of one model, and invalid folders."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.models.decoders.config import read_decoder
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.families import FAMILIES
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.huggingface import read_folder
from clrt.models.huggingface.checkpoint import Checkpoint
from tests.generation.checkpoints import Array, load_json, write_folder

CASES = load_json()
Tensors = dict[str, Array]


def folder_of(name: str, folder: Path, **changes: Any) -> Path:
    """A folder of a case with other values in its config.json; None takes one out."""
    case = copy.deepcopy(CASES[name])
    case["config"] |= changes
    case["config"] = {k: v for k, v in case["config"].items() if v is not None}
    return write_folder(folder, case)


def edit(folder: Path, change: Callable[[Tensors], Tensors]) -> Path:
    """Replaces a folder's tensors by `change` of them, in its file; returns the folder."""
    file = folder / "model.safetensors"
    save_file(change({k: v.copy() for k, v in load_file(file).items()}), file)
    return folder


def constants(folder: Path) -> tuple[DecoderConfig, dict[str, Array]]:
    """What a folder describes, and the large constants of its graph by name."""
    decoder, source = read_folder(folder)
    graph = decoder_graph(decoder, source)
    values = {v.name: v for node in graph.nodes for v in node.inputs if v is not None}
    found = {n: v.type.data for n, v in values.items() if n.endswith(".weight")}
    return decoder, {n: array for n, array in found.items() if array is not None}


def assert_alike(one: Path, other: Path) -> None:
    decoders, arrays = zip(*map(constants, (one, other)), strict=True)
    assert arrays[0].keys() == arrays[1].keys() and arrays[0]
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name])
    skipped = ("rotaries", "family")
    fields = [{k: v for k, v in vars(d).items() if k not in skipped} for d in decoders]
    assert fields[0] == fields[1]
    for a, b in zip(decoders[0].rotaries, decoders[1].rotaries, strict=True):
        assert a is None or (a.frequencies == b.frequencies).all()


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {n.replace(old, new, 1): a for n, a in tensors.items()}


@pytest.mark.parametrize(
    "name, old, new",
    [
        ("llama", "model.", ""),
        ("gpt2", "transformer.", ""),
        ("gpt_neox", "gpt_neox.", ""),
        ("falcon", "transformer.", "model."),
        ("gemma3_text", "model.", "model.language_model."),
    ],
)
def test_tensor_name_prefix_variants_are_equivalent(
    name: str, old: str, new: str, tmp_path: Path
) -> None:
    other = edit(folder_of(name, tmp_path / "b"), renamed(old, new))
    assert_alike(folder_of(name, tmp_path / "a"), other)


def test_gemma3_text_part_of_multimodal_folder_is_read(tmp_path: Path) -> None:
    plain = folder_of("gemma3_text", tmp_path / "a")
    whole = edit(
        folder_of("gemma3_text", tmp_path / "b"), renamed("model.", "language_model.model.")
    )
    inner = json.loads((plain / "config.json").read_text("utf-8"))
    config = {"model_type": "gemma3", "text_config": inner, "vision_config": {"hidden_size": 3}}
    (whole / "config.json").write_text(json.dumps(config), "utf-8")
    assert_alike(plain, whole)
    inner["num_attention_heads"] = "x"
    (whole / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelError, match=r"'text_config.num_attention_heads' as a whole number"):
        read_folder(whole)


def test_gemma3_missing_config_keys_get_defaults(tmp_path: Path) -> None:
    """The published 4B model's config.json has only values that differ from the defaults."""
    config = {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    decoder, _, _ = read_decoder(tmp_path)
    assert (decoder.heads, decoder.kv_heads, decoder.head_size) == (8, 4, 256)
    assert [decoder.window(layer) for layer in range(6)] == [1023] * 5 + [-1]
    full, local = decoder.rotary_of(5), decoder.rotary_of(0)
    assert full is not None and local is not None and full is decoder.rotary_of(11)
    assert full.frequencies[0] == pytest.approx(1 / 8) and local.frequencies[0] == 1


def test_sharded_safetensors_match_single_file(tmp_path: Path) -> None:
    plain, shards = (folder_of("qwen3", tmp_path / part) for part in "ab")
    tensors = load_file(shards / "model.safetensors")
    (shards / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {n: f"model-0000{k % 2 + 1}-of-00002.safetensors" for k, n in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, shards / file)
    index = {"weight_map": files}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    assert_alike(plain, shards)


def test_tied_and_missing_lm_head_are_equivalent(tmp_path: Path) -> None:
    """The head is tied by config.json, or missing from the file."""

    def without_head(tensors: Tensors) -> Tensors:
        return {n: a for n, a in tensors.items() if n != "lm_head.weight"}

    tied = folder_of("llama", tmp_path / "a", tie_word_embeddings=True)
    missing = edit(folder_of("llama", tmp_path / "b"), without_head)
    assert "output.weight" in constants(folder_of("llama", tmp_path / "c"))[1]
    assert "output.weight" not in constants(tied)[1]
    assert_alike(tied, missing)


def test_weight_dtypes_are_kept(tmp_path: Path) -> None:
    _, arrays = constants(folder_of("llama_bf16", tmp_path / "a"))
    assert arrays["blk.0.attn_qkv.weight"].dtype.name == "bfloat16"
    half = edit(
        folder_of("llama", tmp_path / "b"),
        lambda tensors: {n: a.astype(np.float16) for n, a in tensors.items()},
    )
    assert constants(half)[1]["blk.1.ffn_down.weight"].dtype == np.float16


def test_context_selects_longrope_frequencies(tmp_path: Path) -> None:
    folder = folder_of("phi3_long", tmp_path)
    default, short = (read_folder(folder, context)[0] for context in (None, 32))
    assert (default.context, short.context) == (128, 32)
    both, one = default.rotary_of(0), short.rotary_of(0)
    assert both is not None and both.long is not None and one is not None
    assert (both.long[1:] < both.frequencies[1:]).all()
    np.testing.assert_array_equal(one.frequencies, both.frequencies)


def test_context_beyond_position_embeddings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="embeddings for 96 positions, but 97 are requested"):
        read_folder(folder_of("gpt2", tmp_path), 97)


@pytest.mark.parametrize("name", CASES)
def test_every_folder_tensor_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, stored = set(), Checkpoint.stored

    def note(self: Checkpoint, name: str, shape: tuple[int | None, ...]) -> Array:
        read.add(name)
        return stored(self, name, shape)

    monkeypatch.setattr(Checkpoint, "stored", note)
    decoder_graph(*read_folder(folder_of(name, tmp_path)))
    assert read == CASES[name]["tensors"].keys()


def test_gpt2_matrices_are_views_of_file(tmp_path: Path) -> None:
    """Matrices stored [inputs, outputs] are views of the file."""
    _, arrays = constants(folder_of("gpt2", tmp_path))
    assert not arrays["blk.0.attn_qkv.weight"].flags.owndata
    assert arrays["blk.0.attn_qkv.weight"].T.flags.c_contiguous


@pytest.mark.parametrize("value, message", [("x", "'x'"), (3, "3"), ("mamba", "'mamba'")])
def test_unknown_model_type_is_refused(value: Any, message: str, tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path, model_type=value)
    with pytest.raises(UnsupportedError, match=message) as caught:
        read_folder(folder)
    assert all(name in str(caught.value) for name in FAMILIES)


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("llama", {"model_type": None}, ModelError, "has no 'model_type'"),
    ("llama", {"hidden_size": None}, ModelError, "'hidden_size' as a whole number of at least 1"),
    ("gpt2", {"n_embd": -4}, ModelError, "'n_embd' as a whole number of at least 1, not -4"),
    ("llama", {"num_hidden_layers": 10**6}, ModelError, "'num_hidden_layers' as a whole number"),
    ("llama", {"num_key_value_heads": 4}, ModelError, "'num_key_value_heads' as a divisor of 6"),
    ("llama", {"head_dim": 1024}, UnsupportedError, "heads of 1024 elements"),
    ("llama", {"head_dim": 18}, UnsupportedError, "heads of 18 elements"),
    ("qwen2", {"hidden_size": 49}, ModelError, "'num_attention_heads' as a divisor of hidden_size"),
    ("llama", {"rms_norm_eps": "x"}, ModelError, "'rms_norm_eps' as a number"),
    ("llama", {"hidden_act": "xielu"}, UnsupportedError, "Activation 'xielu' is not supported"),
    ("llama", {"tie_word_embeddings": 2}, ModelError, "'tie_word_embeddings' as true or false"),
    ("llama", {"quantization_config": {"bits": 4}}, UnsupportedError, "'quantization_config'"),
    ("llama", {"intermediate_size": 81}, ModelError, "has shape"),
    ("llama", {"num_hidden_layers": 3}, ModelError, "'model.layers.2.self_attn"),
    ("gemma2", {"layer_types": ["full_attention"]}, ModelError, "'layer_types' as a list of 2"),
    ("gemma2", {"layer_types": ["x", "y"]}, ModelError, "'layer_types' as a list of 2"),
    ("gemma", {"use_bidirectional_attention": True}, UnsupportedError, "'use_bidirectional_att"),
    ("smollm3", {"no_rope_layers": [1]}, ModelError, "'no_rope_layers' as a list of 3"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, UnsupportedError, "all layers scale"),
    ("mpt", {"attn_config": {"alibi": False}}, UnsupportedError, "'attn_config.alibi' as False"),
    ("mpt", {"attn_config": 7}, ModelError, "'attn_config' as an object"),
    ("falcon_new", {"num_kv_heads": 3}, ModelError, "'num_kv_heads' as a divisor of 4"),
    ("mixtral", {"num_experts_per_tok": 5}, ModelError, "'num_experts_per_tok' as a whole number"),
    ("granite", {"logits_scaling": 0}, ModelError, "'logits_scaling' as a number of"),
]


@pytest.mark.parametrize("name, changes, error, message", WRONG)
def test_invalid_model_folders_are_refused(
    name: str, changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = folder_of(name, tmp_path, **changes)
    with pytest.raises(error, match=message) as caught:
        decoder_graph(*read_folder(folder))
    assert type(caught.value) is error


def test_missing_embedding_tensor_is_refused(tmp_path: Path) -> None:
    folder = edit(folder_of("llama", tmp_path), renamed("embed_tokens", "embeddings"))
    with pytest.raises(ModelError, match=r"has no tensor 'embed_tokens.weight', with or without"):
        read_folder(folder)


JUNK: tuple[Any, ...] = (None, True, -1, 0, 1, 7, 2**40, 10**400, 1e308, float("nan"), "x", [], {})


@pytest.mark.parametrize("name", CASES)
def test_junk_config_values_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Any value in config.json is accepted, or refused with an error that names the file."""
    config = CASES[name]["config"]
    places: list[tuple[str, ...]] = [(key,) for key in config]
    places += [(k, inner) for k, v in config.items() if isinstance(v, dict) for inner in v]
    places += [("rope_scaling",), ("sliding_window",), ("layer_types",), ("head_dim",)]
    file = tmp_path / "config.json"
    for *outer, last in places:
        for value in JUNK:
            changed = copy.deepcopy(config)
            at = changed
            for key in outer:
                at = at[key]
            at[last] = value
            file.write_text(json.dumps(changed), "utf-8")
            try:
                read_decoder(tmp_path)
            except (ModelError, UnsupportedError) as error:
                assert "config.json" in str(error)
