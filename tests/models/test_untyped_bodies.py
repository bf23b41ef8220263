"""Subgraphs without declared types: types are inferred from their nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import clrt
from tests.harness import quick_device
from tests.models.onnx_text import normal, parsed


def _without_types(graph: onnx.GraphProto, undefined: bool) -> None:
    """Removes the types of subgraphs, or sets undefined element types."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type != onnx.AttributeProto.GRAPH:
                continue
            _without_types(attribute.g, undefined)
            for info in (*attribute.g.input, *attribute.g.output):
                name = info.name
                info.Clear()
                info.name = name
                if undefined:
                    info.type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED


UNTYPED = {
    "sequence_map": """g (float[2,3] x, float[2,3] y) => (float[n,3] z) {
        q=SequenceConstruct(x,y)
        m=SequenceMap(q)<body=b(float[a,3] v)=>(float[c,3] o) { o=Exp(v) }>
        z=ConcatFromSequence<axis=0>(m) }""",
    "sequence_map_to_another_dtype": """g (float[2,3] x, float[4,3] y) => (int64[n] z) {
        q=SequenceConstruct(x,y)
        m,k=SequenceMap(q,y)<body=b(float[a,3] v, float[4,3] w)=>(int64[2] o, float[c] p) {
            o=Shape(v) s=Add(v,x) p=Identity(w) }>
        z=ConcatFromSequence<axis=0>(m) }""",
    "sequence_map_in_if": """g (float[2,3] x, float[2,3] y, bool t) => (float[n,3] z) {
        q=SequenceConstruct(x,y)
        m=SequenceMap(q)<body=b(float[a,3] v)=>(float[c,3] o) {
            o=If(t)<then_branch=h()=>(float[c,3] e) { e=Add(v,x) },
                    else_branch=l()=>(float[c,3] f) { f=Identity(v) }> }>
        z=ConcatFromSequence<axis=0>(m) }""",
    "loop": """g (float[2,3] x, float[2,3] y) => (float[2,3] z, float[k,2,3] all)
        <int64 n={3}, bool t={1}> {
        z,all=Loop(n,t,x)<body=
            b(int64 i, bool c, float[2,3] v)=>(bool d, float[2,3] o, float[2,3] s)
            { d=Identity(c) o=Add(v,y) s=Mul(v,y) }> }""",
    "scan": """g (float[2] x, float[4,2] y) => (float[2] z, float[4,2] all) {
        z,all=Scan(x,y)<num_scan_inputs=1,
            body=b(float[2] v, float[2] r)=>(float[2] o, float[2] s)
            { o=Add(v,r) s=Mul(v,r) }> }""",
}


@pytest.mark.parametrize("undefined", [False, True])
@pytest.mark.parametrize("name", UNTYPED)
def test_untyped_subgraphs_match_typed_subgraphs(name: str, undefined: bool) -> None:
    typed = onnx.load_from_string(parsed(UNTYPED[name]))
    bare = onnx.ModelProto()
    bare.CopyFrom(typed)
    _without_types(bare.graph, undefined)
    given = {i.name: i.type.tensor_type.shape.dim for i in typed.graph.input}
    shapes = {name: [d.dim_value for d in dims] for name, dims in given.items()}
    feeds: dict[str, Any] = {n: normal(3, *s) for n, s in shapes.items() if n != "t"}
    feeds |= {"t": np.array(True)} if "t" in shapes else {}
    found = []
    for model in (typed, bare):
        with clrt.load(model, device=quick_device().index) as loaded:
            found.append(loaded.run(feeds))
    assert found[0].keys() == found[1].keys()
    for output, array in found[0].items():
        np.testing.assert_array_equal(found[1][output], array)
