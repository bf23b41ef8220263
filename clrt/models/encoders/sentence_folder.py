"""Imports sentence-transformers models whose first module is not a BERT-like encoder."""

from __future__ import annotations

from pathlib import Path

from clrt.ir.graph import Graph
from clrt.models.encoders.static_embedding import is_static_embedding, static_graph
from clrt.models.huggingface.model_files import read_optional


def import_sentence_folder(folder: Path) -> Graph | None:
    """Builds the graph of a static embedding, or of a decoder used as text encoder.

    Args:
        folder: Folder of the first module in modules.json.

    Returns:
        The graph; None if the folder holds another kind of module, such as a BERT-like encoder.

    Raises:
        ModelError: A file or tensor is missing or damaged.
        UnsupportedError: The decoder's family or an option of it is unsupported.
    """
    if is_static_embedding(folder):
        return static_graph(folder)
    from clrt.models.decoders.families import COMPOSITE_MODELS, FAMILIES

    config = read_optional(folder / "config.json")
    if str(config.get("model_type")) not in {*FAMILIES, *COMPOSITE_MODELS}:
        return None
    from clrt.models.decoders.sequence import sequence_graph

    return sequence_graph(folder)
