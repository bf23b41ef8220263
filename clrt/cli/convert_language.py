"""`clrt-convert` for language models and Whisper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import clrt
from clrt.audio.config import is_whisper
from clrt.audio.whisper.model import read_whisper_model, write_whisper_model
from clrt.cli.adapters import given_adapters
from clrt.cli.console import echo
from clrt.errors import InputError, ModelError, explain_missing_extra
from clrt.generation.compiled import write_language_model
from clrt.generation.model_reader import read_language_model
from clrt.generation.onnx_decoder import GENAI, find_onnx, folder_of
from clrt.models.compiled_file import SUFFIX
from clrt.models.decoders.families import COMPOSITE_MODELS, FAMILIES
from clrt.models.decoders.whisper import MODEL_TYPE
from clrt.models.huggingface.model_files import read_object
from clrt.util.files import check_targets, expanded
from clrt.util.formatting import format_bytes

# Suffixes of transformers' classes that generate text.
_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_CACHE = "float32"


def is_language_model(source: Path) -> bool:
    """Returns whether a source is a GGUF file, or the folder of a language model or of Whisper.

    False for a single ONNX file, which is converted as a graph, and for the folder of a sentence
    encoder. A folder of ONNX files is a language model if it has a configuration of
    onnxruntime-genai, or both a tokenizer and a decoder with inputs for past keys and values.
    """
    if source.suffix == ".gguf":
        return True
    if not source.is_dir() or (source / "modules.json").is_file():
        return False
    if (source / GENAI).is_file():
        return True
    if any(source.glob("**/*.onnx")):
        return _has_decoder(source)
    if any(source.glob("*.gguf")):
        return True
    try:
        config = read_object(source / "config.json")
    except ModelError:
        return False
    known = {*FAMILIES, *COMPOSITE_MODELS, MODEL_TYPE}
    if str(config.get("model_type")) not in known:
        return False
    names = config.get("architectures")
    return not isinstance(names, list) or any(str(name).endswith(_HEADS) for name in names)


def _has_decoder(folder: Path) -> bool:
    """Returns whether a folder has an ONNX decoder with inputs of past values, and a tokenizer."""
    file = find_onnx(folder)
    if file is None or not (folder_of(file) / "tokenizer.json").is_file():
        return False
    with explain_missing_extra("An ONNX model"):
        from clrt.models.decoders.onnx import has_past_inputs
    return has_past_inputs(file)


def convert_language_model(
    source: str,
    output: Path | None,
    others: dict[str, object],
    lora: Sequence[str] | None = None,
) -> None:
    """Writes a language model as one compiled file, and prints a summary.

    Args:
        source: GGUF file or model folder.
        output: File to write; None for the source's name with the suffix .clrt.
        others: Value by option name, for options that must not be set for language models.
        lora: Adapters to merge, as PATH or PATH:FACTOR.

    Raises:
        InputError: An option of `others` is set, or the file cannot be written.
        ModelError: A file of the model is missing or damaged.
        UnsupportedError: The model needs a feature that clrt does not support.
    """
    given = [name for name, value in others.items() if value]
    if given:
        raise InputError(
            f"Conversion of a language model does not support --{given[0]}; leave it out, or name "
            "the ONNX file itself if it has one."
        )
    path = expanded(Path(source))
    target = path.with_suffix(SUFFIX) if output is None else expanded(output)
    read = [path] if path.is_file() else []
    check_targets({"--output": target}, read, {"--output": (SUFFIX,)})
    producer = f"clrt {clrt.__version__}"
    if is_whisper(path):
        if lora:
            raise InputError("Conversion of Whisper does not support --lora; leave it out.")
        speech = read_whisper_model(path)
        write_whisper_model(speech, target, producer)
        what, layers = MODEL_TYPE, speech.decoder.layers
    else:
        model = read_language_model(path, None, _CACHE, given_adapters(lora))
        write_language_model(model, target, _CACHE, producer)
        what, layers = model.decoder.family, model.decoder.layers
    echo(f"{target}: {what}, {layers} layers, {format_bytes(target.stat().st_size)}")
