"""Exported models match their originals in ONNX Runtime and in clrt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import clrt
from clrt.ir.op import Array
from clrt.models.onnx.export.exporter import export_model
from clrt.models.onnx.importer import import_model
from clrt.passes.pipeline import optimize
from tests.models.fixtures import family_names, load_family, load_minilm
from tests.models.oracle import LIMIT, expected, model_folder, relative_error, text_feeds
from tests.models.test_light_models import FILES


def exported(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the checked ONNX export of a model's optimized graph."""
    graph = import_model(proto)
    optimize(graph)
    result = export_model(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


def feeds_for(proto: onnx.ModelProto, batch: int, sequence: int) -> dict[str, Array]:
    """Returns token ids with padding, or pixels."""
    names = [i.name for i in proto.graph.input]
    if "pixel_values" in names:
        dims = [d.dim_value or batch for d in proto.graph.input[0].type.tensor_type.shape.dim]
        return {names[0]: np.random.default_rng(0).standard_normal(dims).astype(np.float32)}
    return text_feeds(names, batch, sequence, batch > 1, 90)


@pytest.mark.parametrize("name", family_names())
def test_exported_family_matches_original(name: str) -> None:
    proto = load_family(name)
    result = exported(proto)
    assert not {n.domain for n in result.graph.node} - {"", "ai.onnx"}
    assert len(result.graph.node) < len(proto.graph.node)
    for feeds in (feeds_for(proto, 2, 9), feeds_for(proto, 1, 5)):
        wanted, found = expected(proto, feeds), expected(result, feeds)
        assert list(found) == list(wanted)
        for output, array in wanted.items():
            assert relative_error(found[output], array) < LIMIT, output


@pytest.mark.parametrize("name", ["bert_dynamo20", "gpt2_nomask_torchscript17"])
def test_exported_model_loads_in_clrt(name: str) -> None:
    proto = load_family(name)
    feeds = feeds_for(proto, 2, 7)
    with clrt.load(exported(proto), strict=True) as model:
        found = model.run(feeds)
    for output, array in expected(proto, feeds).items():
        assert relative_error(np.asarray(found[output]), array) < 1e-4


def test_export_keeps_dims_and_node_names() -> None:
    proto = load_family("bert_dynamo20")
    result = exported(proto)
    for a, b in zip(proto.graph.input, result.graph.input, strict=True):
        assert a.name == b.name
        assert a.type.tensor_type.shape == b.type.tensor_type.shape
    kept = {n.name for n in proto.graph.node} & {n.name for n in result.graph.node}
    assert {"node_embedding", "node_layer_norm"} <= kept


@pytest.mark.parametrize("path", [f for f in FILES if "squeezenet" in f.stem], ids=lambda p: p.stem)
def test_exported_squeezenet_matches_original(path: Path) -> None:
    proto = onnx.load(path)
    result = exported(proto)
    feeds = {
        i.name: np.ones([d if isinstance(d, int) else 1 for d in i.shape], np.float32)
        for i in onnxruntime.InferenceSession(path).get_inputs()
    }
    for array, again in zip(
        expected(proto, feeds).values(), expected(result, feeds).values(), strict=True
    ):
        assert relative_error(again, array) < LIMIT


_FORMS = {
    "a loop without states": """g (float[n,3] x, int64 k) => (float[t,n,3] y) { y=Loop(k,"")
        <body=b(int64 i, bool c)=>(bool d, float[n,3] o) { d=Identity(c) o=Exp(x) }> }""",
    "a seed that is an integer": """g (float[n,3] x, float r, bool t) => (float[n,3] y) {
        y=Dropout<seed=7>(x,r,t) }""",
    "a choice of truths": """g (float r, bool t) => (bool y) {
        o=Constant<value=float {0.4}>() y=If(t)<then_branch=a () => (bool u) {u=Greater(r,o)},
        else_branch=b () => (bool v) {v=Less(r,o)}> }""",
    "sizes from outside": """g (float[n,3] x, int64[2] s) => (float[n,a] y, float[n,b] z) {
        e=Exp(x) y,z=Split<axis=1>(e,s) }""",
    "the nearest of TensorFlow": """g (float[1,1,n,4] x) => (float[1,1,a,b] y)
        <float[0] r={}, float[4] s={1.0,1.0,1.5,0.6}> { y=Resize<nearest_mode="floor",
        coordinate_transformation_mode="tf_half_pixel_for_nn">(x,r,s) }""",
}


@pytest.mark.parametrize("name", _FORMS)
def test_exported_node_forms_match_original(name: str) -> None:
    opset = 11 if "Resize" in _FORMS[name] else 18
    head = f'<ir_version: 9, opset_import: ["" : {opset}]>'
    proto = onnx.parser.parse_model(head + _FORMS[name])
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    values = {
        "x": np.resize(x, (1, 1, 6, 4)) if opset == 11 else x,
        "k": np.array(2),
        "r": np.array(0.5, np.float32),
        "t": np.array(False),
        "s": np.array([1, 2]),
    }
    feeds = {i.name: values[i.name] for i in proto.graph.input}
    for output, array in expected(exported(proto), feeds).items():
        np.testing.assert_allclose(array, expected(proto, feeds)[output], rtol=1e-5)


# The export, its check and two sessions copy 90 MB of weights, 1.1 GB in all.
@pytest.mark.memory(2560)
def test_exported_minilm_matches_original() -> None:
    proto = load_minilm("minilm_dynamo20", model_folder())
    feeds = text_feeds([i.name for i in proto.graph.input], 3, 17, True, 30000)
    wanted = expected(proto, feeds)
    result = exported(proto)
    del proto  # each has the weights, 90 MB, and sessions copy them
    found = expected(result, feeds)
    for output, array in wanted.items():
        assert relative_error(found[output], array) < LIMIT
