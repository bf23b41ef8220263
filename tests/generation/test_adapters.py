"""LoRA adapters merged at load, against logits of peft and llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import clrt
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.formats.gguf.encode import pack_q8_0
from clrt.formats.gguf.file import read_gguf
from clrt.models.decoders.adapters.base import adapted_folder, adapted_gguf
from clrt.models.decoders.adapters.merged_weights import AdaptedWeights, open_adapter
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.families import ARCHITECTURES, FAMILIES
from clrt.models.decoders.gguf import read_gguf_decoder
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.huggingface import read_folder
from clrt.models.decoders.weight_source import QuantizedMatrix
from tests.generation.adapter_folders import (
    load_adapters,
    small_adapter,
    write_adapter,
    write_gguf_adapter,
)
from tests.generation.checkpoints import DATA, Array, load_json, noise, write_folder
from tests.generation.gguf_decoders import CASES as GGUF_CASES
from tests.generation.gguf_decoders import CHANGES, PLACES, QUANTISED, case_file
from tests.generation.oracle_adapters import ADAPTERS, ADDED, GGUF_ADAPTERS
from tests.generation.oracle_decoders import COLUMNS, LENGTHS
from tests.generation.test_gguf_decoders import LARGEST, ROUNDED
from tests.generation.test_token_decoders import TOLERANCE, Run
from tests.harness import quick_device

CASES = load_adapters()
LOGITS = np.load(DATA / "adapters.npz")
LLAMA_CPP = np.load(DATA / "llama_cpp_adapters.npz")
Named = Sequence[tuple[Path, float]]


def opened(model: Path, adapters: Named) -> tuple[DecoderConfig, AdaptedWeights]:
    """A model with adapters."""
    if model.suffix == ".gguf":
        file = read_gguf(model)
        decoder, weights = read_gguf_decoder(file)
        adapted = adapted_gguf(file, decoder)
        return decoder, AdaptedWeights(
            weights, [(f, open_adapter(p, adapted)) for p, f in adapters]
        )
    decoder, source = read_folder(model)
    adapted = adapted_folder(model, decoder)
    return decoder, AdaptedWeights(source, [(f, open_adapter(p, adapted)) for p, f in adapters])


def answer(model: Path, adapters: Named, text: int = 1) -> Array:
    """The logits of a text."""
    decoder, source = opened(model, adapters)
    run = Run(decoder, clrt.load(decoder_graph(decoder, source), device=quick_device()))
    source.check_all_used()
    return run.step({text: range(LENGTHS[text])})[text]


def model_of(name: str, folder: Path) -> Path:
    """The model folder of an adapter of `ADAPTERS`."""
    return write_folder(folder / "model", load_json()[ADAPTERS[name].base])


def adapter_of(name: str, folder: Path) -> Path:
    """The folder of an adapter of `ADAPTERS`."""
    return write_adapter(folder / name, name, CASES[name])


def assert_near(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_adapter_logits_match_peft(name: str, tmp_path: Path) -> None:
    found = answer(model_of(name, tmp_path), [(adapter_of(name, tmp_path), 1.0)])
    assert_near(found[:, COLUMNS], LOGITS[name])


def test_sum_of_adapters_matches_peft(tmp_path: Path) -> None:
    first, factors = ADDED
    adapters = [(adapter_of(name, tmp_path), factor) for name, factor in factors.items()]
    assert_near(answer(model_of(first, tmp_path), adapters)[:, COLUMNS], LOGITS["added"])


@pytest.mark.parametrize("name", ["llama", "gemma", "dora", "tied", "gpt2_dora"])
def test_adapter_with_factor_zero_leaves_model_unchanged(name: str, tmp_path: Path) -> None:
    """Covers adapters that replace tensors or rescale rows (DoRA)."""
    model = model_of(name, tmp_path)
    adapter = adapter_of(name, tmp_path)
    assert_near(answer(model, [(adapter, 0.0)]), answer(model, []))
    halves = answer(model, [(adapter, 0.5), (adapter, 0.5)])
    assert_near(halves[:, COLUMNS], LOGITS[name])


#: Adapters of models whose files say all that llama.cpp needs.
ON_GGUF = [n for n, case in ADAPTERS.items() if case.base in GGUF_CASES.keys() - CHANGES.keys()]


@pytest.mark.parametrize("name", ON_GGUF)
def test_peft_adapter_on_gguf_model_matches_peft(name: str, tmp_path: Path) -> None:
    """Rows of rotary heads are permuted in GGUF files."""
    model = case_file(ADAPTERS[name].base, tmp_path)
    found = answer(model, [(adapter_of(name, tmp_path), 1.0)])
    assert_near(found[:, COLUMNS], LOGITS[name])


def test_adapter_of_norm_scales_on_gguf_matches_folder(tmp_path: Path) -> None:
    """GGUF files store Gemma's norm scales plus 1."""
    model, adapter = case_file("gemma", tmp_path), adapter_of("gemma", tmp_path)
    found = answer(model, [(adapter, 1.0)])
    assert_near(found, answer(tmp_path / "hf", [(adapter, 1.0)]))
    assert np.abs(found - answer(model, [])).std() > 0.1


@pytest.mark.parametrize("name", GGUF_ADAPTERS)
def test_gguf_adapter_logits_match_llama_cpp(name: str, tmp_path: Path) -> None:
    case = GGUF_ADAPTERS[name]
    model = case_file(case.base, tmp_path)
    architecture = read_gguf(model).metadata.text("general.architecture")
    adapters = [(write_gguf_adapter(tmp_path / "a.gguf", architecture, case), case.factor)]
    found, expected = answer(model, adapters, 0)[PLACES], LLAMA_CPP[name]
    if case.base in QUANTISED:
        error, spread = found - expected, expected.std()
        assert error.std() < 2**0.5 * ROUNDED * spread
        assert np.abs(error).max() < LARGEST * 2**0.5 * ROUNDED * spread
        return
    places = 3 if case.base == "phi3" else None  # llama.cpp has no window there
    assert_near(found[:places], expected[:places])
    # The folder that the file was made of, whose rows lie otherwise.
    assert_near(answer(tmp_path / "hf", adapters, 0)[PLACES], found)


def test_adapter_of_one_expert_module_matches_merged_weights(tmp_path: Path) -> None:
    """Only some experts have an adapter, as transformers before version 5 saved them."""
    case = load_json()["mixtral"]
    module = "layers.1.block_sparse_moe.experts.2.w1"
    shape = tuple(case["tensors"][f"model.{module}.weight"])
    model = write_folder(tmp_path / "model", case)
    down, up = noise("down", (3, shape[1])), noise("up", (shape[0], 3))
    adapter = small_adapter(tmp_path / "adapter", f"model.{module}", up, down, lora_alpha=12)
    tensors = load_file(model / "model.safetensors")
    tensors[f"model.{module}.weight"] += 4 * up @ down
    merged = write_folder(tmp_path / "merged", case)
    save_file(tensors, merged / "model.safetensors")
    assert_near(answer(model, [(adapter, 1.0)]), answer(merged, []))


Q = "model.layers.0.self_attn.q_proj"


def test_bfloat16_weights_with_adapter_become_float16(tmp_path: Path) -> None:
    """Also in stacked matrices; float32 if an element exceeds the range of float16."""
    model = write_folder(tmp_path / "model", load_json()["llama_bf16"])
    down, up = noise("down", (2, 48)), noise("up", (48, 2)) * np.float32(1e-3)
    adapter = small_adapter(tmp_path / "adapter", Q, up, down)
    _, source = opened(model, [(adapter, 1.0)])
    found = np.asarray(source.matrix("blk.0.attn_q.weight", 48, 48))
    base = load_file(model / "model.safetensors")[f"{Q}.weight"].astype(np.float32)
    assert found.dtype == np.float16
    exact = base + up @ down
    assert np.abs(found - exact).max() <= np.spacing(np.float16(np.abs(exact).max())) / 2
    rounded = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.abs(found - exact).mean() < np.abs(rounded - exact).mean() / 4
    decoder, source = opened(model, [(adapter, 1.0)])
    graph = decoder_graph(decoder, source)
    dtypes = {v.name: v.dtype.name for v in graph.constants() if len(v.dims) > 1}
    assert dtypes["blk.0.attn_qkv.weight"] == "FLOAT16"
    assert dtypes["blk.1.attn_qkv.weight"] == "BFLOAT16"
    adapter = small_adapter(tmp_path / "adapter", Q, up * np.float32(1e9), down)
    _, source = opened(model, [(adapter, 1.0)])
    assert np.asarray(source.matrix("blk.0.attn_q.weight", 48, 48)).dtype == np.float32


def test_quantized_matrices_with_adapter_become_q8_0(tmp_path: Path) -> None:
    """Matrices without an adapter keep their type."""
    case, model = GGUF_ADAPTERS["Q4_0"], case_file("Q4_0", tmp_path)
    adapter = write_gguf_adapter(tmp_path / "a.gguf", "llama", case)
    _, source = opened(model, [(adapter, 1.0)])
    _, plain = opened(model, [])
    changed, kept = (source.matrix(f"blk.0.attn_{n}.weight", 256, 256) for n in "qk")
    assert isinstance(changed, QuantizedMatrix) and changed.type == "Q8_0"
    assert isinstance(kept, QuantizedMatrix) and kept.type == "Q4_0"
    before = plain.matrix("blk.0.attn_q.weight", 256, 256)
    assert isinstance(before, QuantizedMatrix)
    tensors = read_gguf(adapter).tensors
    up, down = (tensors[f"blk.0.attn_q.weight.lora_{n}"].dequantise() for n in "ba")
    exact = BLOCK_TYPES_BY_NAME["Q4_0"].dequantise(before.raw) + 1.5 * up @ down
    error = BLOCK_TYPES_BY_NAME["Q8_0"].dequantise(changed.raw) - exact
    assert error.std() < 0.007 * exact.std()


def test_q8_0_packing_matches_llama_cpp() -> None:
    rows = np.random.default_rng(1).standard_normal((7, 96), np.float32)
    rows[2, 32:64] = 0
    expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(pack_q8_0(rows), expected)


def test_every_gguf_architecture_has_adapter_family() -> None:
    for name in ARCHITECTURES:
        model = type("Model", (), {"family": name, "experts": None})()
        file = type("File", (), {"tensors": {}, "path": Path(name)})()
        assert adapted_gguf(file, model).family in FAMILIES.values()
