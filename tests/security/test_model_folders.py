"""Model folders with pipes, devices, huge files or links, and invalid paths."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clrt
from clrt.audio import Features
from clrt.audio.ctc import CtcVocabulary
from clrt.errors import ModelError
from clrt.generation.chat_template import ChatTemplate
from clrt.generation.model_reader import read_tokenizer
from clrt.generation.options import Sampling, eos_tokens
from clrt.models.decoders.adapters.peft_config import PeftConfig
from clrt.models.decoders.config import read_decoder
from clrt.models.decoders.whisper import read_whisper
from clrt.models.encoders.config import read_config as read_encoder_config
from clrt.models.huggingface.checkpoint import Checkpoint
from clrt.models.huggingface.model_files import MAX_BYTES, path_in, read_json
from clrt.models.sources import onnx_file
from clrt.text.config import read_any_config, read_config
from clrt.text.tokenize import TextTokenizer
from clrt.util.files import check_link, stays_below
from clrt.vision import Classifier, Detector, ImageEncoder, Preprocessor, Segmenter

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="pipes and links of POSIX")
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "modules": ("modules.json", read_config),
    "class": ("modules.json", read_any_config),
    "text": ("config.json", read_config),
    "text tokenizer": ("tokenizer_config.json", read_config),
    "special tokens": ("special_tokens_map.json", read_config),
    "added tokens": ("added_tokens.json", read_config),
    "sentence": ("sentence_bert_config.json", read_config),
    "prompts": ("config_sentence_transformers.json", read_config),
    "encoder": ("config.json", read_encoder_config),
    "decoder": ("config.json", lambda f: read_decoder(f, None)),
    "whisper": ("config.json", read_whisper),
    "index": ("model.safetensors.index.json", Checkpoint),
    "weights": ("model.safetensors", Checkpoint),
    "adapter": ("adapter_config.json", PeftConfig),
    "sampling": ("generation_config.json", Sampling.from_folder),
    "ends": ("genai_config.json", eos_tokens),
    "template": ("chat_template.jinja", ChatTemplate.from_folder),
    "other template": ("additional_chat_templates/a.jinja", ChatTemplate.from_folder),
    "template's tokens": ("tokenizer_config.json", ChatTemplate.from_folder),
    "tokenizer": ("tokenizer.json", lambda f: read_tokenizer(f / "tokenizer.json")),
    "text's tokenizer": ("tokenizer.json", lambda f: TextTokenizer(read_config(f))),
    "vocabulary": ("vocab.json", CtcVocabulary.read),
    "features": ("preprocessor_config.json", Features.from_config),
    "processor": ("processor_config.json", Features.from_config),
    "images": ("preprocessor_config.json", Preprocessor.from_config),
}


@pytest.mark.parametrize("name", READERS)
def test_oversized_model_files_are_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / READERS[name][0]
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ModelError, match=READERS[name][0].rpartition("/")[2]):
        READERS[name][1](tmp_path)


@POSIX
@pytest.mark.parametrize("name", READERS)
def test_pipes_in_model_folder_are_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / READERS[name][0]
    file.parent.mkdir(exist_ok=True)
    os.mkfifo(file)
    with pytest.raises(ModelError):
        READERS[name][1](tmp_path)


@POSIX
@pytest.mark.parametrize("target", ["/dev/zero", "secret"])
@pytest.mark.parametrize("name", READERS)
def test_links_out_of_model_folder_are_refused(tmp_path: Path, name: str, target: str) -> None:
    folder = tmp_path / "model"
    file = folder / READERS[name][0]
    file.parent.mkdir(parents=True)
    (tmp_path / "secret").write_text("{}")
    file.symlink_to(target if target[0] == "/" else tmp_path / target)
    with pytest.raises(ModelError, match="outside the model's folder"):
        READERS[name][1](folder)


@POSIX
def test_onnx_folder_linked_from_outside_is_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "model.onnx").write_bytes(b"")
    (other / "config.json").write_text("{}")
    (folder / "onnx").symlink_to(other)
    with pytest.raises(ModelError, match="outside"):
        onnx_file(folder)
    (folder / "onnx").rename(folder / "0_Transformer")
    with pytest.raises(ModelError, match="outside"):
        onnx_file(folder)


@POSIX
def test_hugging_face_cache_links_are_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "1_Pooling"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1234").write_text('{"a": 1}')
    (snapshot / "config.json").symlink_to(Path("../../../blobs/1234"))
    (snapshot.parent / "config.json").symlink_to(Path("../../blobs/1234"))
    (snapshot.parent / "own.json").symlink_to("config.json")
    for file in ("config.json", "1_Pooling/config.json", "own.json"):
        assert read_json(snapshot.parent / file) == {"a": 1}
    (tmp_path / "model").symlink_to(snapshot.parent)
    assert read_json(tmp_path / "model" / "config.json") == {"a": 1}


@POSIX
def test_linked_blobs_folder_is_not_trusted_as_cache(tmp_path: Path) -> None:
    secret, snapshot = tmp_path / "secret", tmp_path / "archive" / "snapshots" / "abc"
    secret.mkdir()
    snapshot.mkdir(parents=True)
    (secret / "key").write_text("{}")
    (tmp_path / "archive" / "blobs").symlink_to(secret)
    (snapshot / "config.json").symlink_to(Path("../../blobs/key"))
    with pytest.raises(ModelError, match="outside"):
        check_link(snapshot / "config.json", snapshot)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "\\x", "C:x", "C:\\x", "//h/x", "a\0"])
def test_module_paths_out_of_folder_are_refused(tmp_path: Path, path: str) -> None:
    assert not stays_below(path)
    with pytest.raises(ModelError, match="outside"):
        path_in(tmp_path, path)
    kind = "sentence_transformers.models.Transformer"
    (tmp_path / "modules.json").write_text(json.dumps([{"path": path, "type": kind}]))
    with pytest.raises(ModelError, match="outside"):
        read_config(tmp_path)


def test_json_of_too_many_lists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f"[{'[],' * (1 << 21)}[]]")
    with pytest.raises(ModelError, match="lists and objects"):
        read_json(tmp_path / "config.json")


SOURCES: dict[str, Callable[[Any], object]] = {
    **{c.__name__: c for c in (clrt.SentenceEncoder, clrt.CrossEncoder, clrt.SparseEncoder)},
    **{c.__name__: c for c in (clrt.TextGenerator, clrt.Transcriber, clrt.load)},
    **{c.__name__: c for c in (Classifier, Detector, Segmenter, ImageEncoder)},
    "Features": Features.from_config,
    "Preprocessor": Preprocessor.from_config,
    "pick_device": lambda path: clrt.pick_device(path, {}),
}


@pytest.mark.parametrize("suffix", ["", ".onnx", ".clrt", ".gguf"])
@pytest.mark.parametrize(
    "path", ["x" * 300, "a/" * 3000, "x" * 300 + "/y", "a\0b", "~\0", "\ud800"]
)
@pytest.mark.parametrize("name", SOURCES)
def test_unusable_paths_raise_clrt_error(name: str, path: str, suffix: str) -> None:
    with pytest.raises(clrt.ClrtError):
        SOURCES[name](path + suffix)
