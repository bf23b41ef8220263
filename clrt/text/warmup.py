"""The text model of a folder or file, whichever class it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clrt.text.config import read_any_config
from clrt.text.cross_encoder import CrossEncoder
from clrt.text.sentence_encoder import SentenceEncoder
from clrt.text.sparse_encoder import SparseEncoder


def run_once(path: Path, **options: Any) -> None:
    """Runs a text model on a short text, so that all its programs are compiled.

    Args:
        path: A folder, an ONNX file or a compiled model.
        options: Arguments of the class.

    Raises:
        ModelError, UnsupportedError: It is no text model.
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
