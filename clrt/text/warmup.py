"""Compiles the programs of a text model by one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clrt.text.config import read_any_config
from clrt.text.cross_encoder import CrossEncoder
from clrt.text.sentence_encoder import SentenceEncoder
from clrt.text.sparse_encoder import SparseEncoder


def run_once(path: Path, **options: Any) -> None:
    """Runs a text model on a short text, which compiles all its programs.

    Args:
        path: Model folder, ONNX file or compiled model.
        options: Constructor arguments of the model's class.

    Raises:
        ModelError, UnsupportedError: `path` is not a text model.
    """
    text = "The pooling needs programs too."
    kind = read_any_config(path).wanted
    if kind == CrossEncoder.__name__:
        with CrossEncoder(path, **options) as pairs:
            pairs.predict((text, text))
    else:
        with (SparseEncoder if kind == SparseEncoder.__name__ else SentenceEncoder)(
            path, **options
        ) as encoder:
            encoder.encode(text)
