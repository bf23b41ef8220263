"""LoRA adapters of text generators: texts, caches and files, and invalid adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from clrt.cli import app
from clrt.cli.convert import app as convert
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.generation.model_reader import read_language_model
from clrt.generation.text_generator import TextGenerator
from tests.generation.adapter_folders import (
    load_adapters,
    small_adapter,
    write_adapter,
    write_gguf_adapter,
)
from tests.generation.checkpoints import Array, load_json, noise, write_folder
from tests.generation.gguf_decoders import convert as to_gguf
from tests.generation.oracle_adapters import GGUF_ADAPTERS
from tests.generation.test_gguf_models import TOKENS
from tests.generation.text_folders import TEXTS, make_generator, write_texts
from tests.harness import quick_device

Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"
PROMPT = [5, 8, 13, 21]


def adapter(folder: Path, module: str = Q, **settings: Any) -> Path:
    """An adapter of the decoder of `oracle_texts.py`."""
    rows, columns = TEXTS["tensors"][f"{module}.weight"]
    down, up = noise(f"{module}.a", (2, columns)), noise(f"{module}.b", (rows, 2))
    return small_adapter(folder, module, up, down, **settings)


def tokens(source: Path, adapters: Any) -> tuple[int, ...]:
    with make_generator(source, lora=adapters) as generator:
        found: tuple[int, ...] = generator.generate(PROMPT, max_new_tokens=16).tokens
    return found


def merged(folder: Path, factors: dict[Path, float]) -> Path:
    """The model with adapters merged into its file."""
    write_texts(folder)
    tensors = load_file(folder / "model.safetensors")
    for path, factor in factors.items():
        parts = load_file(path / "adapter_model.safetensors")
        down, up = (parts[name] for name in sorted(parts))
        module = next(iter(parts)).removeprefix("base_model.model.").partition(".lora_")[0]
        tensors[f"{module}.weight"] += np.float32(factor) * up @ down
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_lora_adapters_match_merged_weights_in_every_source(tmp_path: Path) -> None:
    """Sources are folders, compiled files and commands; caches of other weights are refused."""
    model, file = write_texts(tmp_path / "model"), tmp_path / "prompt.safetensors"
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two", UP)
    expected = tokens(merged(tmp_path / "merged", {one: 1.0, two: -0.5}), ())
    assert tokens(model, [one, (str(two), -0.5)]) == expected
    assert tokens(model, str(one)) != expected
    with make_generator(model) as generator:
        generator.save_cache(file, [7] * 40)
    changed = make_generator(model, lora=one)
    with changed, pytest.raises(ModelError, match="cache of another model"):
        changed.load_cache(file)
    named = ("--lora", str(one), "--lora", f"{two}:-0.5")
    result = CliRunner().invoke(convert, [str(model), "-o", str(tmp_path / "m.clrt"), *named])
    assert result.exit_code == 0, result.output
    assert tokens(tmp_path / "m.clrt", ()) == expected
    (tmp_path / "text").write_text("The quick brown fox")
    command = ["perplexity", str(model), str(tmp_path / "text"), *named]
    result = CliRunner().invoke(app, [*command, "--device", str(quick_device().index)])
    with make_generator(tmp_path / "merged") as generator:
        assert float(result.stdout) == pytest.approx(generator.perplexity("The quick brown fox"))


def fingerprint(model: Path, *adapters: tuple[Path, float]) -> str:
    return read_language_model(model, None, "float32", adapters).fingerprint


def test_lora_adapter_and_factor_change_model_fingerprint(tmp_path: Path) -> None:
    """Also if an adapter leaves the first elements of all weights unchanged."""
    model, rows = write_texts(tmp_path / "model"), TEXTS["tensors"][f"{Q}.weight"]
    up = np.zeros((rows[0], 1), np.float32)
    up[-1] = 1
    last = small_adapter(tmp_path / "last", Q, up, noise("down", (1, rows[1])))
    found = [fingerprint(model), fingerprint(model, (last, 1.0)), fingerprint(model, (last, 0.5))]
    found.append(fingerprint(model, (adapter(tmp_path / "other"), 1.0)))
    assert len(set(found)) == 4
    assert fingerprint(model, (last, 1.0)) == found[1]


def test_invalid_lora_options_are_refused(tmp_path: Path) -> None:
    model = write_texts(tmp_path / "model")
    for wrong, message in (
        (3, "lora is 3; expected a path"),
        ([("x", "y")], "The factor of adapter 'x' is 'y'"),
        ([("x", float("nan"))], "is nan"),
        ([("x", 1, 2)], r"lora is \('x', 1, 2\)"),
    ):
        with pytest.raises(InputError, match=message):
            make_generator(model, lora=wrong)
    with pytest.raises(ModelError, match=r"No adapter '.*nowhere' exists"):
        make_generator(model, lora=tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config.json' is not an adapter; give the folder that"):
        make_generator(model, lora=model / "config.json")
    with pytest.raises(ModelError, match=r"adapter_config.json is missing; download"):
        make_generator(model, lora=model)
    with pytest.raises(ModelError, match="is a LoRA adapter, not a model"):
        make_generator(adapter(tmp_path / "one"))
    result = CliRunner().invoke(app, ["chat", str(model), "--lora", str(tmp_path / "nothing:0.5")])
    assert result.exit_code == 1 and "nothing' exists" in result.stderr


CONFIGS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"peft_type": "IA3"}, UnsupportedError, "'peft_type' as 'IA3'"),
    ({"lora_alpha": float("nan")}, ModelError, "'lora_alpha' as a number, not nan; download the "),
    ({"lora_alpha": float("inf")}, ModelError, "'lora_alpha' as a number, not inf"),
    ({"lora_alpha": "8"}, ModelError, "'lora_alpha' as a number, not '8'"),
    ({"r": 0}, ModelError, "'r' as a whole number of at least 1, not 0"),
    ({"r": 3}, ModelError, r"lora_B.weight' of .* has the shape \[\d+, 2\], and"),
    ({"rank_pattern": {"q_proj": -1}}, ModelError, "'rank_pattern.q_proj' as a whole"),
    ({"rank_pattern": {"q_proj": 5}}, ModelError, "the shape"),
    ({"rank_pattern": [1]}, ModelError, "'rank_pattern' as an object"),
    ({"alpha_pattern": {"(": 1}}, ModelError, r"'alpha_pattern.\(' as a name or a reg"),
    ({"alpha_pattern": {"(a+)+": 1}}, UnsupportedError, "whose search may take long"),
    ({"alpha_pattern": {".*.*.*.*x": 1}}, UnsupportedError, "whose search may take long"),
    ({"alpha_pattern": {"q_proj": None}}, ModelError, "'alpha_pattern.q_proj' as a number"),
    ({"use_dora": True}, ModelError, "no lora_magnitude_vector of 'model.layers.0.self"),
    ({"use_dora": "yes"}, ModelError, "'use_dora' as true or false"),
    ({"use_qalora": True}, UnsupportedError, "has 'use_qalora', which clrt cannot merge"),
    ({"target_parameters": ["x"]}, UnsupportedError, "has 'target_parameters'"),
    ({"layer_replication": [[0, 1]]}, UnsupportedError, "has 'layer_replication'"),
    ({"init_lora_weights": "pissa_niter_4"}, UnsupportedError, "as 'pissa_niter_4', which"),
]


@pytest.mark.parametrize(("settings", "error", "message"), CONFIGS)
def test_invalid_adapter_configs_are_refused(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = adapter(tmp_path / "adapter", **settings)
    with pytest.raises(error, match=message) as caught:
        fingerprint(write_texts(tmp_path / "model"), (path, 1.0))
    assert str(path) in str(caught.value)


A, B = f"base_model.model.{Q}.lora_A.weight", f"base_model.model.{Q}.lora_B.weight"
INFINITE = np.full((2, TEXTS["tensors"][f"{Q}.weight"][1]), np.inf, np.float32)
ONES = np.ones((3, 3), np.float32)
TENSORS: list[tuple[dict[str, Array | None], str]] = [
    ({B: None}, "has '.*lora_A.weight' without the other matrix"),
    ({A: INFINITE}, "has non-finite numbers"),
    ({A: ONES}, r"has the shape \[3, 3\], and .* needs \[2, \d+\]; the adapter is for another"),
    ({"base_model.model.score.weight": ONES}, "'base_model.model.score.weight', which matches"),
    ({"x": ONES, "y": ONES}, "the tensor 'x' and 1 more, which matches no tensor"),
    (
        {A.replace("layers.0", "layers.77"): ONES},
        "layers.77.*which matches no tensor of this model",
    ),
    ({A.replace("lora_A.weight", "lora_diag"): ONES}, "lora_diag', which matches no tensor"),
    ({"base_model.model.lm_head.weight": ONES}, r"has the shape \[3, 3\]"),
    (
        {A.replace("lora_A", "lora_magnitude_vector"): ONES},
        "vector.weight', which matches no tensor",
    ),
]


@pytest.mark.parametrize(("changes", "message"), TENSORS)
def test_invalid_adapter_tensors_are_refused(
    changes: dict[str, Array | None], message: str, tmp_path: Path
) -> None:
    path = adapter(tmp_path / "adapter")
    file = path / "adapter_model.safetensors"
    tensors = {**load_file(file), **changes}
    save_file({name: array for name, array in tensors.items() if array is not None}, file)
    with pytest.raises(ModelError, match=message):
        fingerprint(write_texts(tmp_path / "model"), (path, 1.0))


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_adapter_merge_overflowing_float32_is_refused(factor: float, tmp_path: Path) -> None:
    path = adapter(tmp_path / "adapter", lora_alpha=1e9)
    file = path / "adapter_model.safetensors"
    save_file({k: a * np.float32(1e30) for k, a in load_file(file).items()}, file)
    model = write_texts(tmp_path / "model")
    with pytest.raises(ModelError, match=r"blk.0.attn_q.weight' becomes non-finite by merging"):
        fingerprint(model, (path, factor))


def test_missing_and_damaged_adapter_files_are_refused(tmp_path: Path) -> None:
    model, path = write_texts(tmp_path / "model"), adapter(tmp_path / "adapter")
    file, config = path / "adapter_model.safetensors", path / "adapter_config.json"
    whole = file.read_bytes()
    for raw in (b"", whole[:7], whole[:-1], b"\xff" * 64):
        file.write_bytes(raw)
        with pytest.raises(ModelError, match="is damaged"):
            fingerprint(model, (path, 1.0))
    file.rename(path / "adapter_model.bin")
    with pytest.raises(
        ModelError, match=r"its weights in adapter_model.bin, but clrt reads only safe"
    ):
        fingerprint(model, (path, 1.0))
    (path / "adapter_model.bin").unlink()
    with pytest.raises(ModelError, match=r"adapter_model.safetensors is missing"):
        fingerprint(model, (path, 1.0))
    config.write_text("[" * 100_000)
    with pytest.raises(ModelError, match="is not valid JSON"):
        fingerprint(model, (path, 1.0))


def gguf_model(folder: Path) -> Path:
    """The base of the adapters "llama" with a tokenizer."""
    source = write_folder(folder / "hf", load_json()["llama"])
    return to_gguf(source, folder / "model.gguf", **TOKENS)


def test_gguf_model_loads_peft_and_gguf_adapters(tmp_path: Path) -> None:
    """Loads an adapter of peft and one of llama.cpp, separately and together."""
    model = gguf_model(tmp_path)
    case = GGUF_ADAPTERS["llama"]
    one = write_gguf_adapter(tmp_path / "one.gguf", "llama", case)
    two = write_adapter(tmp_path / "two", "llama", load_adapters()["llama"])
    found = {tokens(model, a) for a in ((), one, two, (one, two), [(one, 0.25), two])}
    assert len(found) == 5
    with pytest.raises(ModelError, match=r"one.gguf is an adapter, not a model"):
        TextGenerator(one)
    with pytest.raises(ModelError, match=r"model.gguf is a model, not an adapter"):
        TextGenerator(model, lora=model)


WRONG_GGUF: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"general_architecture": "qwen2"},
        ModelError,
        "architecture 'qwen2', and .* of the architecture 'l",
    ),
    ({"adapter_type": "control_vector"}, UnsupportedError, "of the type 'control_vector', but"),
    ({"adapter_alora.invocation_tokens": "x"}, UnsupportedError, "of the type 'alora', but"),
]


@pytest.mark.parametrize(("changes", "error", "message"), WRONG_GGUF)
def test_invalid_gguf_adapters_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    case = GGUF_ADAPTERS["llama"]
    path = write_gguf_adapter(tmp_path / "a.gguf", "llama", case, **changes)
    with pytest.raises(error, match=message):
        fingerprint(gguf_model(tmp_path), (path, 1.0))


def test_invalid_gguf_adapter_tensors_are_refused(tmp_path: Path) -> None:
    model, case = gguf_model(tmp_path), GGUF_ADAPTERS["llama"]
    for shapes, alpha, message in (
        ({"blk.0.attn_q.weight": (48, 48)}, 1.0, r"the shape \[48, 4\], and .* needs \[96, 4\]"),
        ({"blk.9.attn_q.weight": (96, 48)}, 1.0, "'blk.9.attn_q.weight.lora_a' and 1 more, which"),
        ({"blk.0.attn_q.weight": (96, 48)}, float("nan"), "'adapter.lora.alpha' of .* is nan"),
    ):
        wrong = case._replace(shapes=shapes, alpha=alpha)
        path = write_gguf_adapter(tmp_path / "a.gguf", "llama", wrong)
        with pytest.raises(ModelError, match=message):
            fingerprint(model, (path, 1.0))


def test_compiled_and_onnx_models_refuse_adapters(tmp_path: Path) -> None:
    """The errors of compiled models and ONNX files name the remedy."""
    model, path = write_texts(tmp_path / "model"), adapter(tmp_path / "adapter")
    result = CliRunner().invoke(convert, [str(model), "-o", str(tmp_path / "m.clrt")])
    assert result.exit_code == 0, result.output
    with pytest.raises(
        UnsupportedError, match="is compiled, and compiled weights do not support adapters"
    ):
        make_generator(tmp_path / "m.clrt", lora=path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"")
    (tmp_path / "onnx" / "genai_config.json").write_text(json.dumps({"model": {}}))
    with pytest.raises(UnsupportedError, match="is an ONNX file, which does not support adapters"):
        make_generator(tmp_path / "onnx" / "model.onnx", lora=path)
    result = CliRunner().invoke(convert, [str(tmp_path / "onnx/model.onnx"), "--lora", str(path)])
    assert result.exit_code == 1 and "--lora is for language models" in result.output
