"""Prefix cache: common prompt prefixes are computed once, also across processes by a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import clrt
from clrt.generation.model_reader import read_language_model
from clrt.generation.text_generator import TextGenerator
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from tests.generation.checkpoints import load_json, write_folder
from tests.generation.text_folders import computed, make_generator, pages_in_use, write_texts

SYSTEM = [(13 * k) % 450 for k in range(5 * PAGE_TOKENS + 7)]


def test_prompt_prefix_is_computed_once_across_calls(endless: TextGenerator) -> None:
    first = endless.generate([*SYSTEM, 5], max_new_tokens=4)
    before = computed(endless)
    second = endless.generate([*SYSTEM, 6], max_new_tokens=4)
    assert computed(endless) - before == len(SYSTEM) + 1 - 5 * PAGE_TOKENS + 3
    assert second.timings is not None and second.timings.prompt_tokens == 8
    endless._scheduler.engine.reset()
    assert endless.generate([*SYSTEM, 6], max_new_tokens=4) == second != first


def test_prompt_prefix_is_computed_once_within_call(endless: TextGenerator) -> None:
    engine = endless._scheduler.engine
    engine.reset()
    before = computed(endless)
    drawn = endless.generate(
        [SYSTEM, [*SYSTEM[: 2 * PAGE_TOKENS], 5]],
        num_return_sequences=3,
        temperature=1.0,
        max_new_tokens=2,
    )
    assert len(drawn) == 6
    assert computed(endless) - before == len(SYSTEM) + 2 * (len(SYSTEM) - 5 * PAGE_TOKENS) + 3 + 6


@pytest.mark.parametrize("cache", ["float32", "float16", "int8"])
def test_saved_prompt_cache_is_reused_after_load(cache: str, tmp_path: Path) -> None:
    folder, file = write_texts(tmp_path / "model"), tmp_path / "system.safetensors"
    with make_generator(folder, cache=cache) as generator:
        assert generator.save_cache(file, SYSTEM) == 5 * PAGE_TOKENS
        expected = generator.generate([*SYSTEM, 5], max_new_tokens=8)
        assert pages_in_use(generator) == 0
    with make_generator(folder, cache=cache) as generator:
        for _ in range(2):
            assert generator.load_cache(file) == 5 * PAGE_TOKENS
        found = generator.generate([*SYSTEM, 5], max_new_tokens=8)
        assert computed(generator) == len(SYSTEM) + 1 - 5 * PAGE_TOKENS + 7
        assert found == expected and pages_in_use(generator) == 0


def test_prompt_cache_of_other_model_or_dtype_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "system.safetensors"
    folder = write_texts(tmp_path / "model")
    with make_generator(folder) as generator:
        generator.save_cache(file, SYSTEM)
    other = write_texts(tmp_path / "other")
    case = load_json()["qwen2"]
    case["config"]["vocab_size"] = 450
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        case["tensors"][name][0] = 450
    write_folder(other, case)
    with make_generator(other) as generator, pytest.raises(clrt.ModelError, match="another model"):
        generator.load_cache(file)
    with (
        make_generator(folder, cache="float16") as generator,
        pytest.raises(clrt.ModelError, match="another `cache` dtype"),
    ):
        generator.load_cache(file)


def test_weights_change_model_fingerprint(tmp_path: Path) -> None:
    folder, other = (write_texts(tmp_path / name) for name in ("one", "other"))
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 3] += 1
    save_file(tensors, other / "model.safetensors")
    prints = [read_language_model(x, None, "float32").fingerprint for x in (folder, folder, other)]
    assert prints[0] == prints[1] != prints[2]


def test_invalid_prompt_cache_files_are_refused(endless: TextGenerator, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    with pytest.raises(clrt.InputError, match="3 tokens, and a cache holds pages of 32"):
        endless.save_cache(file, [1, 2, 3])
    with pytest.raises(clrt.InputError, match="cannot be written"):
        endless.save_cache(tmp_path / "no" / "x", SYSTEM)
    with pytest.raises(clrt.ModelError, match="cannot be read"):
        endless.load_cache(file)
    endless.save_cache(file, SYSTEM)
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(clrt.ModelError, match="is damaged"):
        endless.load_cache(file)
    write_texts(tmp_path / "model")
    with pytest.raises(clrt.ModelError, match="is not a prompt cache"):
        endless.load_cache(tmp_path / "model" / "model.safetensors")
    assert pages_in_use(endless) == 0
