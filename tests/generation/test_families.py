"""Decoder families: each entry describes how to read its model folders and GGUF files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.formats.gguf.file import read_gguf
from clrt.models.decoders import families
from clrt.models.decoders import family_options as by
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.decoder_family import DecoderFamily, GgufForm
from clrt.models.decoders.families import ARCHITECTURES, FAMILIES
from clrt.models.decoders.gguf import read_gguf_decoder
from clrt.models.decoders.graph import decoder_graph
from clrt.models.decoders.huggingface import read_folder
from tests.generation.checkpoints import write_folder
from tests.generation.gguf_decoders import CASES, case_file, convert

# Fields that differ by design: names, scales stored minus 1, the pairing of rows that the converter
# permutes, and sizes and windows that no layer uses.
APART = ("family", "norm_shift", "activation", "epsilon", "rotaries", "intermediate", "windows")
# GGUF files do not tell which layers of SmolLM3 have RoPE, nor that gpt-oss does not truncate YaRN.
OTHER_ROTARY = ("smollm3", "gpt_oss")


def shared_fields(decoder: DecoderConfig) -> dict[str, Any]:
    """The fields that both formats tell, with floats rounded to the float32 of GGUF files."""
    fields = {name: value for name, value in asdict(decoder).items() if name not in APART}
    fields |= {"scale": decoder.score_scale}
    return {n: float(np.float32(v)) if isinstance(v, float) else v for n, v in fields.items()}


def test_one_family_per_architecture() -> None:
    forms = [f.gguf for f in FAMILIES.values() if isinstance(f.gguf, GgufForm)]
    assert len(forms) == len(ARCHITECTURES)
    assert {f.architecture for f in FAMILIES.values()} <= {*ARCHITECTURES, ""}


@pytest.mark.parametrize("name", CASES)
def test_folder_and_gguf_file_give_same_configuration(name: str, tmp_path: Path) -> None:
    from_gguf, _ = read_gguf_decoder(read_gguf(case_file(name, tmp_path)))
    from_folder, _ = read_folder(tmp_path / "hf")
    assert shared_fields(from_gguf) == shared_fields(from_folder)
    assert from_gguf.epsilon == pytest.approx(from_folder.epsilon, rel=1e-6)
    for layer in range(from_folder.layers if name not in OTHER_ROTARY else 0):
        one, two = from_gguf.rotary_of(layer), from_folder.rotary_of(layer)
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            np.testing.assert_allclose(one.frequencies, two.frequencies, rtol=1e-5)


def test_decoder_family_entry_adds_folder_and_gguf_support(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family with norms of heads and soft limits is read from a folder and from a GGUF file."""
    form = GgufForm("new-arch")
    family = DecoderFamily(fields={"qk_norm": "head"}, options=(by.softcaps,), gguf=form)
    monkeypatch.setitem(families.FAMILIES, "new", family)
    monkeypatch.setitem(families.ARCHITECTURES, "new-arch", (family, form))
    case = CASES["qwen3"]
    caps = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
    config = {**case["config"], "model_type": "new", **caps}
    folder = write_folder(tmp_path / "hf", {**case, "config": config})
    file = read_gguf(convert(folder, tmp_path / "new.gguf"))
    for decoder, source in (read_folder(folder), read_gguf_decoder(file)):
        assert (decoder.qk_norm, decoder.softcap, decoder.final_softcap) == ("head", 2.0, 3.0)
        decoder_graph(decoder, source)
    assert shared_fields(read_gguf_decoder(file)[0]) == shared_fields(read_folder(folder)[0])
