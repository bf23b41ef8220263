"""Compiled language models: equal texts, and refused options and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from clrt.cli.convert import app
from clrt.errors import InputError, ModelError
from clrt.formats import checksum as digest
from clrt.generation.compiled import is_compiled_language_model
from tests.generation.onnx_folders import load_configs, write_onnx
from tests.generation.text_folders import (
    make_generator,
    pages_in_use,
    random_prompts,
    write_texts,
)
from tests.generation.tokenizers_of_tests import byte_level

CASES = sorted(load_configs())


def compiled(source: Path, target: Path) -> Path:
    result = CliRunner().invoke(app, [str(source), "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert "layers" in result.output
    return target


def test_compiled_language_model_matches_folder(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "model")
    file = compiled(folder, tmp_path / "model.clrt")
    assert is_compiled_language_model(file)
    prompts = random_prompts(3, 40)
    options = {"max_new_tokens": 24}
    with make_generator(folder) as whole, make_generator(file) as other:
        expected = [a.tokens for a in whole.generate(prompts, **options)]
        assert [a.tokens for a in other.generate(prompts, **options)] == expected


@pytest.mark.parametrize("case", CASES)
def test_compiled_onnx_language_model_matches_folder(case: str, tmp_path: Path) -> None:
    folder = write_onnx(tmp_path / "model", case)
    byte_level().save(str(folder / "tokenizer.json"))
    file = compiled(folder, tmp_path / "model.clrt")
    options = {"max_new_tokens": 12, "temperature": 0.0, "logit_bias": {2: -1e9}}
    with make_generator(folder) as whole, make_generator(file) as other:
        expected = whole.generate([[3, 5, 7, 11, 13, 17], [9]], **options)
        found = other.generate([[3, 5, 7, 11, 13, 17], [9]], **options)
    assert [a.tokens for a in found] == [a.tokens for a in expected]


def test_compiling_onnx_file_of_decoder_gives_no_language_model(tmp_path: Path) -> None:
    folder = write_onnx(tmp_path / "model", "torch_gpt2")
    target = tmp_path / "model.clrt"
    result = CliRunner().invoke(app, [str(folder / "model.onnx"), "-o", str(target)])
    assert result.exit_code == 0, result.output
    assert not is_compiled_language_model(target)


def test_compiled_language_model_refuses_unfit_options(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "model")
    file = compiled(folder, tmp_path / "model.clrt")
    with pytest.raises(InputError, match="has a cache of float32"):
        make_generator(file, cache="float16")
    result = CliRunner().invoke(app, [str(folder), "--verify"])
    assert result.exit_code == 1 and "does not support --verify" in result.output
    other = tmp_path / "other.clrt"
    other.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(ModelError):
        make_generator(other)


def test_large_compiled_model_is_checksummed_in_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_MAX_SYNCHRONOUS_BYTES", 0)
    file = compiled(write_texts(tmp_path / "model"), tmp_path / "model.clrt")
    with make_generator(file) as whole:
        assert whole.generate([5, 6], max_new_tokens=2).tokens
    data = bytearray(file.read_bytes())
    data[-9] ^= 1  # within the weights
    file.write_bytes(data)
    with make_generator(file) as damaged:
        for _ in range(2):
            with pytest.raises(ModelError, match="its checksum is wrong"):
                damaged.generate([5, 6], max_new_tokens=2)
        assert pages_in_use(damaged) == 0
