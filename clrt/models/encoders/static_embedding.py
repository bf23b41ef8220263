"""Static token embeddings: sentence-transformers' StaticEmbedding, and model2vec."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clrt.errors import ModelError
from clrt.formats.safetensors import DTYPES, read_header
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ops.op_builder import OpBuilder

_FILE = "model.safetensors"
_TABLE, _OTHER_TABLE = "embedding.weight", "embeddings"


def is_static_embedding(folder: Path) -> bool:
    """Returns whether a folder has a table of token vectors and no transformer."""
    file = folder / _FILE
    if (folder / "config.json").is_file() and (folder / "modules.json").is_file() is False:
        return False
    return file.is_file() and not {_TABLE, _OTHER_TABLE}.isdisjoint(read_header(file).tensors)


def static_graph(folder: Path) -> Graph:
    """Builds the graph of a static embedding folder.

    Inputs `input_ids` and `attention_mask` (unused), int64 `[batch, sequence]`; output
    `token_embeddings`, float32 `[batch, sequence, size]`.

    Raises:
        ModelError: The safetensors file is damaged, or its tensors do not fit.
    """
    build = OpBuilder()
    ids = build.feed("input_ids", DType.INT64, "batch", "sequence")
    build.feed("attention_mask", DType.INT64, "batch", "sequence")
    rows = build("Gather", _table(folder / _FILE), ids)
    return build.graph("static", build.inputs, [rows], ["token_embeddings"])


def _table(file: Path) -> Array:
    """Returns the vector of each token, float32 `[tokens, size]`.

    model2vec's files may map several tokens to one row (`mapping`), and scale each token's vector
    (`weights`).

    Args:
        file: The safetensors file.

    Raises:
        ModelError: A tensor has the wrong dtype or shape, or `mapping` points out of the table.
    """
    header = read_header(file)
    data = header.map()

    def load(name: str, rank: int) -> Array:
        entry = header.tensors[name]
        if entry.dtype not in DTYPES or len(entry.shape) != rank:
            raise ModelError(
                f"Tensor '{name}' of {file} is {entry.dtype}{list(entry.shape)}, not a table of "
                "vectors; download the model again."
            )
        raw = np.array(data[entry.start : entry.stop])
        return raw.view(DTYPES[entry.dtype]).reshape(entry.shape)

    if _TABLE in header.tensors:
        return load(_TABLE, 2).astype(np.float32)
    table = load(_OTHER_TABLE, 2).astype(np.float32)
    if "mapping" in header.tensors:
        mapping = load("mapping", 1)
        if mapping.dtype.kind not in "iu" or np.any((mapping < 0) | (mapping >= len(table))):
            raise ModelError(f"'mapping' of {file} points outside of its table.")
        table = table[mapping]
    if "weights" in header.tensors:
        weights = load("weights", 1).astype(np.float32)
        if len(weights) != len(table):
            raise ModelError(
                f"'weights' of {file} has {len(weights)} numbers for {len(table)} tokens; download "
                "the model again."
            )
        table = table * weights[:, None]
    return table
