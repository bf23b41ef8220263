"""GGUF files as models: invalid files, folders, and text generation."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.formats.gguf.file import GgufFile, read_gguf
from clrt.formats.gguf.metadata import Metadata
from clrt.generation.model_reader import read_language_model
from clrt.generation.options import Sampling
from clrt.generation.text_generator import TextGenerator
from clrt.models.decoders.families import ARCHITECTURES
from clrt.models.decoders.gguf import read_gguf_decoder
from clrt.models.decoders.graph import decoder_graph
from tests.generation.checkpoints import Array, write_folder
from tests.generation.gguf_decoders import CASES, case_file, convert
from tests.generation.oracle_decoders import VOCABULARY
from tests.harness import quick_device

ONES = np.ones((4, 4), np.float32)
TOKENS: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["<s>", "</s>", *(chr(97 + k) for k in range(26)), *"ĠABCDEFG", "ĠA"],
    "tokenizer.ggml.token_type": [3, 3, *[1] * (VOCABULARY - 2)],
    "tokenizer.ggml.merges": ["Ġ A"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}",
}

MANY = [*TOKENS["tokenizer.ggml.tokens"], "x1", "x2", "x3"]
UNTYPED: dict[str, Any] = {"tokenizer.ggml.token_type": None}


def build(file: Path, context: int | None = None) -> None:
    """All that is looked at before a device is."""
    decoder, source = read_gguf_decoder(read_gguf(file), context)
    decoder_graph(decoder, source)
    source.check_all_read()


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("llama", {"block_count": None}, ModelError, "has no metadata 'llama.block_count'"),
    ("llama", {"block_count": "2"}, ModelError, "'llama.block_count' of .* is a text and not"),
    ("llama", {"block_count": 0}, ModelError, "'llama.block_count' of .* is 0 and not a whole"),
    (
        "llama",
        {"block_count": 10**6},
        ModelError,
        "is 1000000 and not a whole number of 1 to 10000",
    ),
    ("llama", {"block_count": 3}, ModelError, "has no tensor 'blk.2.attn_k.bias', which its"),
    ("llama", {"block_count": 1}, UnsupportedError, "tensor 'blk.1.attn_k.bias' and 15 more"),
    ("llama", {"embedding_length": 2**31 - 1}, ModelError, "'token_embd.weight' of .* the shape"),
    ("llama", {"attention.head_count_kv": 4}, ModelError, "is 4 and not a divisor of 6 heads"),
    ("llama", {"attention.head_count": [6, 3]}, ModelError, "not one number for all 2 layers"),
    ("llama", {"attention.head_count": [6.0, 6.0]}, ModelError, "is 6.0 and not a whole number"),
    ("llama", {"attention.head_count": 12}, ModelError, "'blk.0.attn_q.weight' of .* the shape"),
    ("llama", {"attention.key_length": 1024}, UnsupportedError, "heads of 1024 elements"),
    ("llama", {"attention.value_length": 8}, ModelError, "is 8 and not the 16 of keys"),
    (
        "gpt2",
        {"attention.key_length": None, "embedding_length": 49},
        ModelError,
        "divisor of embed",
    ),
    (
        "llama",
        {"feed_forward_length": 81},
        ModelError,
        r"'blk.0.ffn_gate.weight' .* \[80, 48\], but",
    ),
    ("llama", {"attention.layer_norm_rms_epsilon": float("nan")}, ModelError, "nan and not a num"),
    ("llama", {"rope.dimension_count": 15}, ModelError, "is 15 and not an even number"),
    ("llama", {"rope.dimension_count": 18}, ModelError, "whole number of 2 to 16"),
    ("llama", {"rope.freq_base": 0.0}, ModelError, "'llama.rope.freq_base' of .* is 0"),
    (
        "llama",
        {"rope.scaling.type": "x"},
        UnsupportedError,
        "'llama.rope.scaling.type' of .* is 'x'",
    ),
    (
        "llama",
        {"rope.scaling.type": "longrope"},
        ModelError,
        "no tensor 'rope_factors_long.weight'",
    ),
    ("llama3", {"rope_freqs.weight": np.zeros(8, np.float32)}, ModelError, "not numbers above 0"),
    ("llama3", {"rope_freqs.weight": np.ones(7, np.float32)}, ModelError, r"the shape \[7\], but"),
    ("phi3_long", {"rope_factors_short.weight": None}, ModelError, "'rope_factors_short.weight'"),
    ("qwen3", {"rope.scaling.factor": 1e-30}, ModelError, "'qwen3.rope.scaling.factor' of"),
    ("gemma3_text", {"attention.sliding_window_pattern": [True]}, ModelError, "not an array of 4"),
    ("mixtral", {"expert_used_count": 5}, ModelError, "'llama.expert_used_count' of .* is 5"),
    ("mixtral", {"expert_count": 2**30}, ModelError, "'llama.expert_count' of .* is 1073741824"),
    ("mixtral", {"expert_count": 6}, ModelError, "'blk.0.ffn_gate_inp.weight' of .* the shape"),
    ("granite", {"logit_scale": 0.0}, ModelError, "'granite.logit_scale' of .* is 0"),
    ("gpt2", {"context_length": 2**20}, ModelError, "'position_embd.weight' of .* the shape"),
    ("llama", {"context_length": 2**30}, ModelError, "'llama.context_length' of .* 1073741824 and"),
    ("llama", {"token_embd.weight": None}, ModelError, "has no tensor 'token_embd.weight'"),
    (
        "llama",
        {"token_embd.weight": np.ones(4, np.float32)},
        ModelError,
        "has no matrix 'token_embd",
    ),
    ("llama", {"blk.0.ffn_norm.weight": None}, ModelError, "has no tensor 'blk.0.ffn_norm.weight'"),
    (
        "llama",
        {"blk.1.ffn_norm.weight": None},
        ModelError,
        "'blk.1.ffn_norm.weight', which its lay",
    ),
    ("llama", {"output_norm.weight": None}, ModelError, "has no tensor 'output_norm.weight'"),
    ("olmo2", {"blk.0.post_ffw_norm.weight": None}, ModelError, "tensor 'blk.0.post_ffw_norm.wei"),
    ("llama", {"blk.1.ffn_down.weight": None}, ModelError, "has no tensor 'blk.1.ffn_down.weight'"),
    ("llama", {"blk.1.ffn_down.weight": ONES}, ModelError, r"the shape \[4, 4\], but the metadata"),
    ("llama", {"dense_2.weight": ONES}, UnsupportedError, "the tensor 'dense_2.weight', which"),
    ("gpt_neox", {"output.weight": None}, ModelError, "has no tensor 'output.weight'"),
    (
        "llama",
        {"output_norm.weight": np.ones(48, np.int32)},
        ModelError,
        "the type I32, and weights",
    ),
]


def as_given(name: str, array: Array) -> tuple[Array, None]:
    """Whole numbers stay what they are."""
    whole = array.dtype == np.int32
    return array if whole else np.ascontiguousarray(array, np.float32), None


@pytest.mark.parametrize("name, changes, error, message", WRONG)
def test_invalid_gguf_decoders_are_refused(
    name: str, changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "hf", CASES[name])
    file = convert(folder, tmp_path / "model.gguf", as_given, **changes)
    with pytest.raises(error, match=message) as caught:
        build(file)
    assert type(caught.value) is error and str(file) in str(caught.value)


def with_values(file: GgufFile, **changes: Any) -> GgufFile:
    """The file with other metadata; None takes some out."""
    values = {**{k: file.metadata[k] for k in file.metadata}, **changes}
    values = {k: v for k, v in values.items() if v is not None}
    metadata = Metadata(file.path, memoryview(b""), dict.fromkeys(values))  # type: ignore[arg-type]
    metadata._values = values
    return replace(file, metadata=metadata)


def test_unknown_gguf_architecture_is_refused(tmp_path: Path) -> None:
    file = read_gguf(case_file("llama", tmp_path))
    with pytest.raises(UnsupportedError, match=r"has the architecture 'mamba'") as caught:
        read_gguf_decoder(with_values(file, **{"general.architecture": "mamba"}))
    assert all(name in str(caught.value) for name in ARCHITECTURES)


_INTS = np.array([1, 2])
JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    2**40,
    2**64 - 1,
    1e308,
    float("nan"),
    "x",
    ("a",),
)


@pytest.mark.parametrize(
    "name", ["gemma3_text", "granite", "mpt", "phi3_long", "qwen2_moe", "qwen3"]
)
def test_junk_gguf_metadata_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """Any metadata value is accepted, or refused with an error that names the file."""
    file = read_gguf(case_file(name, tmp_path))
    for key in file.metadata:
        for value in (*JUNK, _INTS, _INTS[:0], _INTS * 0.3):
            try:
                read_gguf_decoder(with_values(file, **{key: value}))
            except (ModelError, UnsupportedError) as error:
                assert str(file.path) in str(error)


def write_model(file: Path, **changes: Any) -> Path:
    """A model with a tokenizer."""
    folder = write_folder(file.parent / "hf", CASES["llama3"])
    convert(folder, file, **{**TOKENS, **changes})
    shutil.rmtree(folder)
    return file


def test_gguf_metadata_sets_context_template_and_sampling(tmp_path: Path) -> None:
    wishes = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    model = read_language_model(write_model(tmp_path / "m.gguf", **wishes), None, "float16")
    assert (model.context, model.vocabulary, model.ends) == (128, VOCABULARY, frozenset({1}))
    assert model.chat_template.source == "{{ bos_token }}{{ messages[0].content }}"
    assert model.chat_template.render([{"role": "user", "content": "b"}]) == "<s>b"
    assert model.sampling == Sampling(temperature=0.5, top_k=7)
    assert model.tokenizer.encode("ab A").ids == [0, 2, 3, 36]


def test_gguf_folder_with_several_models_is_refused(tmp_path: Path) -> None:
    """A projector file (mmproj) beside the model is ignored."""
    file = write_model(tmp_path / "m.gguf")
    shutil.copy(file, tmp_path / "mmproj-m.gguf")
    assert read_language_model(tmp_path, None, "float32").context == 128
    shutil.copy(file, tmp_path / "other.gguf")
    with pytest.raises(InputError, match=r"holds 2 GGUF models \(m.gguf, other.gguf\)"):
        read_language_model(tmp_path, None, "float32")
    for missing in (tmp_path / "x.gguf", tmp_path / "hf"):
        with pytest.raises(ModelError, match=re.escape(str(missing))):
            read_language_model(missing, None, "float32")


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"tokenizer.ggml.tokens": ["a"] * 3}, ModelError, "vocabulary"),
        ({"tokenizer.ggml.tokens": MANY, **UNTYPED}, ModelError, "40 tokens and embeddings of 37"),
        ({"tokenizer.ggml.model": "none"}, UnsupportedError, "the kind 'none'"),
        ({"general.sampling.temp": -1.0}, ModelError, "temperature is -1.0"),
        ({"general.sampling.top_k": "x"}, ModelError, "top_k is 'x'"),
    ],
)
def test_invalid_gguf_language_models_are_refused(
    changes: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    file = write_model(tmp_path / "m.gguf", **changes)
    with pytest.raises(error, match=message) as caught:
        read_language_model(file, None, "float32")
    assert str(file) in str(caught.value)


def test_gguf_context_beyond_position_table_is_refused(tmp_path: Path) -> None:
    """The position embedding table limits the context."""
    folder = write_folder(tmp_path / "hf", CASES["gpt2"])
    file = convert(folder, tmp_path / "m.gguf", **TOKENS)
    assert read_language_model(file, 32, "float32").context == 32
    for context, message in (
        (0, "expected a whole number"),
        (97, "the model has positions 1 to 96"),
    ):
        with pytest.raises(InputError, match=f"context is {context}; {message}"):
            read_language_model(file, context, "float32")


def test_gguf_generation_from_text_equals_that_from_its_tokens(tmp_path: Path) -> None:
    generator = TextGenerator(write_model(tmp_path / "m.gguf"), device=quick_device())
    text = generator.generate("abc", max_new_tokens=6)
    assert text == generator.generate([0, 2, 3, 4], max_new_tokens=6) and text
