"""First modules of sentence-transformers that are no BERT-like encoders."""

from __future__ import annotations

from pathlib import Path

from clrt.ir.graph import Graph
from clrt.models.encoders.static_embedding import is_static_embedding, static_graph
from clrt.models.huggingface.model_files import read_optional


def import_sentence_folder(folder: Path) -> Graph | None:
    """Returns the graph of a table of vectors, or of a decoder that reads whole texts.

    Args:
        folder: Of the first module of modules.json.

    Returns:
        The graph; None if the folder is of another kind.

    Raises:
        ModelError, UnsupportedError: As `static_graph` and `sequence_graph`.
    """
    if is_static_embedding(folder):
        return static_graph(folder)
    from clrt.models.decoders.families import COMPOSITE_MODELS, FAMILIES

    config = read_optional(folder / "config.json")
    if str(config.get("model_type")) not in {*FAMILIES, *COMPOSITE_MODELS}:
        return None
    from clrt.models.decoders.sequence import sequence_graph

    return sequence_graph(folder)
