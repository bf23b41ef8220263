"""Encoding options of a job, the model's digest, and the check of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import ModelError
from clrt.models.locate import find_model
from clrt.text.jobs.work_units import LIMITS, ReadLimits
from clrt.text.sentence_encoder import SentenceEncoder
from clrt.util.fast_dataclass import dataclass

_MODEL_SUFFIXES = frozenset(
    (".clrt", ".onnx", ".onnx_data", ".data", ".safetensors", ".json", ".txt", ".model")
)
_BLOCK_BYTES = 1 << 20  # Bytes per read while hashing.


@dataclass(frozen=True)
class EmbedOptions:
    """Options of an embedding job, as picklable values.

    Attributes:
        model: Path or name of the model.
        device: As in `SentenceEncoder`.
        pooling: As in `SentenceEncoder`.
        max_length: As in `SentenceEncoder`.
        batch_size: As in `SentenceEncoder.encode`.
        truncate_dim: As in `SentenceEncoder.encode`.
        prompt: As in `SentenceEncoder.encode`.
        normalize: Whether to L2-normalize vectors.
        limits: Maximum sizes of input rows and files.
    """

    model: str
    device: str | int | None = None
    pooling: str | None = None
    max_length: int | None = None
    batch_size: int = 32
    truncate_dim: int | None = None
    prompt: str | None = None
    normalize: bool = True
    limits: ReadLimits = LIMITS

    def make_encoder(self) -> SentenceEncoder:
        """Loads the model; returns its encoder.

        Raises:
            ClrtError: The model cannot be loaded, as in `SentenceEncoder`.
        """
        return SentenceEncoder(
            self.model, device=self.device, pooling=self.pooling, max_length=self.max_length
        )

    def encode(self, encoder: SentenceEncoder, texts: Sequence[str]) -> NDArray[Any]:
        """Computes the vectors of texts with these options, float32 [n, dimension]."""
        vectors: NDArray[np.float32] = encoder.encode(
            texts,
            batch_size=self.batch_size,
            normalize_embeddings=self.normalize,
            show_progress_bar=False,
            truncate_dim=self.truncate_dim,
            prompt=self.prompt,
        )
        return vectors

    def lasting(self) -> dict[str, Any]:
        """Returns the options that change vectors, by name.

        Left out are the device, the batch size, the limits, and the model: a job stores the digest
        of the model instead.
        """
        values = asdict(self)
        for name in ("model", "device", "batch_size", "limits"):
            del values[name]
        return values


def text_problem(value: object) -> str:
    """Returns why a value of the text column cannot be encoded; "" if it can.

    The reason is the predicate of a sentence about the column, such as "is null".
    """
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return "holds a surrogate, which is no character"
        return ""
    if value is None or (isinstance(value, float) and value != value):
        return "is null"
    return f"is of type {type(value).__name__}, not a string"


def model_digest(model: str) -> str:
    """Returns a hex digest of a model's files: weights, configuration and tokenizer.

    Args:
        model: Path or name of the model.

    Raises:
        ModelError: The model does not exist, or a file cannot be read.
    """
    source = find_model(model)
    digest = hashlib.blake2b(digest_size=16)
    try:
        for file in _files(source):
            digest.update(file.name.encode())
            with open(file, "rb") as stream:
                while block := stream.read(_BLOCK_BYTES):
                    digest.update(block)
    except OSError as error:
        raise ModelError(f"'{error.filename}' cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def _files(source: Path) -> list[Path]:
    """Returns the files of a model that `model_digest` hashes, sorted.

    For a folder: its files and the files one level below. For an ONNX file: the file, its external
    data, and the JSON files beside it and one folder above. For a compiled model: the file alone.

    Args:
        source: The folder or file.
    """
    if source.is_dir():
        files = {p for pattern in ("*", "*/*") for p in source.glob(pattern)}
    elif source.suffix == ".clrt":
        return [source]
    else:
        beside = source.parent.glob(f"{source.name}*")
        files = {*beside, *source.parent.glob("*.json"), *source.parent.parent.glob("*.json")}
    return sorted(p for p in files if p.suffix in _MODEL_SUFFIXES and p.is_file())
