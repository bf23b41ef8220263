"""Small sentence model, texts for it, and readers of job results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.unit.text import tiny

HIDDEN = 5
LETTERS = "abcde"


def make_model(folder: Path, seed: int = 0) -> Path:
    """Writes a model of word vectors times a matrix, with mean pooling."""
    tiny.make_folder(folder, max_length=16)
    noise = np.random.default_rng(seed)
    tables = {"table": (len(tiny.WORDS), HIDDEN), "mix": (HIDDEN, HIDDEN)}
    weights = [
        numpy_helper.from_array(noise.standard_normal(shape).astype(np.float32), name)
        for name, shape in tables.items()
    ]
    ids = ["batch", "sequence"]
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
            helper.make_node("MatMul", ["rows", "mix"], ["last_hidden_state"]),
        ],
        "words",
        [
            helper.make_tensor_value_info(n, TensorProto.INT64, ids)
            for n in ("input_ids", "attention_mask")
        ],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*ids, HIDDEN])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    (folder / "onnx").mkdir(exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "onnx/model.onnx"
    )
    return folder


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Returns random texts of the model's words."""
    noise = np.random.default_rng(seed)
    return [" ".join(noise.choice(list(LETTERS), 1 + i % 7)) for i in range(count)]


def write_parquet(path: Path, columns: Mapping[str, Any], group: int = 1000) -> Path:
    pq.write_table(pa.table(dict(columns)), path, row_group_size=group)
    return path


def write_lines(path: Path, rows: Iterable[object]) -> Path:
    """Writes JSON lines; bytes rows are written unchanged."""
    lines = (r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def read_vectors(folder: Path, key: str = "id") -> dict[Any, NDArray[np.float32]]:
    """Returns a job's vectors by row id; asserts that ids are unique."""
    table = pq.read_table(folder)
    keys = table[key].to_pylist()
    assert len(set(keys)) == len(keys)
    vectors = np.array(table["vector"].to_pylist(), np.float32)
    return dict(zip(keys, vectors, strict=True))


def read_errors(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (folder / "_errors.jsonl").read_text("utf-8").splitlines()]
