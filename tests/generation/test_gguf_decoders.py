"""Decoders of GGUF files: the logits of the Hugging Face folders that they are made of."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.container.gguf import read_gguf
from clrt.importer.language.gguf import read_gguf_decoder
from clrt.importer.language.graph import decoder_graph
from tests.generation.checkpoints import Array, write_folder
from tests.generation.gguf_decoders import convert
from tests.generation.oracle_decoders import LENGTHS
from tests.generation.test_decoders import CASES, LOGITS, TOLERANCE, Run
from tests.harness import quick_device

# Decoders that llama.cpp's files cannot describe: windows of Qwen 2, Mistral, StarCoder 2 and
# Mixtral, a choice of layers that turn, Falcon's slopes, layers of Qwen's mixture without experts.
# Those with a change are as files have them.
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "starcoder2": {"sliding_window": None},
    "smollm3": {"no_rope_layer_interval": 4, "use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 16},
}
WITHOUT = ("cohere", "falcon_alibi")
EXACT = [name for name in CASES if name not in (*CHANGES, *WITHOUT)]


def case_of(name: str) -> dict[str, Any]:
    """A case with what its file can say."""
    case = copy.deepcopy(CASES[name])
    case["config"] |= CHANGES.get(name, {})
    return case


def all_logits(decoder: Any, source: Any) -> list[Array]:
    """Of both texts, at once."""
    run = Run(decoder, clrt.load(decoder_graph(decoder, source), device=quick_device()))
    found = run.step({text: range(length) for text, length in enumerate(LENGTHS)})
    return [found[text] for text in range(len(LENGTHS))]


@pytest.mark.parametrize("name", EXACT)
def test_logits_of_files(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder", case_of(name))
    file = read_gguf(convert(folder, tmp_path / "model.gguf"))
    decoder, source = read_gguf_decoder(file)
    for text, logits in enumerate(all_logits(decoder, source)):
        np.testing.assert_allclose(logits, LOGITS[f"{name}/{text}"], atol=TOLERANCE, rtol=0)
    source.check_all_read()
