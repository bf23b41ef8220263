"""`model.explain`: location and reason for each node, and hits of graph passes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

import clrt
from clrt.kernels.tuning_records import find_record, new_record, save
from tests.models.fixtures import load_family

NAMES = ["input_ids", "attention_mask"]


@pytest.fixture(scope="module")
def model() -> Iterator[clrt.Model]:
    with clrt.load(load_family("distilbert_dynamo20"), device="cpu") as loaded:
        yield loaded


def test_explain_describes_every_node_of_transformer(model: clrt.Model) -> None:
    found = model.explain(dict.fromkeys(NAMES, (3, 80)))
    plan = model.plan(dict.fromkeys(NAMES, (3, 80)))
    assert found.launches == plan.launches
    assert {r.name for r in found.rows} == {n.name for n in plan.graph.nodes}
    assert found.graph_break is None
    attention = next(r for r in found.rows if r.op == "FusedAttention")
    assert attention.where == "device"
    assert len(attention.origins) > 4
    assert attention.made_by == "merge_qkv"
    assert attention.written_bytes == 3 * 80 * 32 * 4
    dense = next(r for r in found.rows if "fuse_epilogue" in r.name)
    assert dense.flops >= 2 * 3 * 80 * 32 * 32
    assert dense.kernels[0].tunables["T_MR"] > 0
    # The dense layer's weight is packed, zeros past its last column.
    assert dense.read_bytes >= 32 * 32 * 4
    assert any(r.where == "view" and r.memory.startswith("view of %") for r in found.rows)
    assert any(r.memory.startswith("in place of %") for r in found.rows)
    assert {p.name for p in found.passes if p.hits} >= {"fuse_attention", "merge_qkv"}
    few = model.explain(dict.fromkeys(NAMES, (2, 16)))
    # The embedding reads the rows that it is asked for, not the table.
    embedding = next(r for r in few.rows if r.op == "Gather")
    assert embedding.read_bytes == 2 * 16 * (32 * 4 + 8)


def test_explain_prints_and_serializes_to_json(model: clrt.Model) -> None:
    found = model.explain(dict.fromkeys(NAMES, (1, 4)))
    text = str(found)
    for wanted in ("input_ids=1x4", "FusedAttention", "Graph passes", "merge_qkv", "memory"):
        assert wanted in text
    assert text.count("%name is") == text.count("predicted time is") == 1
    again = json.loads(json.dumps(found.to_dict()))
    assert again["launches"] == found.launches
    assert again["memory"]["device_bytes"] == found.memory.device_bytes


def _model(nodes: list[onnx.NodeProto], dtype: int = TensorProto.FLOAT) -> bytes:
    info = helper.make_tensor_value_info
    zero = onnx.numpy_helper.from_array(np.zeros((), np.float32), "zero")
    outputs = [info("y", TensorProto.INT64 if dtype == 1 else dtype, None)]
    graph = helper.make_graph(nodes, "g", [info("x", dtype, ["b", 4])], outputs, [zero])
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def test_host_step_is_explained_with_reason() -> None:
    model = _model([helper.make_node("LpNormalization", ["x"], ["y"], "s")], TensorProto.DOUBLE)
    with clrt.load(model, device="cpu", strict=False) as loaded:
        found = loaded.explain({"x": (3, 4)})
    (row,) = found.rows
    assert (row.where, row.variant, row.kernels) == ("host", "", ())
    assert "no kernel fits" in row.why
    assert row.read_bytes == row.written_bytes == 3 * 4 * 8


def test_rejected_variants_are_named_with_reason() -> None:
    nodes = [helper.make_node("ReduceMax", ["x"], ["y"], "a")]
    with clrt.load(_model(nodes, TensorProto.INT32), device="cpu") as loaded:
        (row,) = loaded.explain({"x": (3, 4)}).rows
    assert row.where == "device"
    assert row.rejected
    assert row.why == "the cheapest variant that fits"
    assert all(reason.partition(": ")[2] for reason in row.rejected)


def test_predicted_cost_of_rejected_variant_is_shown() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "a")]
    with clrt.load(_model(nodes), device="cpu") as loaded:
        (row,) = loaded.explain({"x": (3, 4)}).rows
    assert row.variant == "cpu"
    assert [r.partition(" us, cpu ")[0].split()[:2] for r in row.rejected] == [
        ["any:", "predicted"]
    ]


def test_graph_break_is_explained() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "before"),
        helper.make_node("NonZero", ["r"], ["i"], "find"),
        helper.make_node("Neg", ["i"], ["y"], "after"),
    ]
    with clrt.load(_model(nodes), device="cpu") as loaded:
        found = loaded.explain({"x": (3, 4)})
    assert found.graph_break is not None
    assert (found.graph_break.node, found.graph_break.reads) == ("NonZero 'find'", ("r",))
    assert found.graph_break.ops_after == {"Neg": 1}
    assert [r.name for r in found.rows] == ["before"]
    assert "NonZero" in found.memory.graph_break
    assert "The host reads %r" in str(found)


def test_tuning_record_is_named(
    model: clrt.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))
    caps = model.device.caps
    save([new_record("gemm_cpu", caps, {"T_MC": 16})])
    record = find_record("gemm_cpu", caps)
    assert record.tunables == {"T_MC": 16}
    assert "for this device" in str(record)
    assert str(tmp_path) in str(record)
    assert "no record fits" in str(find_record("no_such_kernel", caps))
    found = model.explain(dict.fromkeys(NAMES, (2, 16)))
    uses = [k for r in found.rows for k in r.kernels if k.entry == "gemm_cpu"]
    assert {(u.tunables["T_MC"], u.record) for u in uses} == {(16, str(record))}


@pytest.mark.parametrize("columns", ["300", "80", None])
def test_explain_lines_fit_100_columns_with_uncut_names(
    model: clrt.Model, monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    """At most 100 columns at any terminal width; names stay whole."""
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    found = model.explain(dict.fromkeys(NAMES, (1, 4)))
    lines = str(found).splitlines()
    assert max(map(len, lines)) <= 100
    words = {word for line in lines for word in line.split()}
    assert words >= {row.name for row in found.rows}
    assert words >= {f"{name.split(': ')[0]}:" for row in found.rows for name in row.outputs}
    target = io.StringIO()
    Console(file=target, width=80).print(found)
    shown = {word for line in target.getvalue().splitlines() for word in line.split()}
    assert shown >= {row.name for row in found.rows}
