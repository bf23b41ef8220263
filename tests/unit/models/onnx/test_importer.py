"""ONNX importer: nodes, types, functions, unsupported nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from clrt.errors import ModelError, ShapeError, UnsupportedError
from clrt.ir.dims import symbol
from clrt.ir.graph import Graph
from clrt.ir.verify import verify
from clrt.models.onnx.importer import import_model
from clrt.ops.base import Op
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.decompositions.registry import DECOMPOSITIONS, DecompositionStage, imported_as
from clrt.ops.registry import REGISTRY
from tests.unit.models.onnx.onnx_models import function, info, model, weight, with_reference

node = helper.make_node
INTS, FLOAT = onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT


def add_weights(proto: onnx.ModelProto, **weights: Any) -> None:
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))


def imported(proto: onnx.ModelProto, **weights: Any) -> Graph:
    add_weights(proto, **weights)
    graph = import_model(proto)
    verify(graph)
    return graph


def run(graph: Graph, **feeds: Any) -> list[Any]:
    """Returns the outputs computed by the ops' reference implementations."""
    values = {v: feeds[v.name] for v in graph.inputs}
    values |= {v: v.numbers for v in graph.constants()}
    for item in graph.nodes:
        assert isinstance(item.op, Op)
        results = item.op.reference(*(None if v is None else values[v] for v in item.inputs))
        values |= dict(zip(item.outputs, results, strict=False))
    return [values[v] for v in graph.outputs]


def test_nodes_are_named_uniquely_and_sorted() -> None:
    """Named nodes keep their names; others get op and index; nodes are sorted."""
    nodes = [
        node("Neg", ["b"], ["y"]),
        node("Abs", ["x"], ["a"], "same"),
        node("Exp", ["a"], ["b"], "same"),
    ]
    graph = imported(model(nodes))
    assert [n.op.name for n in graph.nodes] == ["Abs", "Exp", "Neg"]
    names = [n.name for n in graph.nodes]
    assert names[0] == "same" and names[2] == "Neg_0" and len(set(names)) == 3


def test_omitted_inputs_are_none() -> None:
    one = np.int64([1])
    nodes = [node("Slice", ["x", "from", "to", "", "step"], ["y"])]
    graph = imported(model(nodes), **{"from": one * 0, "to": one * 2, "step": one})
    (slice_,) = graph.nodes
    assert slice_.inputs[3] is None and slice_.input(4) is not None


def test_nodes_with_equal_attributes_share_an_op() -> None:
    perms = [[1, 0, 2], [2, 0, 1], [1, 0, 2]]
    nodes = [node("Transpose", ["x"], [f"y{i}"], perm=perm) for i, perm in enumerate(perms)]
    outputs = [info(f"y{i}", None) for i in range(len(perms))]
    graph = imported(model(nodes, [info("x", ("a", "b", "c"))], outputs))
    first, other, again = (n.op for n in graph.nodes)
    assert first is again and first != other
    assert [str(n.output.shape[0]) for n in graph.nodes if n.output.shape] == ["b", "c", "b"]


@pytest.mark.parametrize(
    "second",
    [
        node("Transpose", ["x"], ["z"], "second", perm=[1, 0, 2], axis=1),
        node("Transpose", ["x"], ["z"], "second", perm=1.5),
        node("Transpose", ["x"], ["z"], "second", perm=[1, 1]),
        node("Transpose", [], ["z"], "second", perm=[1, 0]),
        node("Transpose", ["x", "x"], ["z"], "second", perm=[1, 0]),
        node("Transpose", ["x"], ["z", "more"], "second", perm=[1, 0]),
        node("Transpose", ["y2"], ["z"], "second", perm=[1, 0]),
    ],
    ids=["unknown", "kind", "value", "no input", "extra input", "extra output", "rank"],
)
def test_errors_after_equal_node_name_second_node(second: onnx.NodeProto) -> None:
    """A node is checked as if it were the first with its op and attributes."""
    before = [
        node("Unsqueeze", ["x", "axis"], ["y2"]),
        node("Transpose", ["x"], ["y"], "first", perm=[1, 0]),
    ]
    messages = []
    for nodes in ([before[0], second], [*before, second]):
        with pytest.raises((ModelError, ShapeError, UnsupportedError), match="second") as error:
            imported(model(nodes, outputs=[info("z", None)]), axis=np.int64([0]))
        messages.append((type(error.value), str(error.value)))
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("value", weight("", np.int32([[1, 2]])), np.int32([[1, 2]])),
        ("value_float", 1.5, np.float32(1.5)),
        ("value_floats", [1.5, 2.5], np.float32([1.5, 2.5])),
        ("value_int", 3, np.int64(3)),
        ("value_ints", [3, 4], np.int64([3, 4])),
    ],
)
def test_constant_nodes_become_constants(attribute: str, value: Any, expected: Any) -> None:
    graph = imported(
        model([node("Constant", [], ["y"], **{attribute: value})], outputs=[info("y", None)])
    )
    assert not graph.nodes
    (output,) = graph.outputs
    assert output.is_constant and output.numbers is not None
    assert output.numbers.dtype == expected.dtype
    np.testing.assert_array_equal(output.numbers, expected)


def test_attributes_of_older_opsets_become_inputs() -> None:
    nodes = [node("Unsqueeze", ["x"], ["y"], axes=[0, 2])]
    graph = imported(model(nodes, outputs=[info("y", None)], opset=11))
    axes = graph.nodes[0].arg(1)
    assert axes.is_constant and axes.numbers is not None
    np.testing.assert_array_equal(axes.numbers, [0, 2])
    assert graph.outputs[0].shape == (1, 2, 1, 3)


def dims_of(*shapes: list[Any] | None) -> list[str]:
    inputs = [info(f"x{i}", s) for i, s in enumerate(shapes)]
    nodes = [node("Identity", [f"x{i}"], [f"y{i}"]) for i in range(len(shapes))]
    outputs = [info(f"y{i}", None) for i in range(len(shapes))]
    graph = imported(model(nodes, inputs, outputs))
    return [str(v.type).removeprefix("float32") for v in graph.inputs]


def test_named_dims_are_kept() -> None:
    assert dims_of(["batch", 3], ["batch", 1]) == ["[batch,3]", "[batch,1]"]


def test_unnamed_dims_get_names_and_missing_rank_stays_unknown() -> None:
    assert dims_of([None, 3, None], None) == ["[x0_0,3,x0_2]", "[?]"]


def test_negative_dim_is_unnamed() -> None:
    assert dims_of([-1, 3]) == ["[x0_0,3]"]


def test_unnamed_dims_avoid_existing_names() -> None:
    assert len(set(dims_of([None], ["x0_0"]))) == 2


def test_dim_expressions_refer_to_other_dims() -> None:
    assert dims_of(["past", "seq"], ["past + seq"]) == ["[past,seq]", "[past+seq]"]


def test_invalid_dim_names_stay_distinct() -> None:
    first, second, third, fourth = dims_of(["batch-size"], ["batch size"], ["class"], ["a/b"])
    assert len({first, second, third, fourth}) == 4
    assert first == "[batch_size]"


def test_repeated_invalid_dim_names_are_independent() -> None:
    """Paddle's exporter writes `?` for every unknown dim."""
    assert dims_of(["?", 3, "?"], ["?"]) == ["[x0_0,3,x0_2]", "[x1_0]"]
    assert dims_of(["a-b", "a-b"]) == ["[a_b,a_b_1]"]
    assert dims_of(["class"], ["class"]) == ["[dim_class]"] * 2


def test_shape_arithmetic_is_inferred_symbolically() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Concat", ["n", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    proto = model(nodes, [info("x", ["batch", 4, 6])], [info("y", None)])
    graph = imported(proto, zero=np.int64([0]), rest=np.int64([24]))
    assert str(graph.outputs[0].type) == "float32[batch,24]"


def test_declared_types_fill_unknown_dims() -> None:
    nodes = [node("NonZero", ["x"], ["i"]), node("Abs", ["i"], ["y"])]
    outputs = [info("y", [2, 5], TensorProto.INT64)]
    graph = imported(model(nodes, outputs=outputs))
    assert str(graph.outputs[0].type) == "int64[2,5]"


def test_inferred_types_override_declared_types() -> None:
    graph = imported(model([node("Abs", ["x"], ["y"])], outputs=[info("y", [7, "n"])]))
    assert str(graph.outputs[0].type) == "float32[2,3]"


def test_function_is_inlined() -> None:
    inner = function(
        "Twice",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["t"], "add"), node("Neg", ["t"], ["b"], "neg")],
    )
    nodes = [
        node("Twice", ["x"], ["m"], "one", domain="local"),
        node("Twice", ["m"], ["y"], "two", domain="local"),
    ]
    graph = imported(model(nodes, domains=["local"], functions=[inner]))
    assert [n.name for n in graph.nodes] == ["one/add", "one/neg", "two/add", "two/neg"]
    assert graph.outputs[0].name == "y"
    np.testing.assert_array_equal(run(graph, x=np.float32([[1, 2, 3]]))[0], [[4, 8, 12]])


def test_nested_functions_resolve_attribute_references() -> None:
    leaf_node = with_reference(node("Transpose", ["a"], ["b"]), "perm", "order", INTS)
    call = with_reference(node("Leaf", ["a"], ["b"], domain="local"), "order", "p", INTS)
    functions = [
        function("Leaf", ["a"], ["b"], [leaf_node], ["order"]),
        function("Outer", ["a"], ["b"], [call], ["p"]),
    ]
    nodes = [node("Outer", ["x"], ["y"], "call", domain="local", p=[1, 0])]
    proto = model(nodes, outputs=[info("y", None)], domains=["local"], functions=functions)
    graph = imported(proto)
    assert graph.nodes[0].op.attributes == {"perm": (1, 0)}
    assert graph.outputs[0].shape == (3, 2)


@pytest.mark.parametrize(("given", "alpha"), [({}, 0.5), ({"a": 0.25}, 0.25)])
def test_function_attribute_defaults_apply(given: dict[str, float], alpha: float) -> None:
    body = with_reference(node("LeakyRelu", ["i"], ["o"]), "alpha", "a", FLOAT)
    default = helper.make_attribute("a", 0.5)
    functions = [function("F", ["i"], ["o"], [body], defaults=[default])]
    nodes = [node("F", ["x"], ["y"], domain="local", **given)]
    graph = imported(model(nodes, domains=["local"], functions=functions))
    assert run(graph, x=np.float32([[-1]]))[0] == -alpha


def test_unset_attribute_reference_uses_op_default() -> None:
    body = with_reference(node("LeakyRelu", ["i"], ["o"]), "alpha", "a", FLOAT)
    functions = [function("F", ["i"], ["o"], [body], ["a"])]
    nodes = [node("F", ["x"], ["y"], domain="local")]
    graph = imported(model(nodes, domains=["local"], functions=functions))
    np.testing.assert_allclose(run(graph, x=np.float32([[-1]]))[0], [[-0.01]])


def test_function_overload_is_selected() -> None:
    functions = [
        function("F", ["i"], ["o"], [node(op, ["i"], ["o"])], overload=op) for op in ("Neg", "Abs")
    ]
    call = node("F", ["x"], ["y"], domain="local")
    call.overload = "Abs"
    graph = imported(model([call], domains=["local"], functions=functions))
    assert [n.op.name for n in graph.nodes] == ["Abs"]


def test_function_may_return_its_input() -> None:
    body = [node("Neg", ["i"], ["o"])]
    functions = [function("F", ["i"], ["o", "i"], body)]
    nodes = [node("F", ["x"], ["m", "same"], domain="local"), node("Add", ["m", "same"], ["y"])]
    graph = imported(model(nodes, domains=["local"], functions=functions))
    np.testing.assert_array_equal(run(graph, x=np.float32([[5]]))[0], [[0]])


def test_omitted_function_input_stays_omitted() -> None:
    body = [node("Clip", ["i", "lo", "hi"], ["o"])]
    functions = [function("F", ["i", "lo", "hi"], ["o"], body)]
    nodes = [node("F", ["x", "", "hi"], ["y"], domain="local")]
    graph = imported(model(nodes, domains=["local"], functions=functions), hi=np.float32(1))
    np.testing.assert_array_equal(run(graph, x=np.float32([[-9, 9]]))[0], [[-9, 1]])


def test_recursive_function_is_refused() -> None:
    functions = [function("F", ["i"], ["o"], [node("F", ["i"], ["o"], domain="local")])]
    nodes = [node("F", ["x"], ["y"], domain="local")]
    with pytest.raises(ModelError, match="calls itself"):
        import_model(model(nodes, domains=["local"], functions=functions))


def test_exponential_function_expansion_is_refused() -> None:
    def call(k: int, i: str, o: str) -> onnx.NodeProto:
        return node(f"F{k}", [i], [o], domain="local")

    functions = [function("F0", ["i"], ["o"], [node("Missing", ["i"], ["o"])])]
    for k in range(1, 60):
        functions.append(
            function(f"F{k}", ["i"], ["o"], [call(k - 1, "i", "t"), call(k - 1, "t", "o")])
        )
    with pytest.raises(ModelError, match="nodes"):
        import_model(model([call(59, "x", "y")], domains=["local"], functions=functions))


def test_context_dependent_function_body_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert imported_as("", "CastLike", 20) is not None
    monkeypatch.delitem(DECOMPOSITIONS, (DecompositionStage.IMPORT, ("", "CastLike")))
    inputs = [info("x"), info("t", dtype=TensorProto.INT32)]
    graph = imported(model([node("CastLike", ["t", "x"], ["y"], "c")], inputs))
    assert [n.op.name for n in graph.nodes] == ["Cast"]
    assert str(graph.outputs[0].type) == "float32[2,3]"
    assert graph.outputs[0].name == "y" and graph.nodes[0].name.startswith("c/")


def test_schema_function_body_applies_attribute_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    REGISTRY.get("", "LeakyRelu")  # imports its module
    monkeypatch.delitem(REGISTRY.registered, ("", "LeakyRelu"))
    graph = imported(model([node("LeakyRelu", ["x"], ["y"], "c")]))
    assert len(graph.nodes) > 1
    np.testing.assert_allclose(run(graph, x=np.float32([[-1, 2]]))[0], [[-0.01, 2]])


def test_all_unsupported_nodes_are_named_at_once() -> None:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [node("Nothing", ["x"], [name], name)]
        return helper.make_graph(nodes, "branch", [], [info(name, None)])

    complex_one = helper.make_tensor("one", TensorProto.COMPLEX64, [1], [1.0])
    nodes = [
        node("Nothing", ["x"], ["a"], "n1", domain="com.acme"),
        node("Neg", ["a"], ["b"], "fine"),
        node("Nothing", ["b"], ["c"], "n2"),
        node("Add", ["c", "bf"], ["d"]),
        node("Constant", [], ["s"], "n3", value=complex_one),
        node("If", ["d"], ["y"], "n0", then_branch=branch("n4"), else_branch=branch("n5")),
    ]
    bf = helper.make_tensor("bf", TensorProto.COMPLEX64, [1], [1.0])
    with pytest.raises(UnsupportedError) as caught:
        import_model(model(nodes, domains=["com.acme"], initializer=[bf]))
    message, found = str(caught.value), caught.value.nodes
    for name in ("Nothing 'n1' (com.acme", "'n2'", "'n3'", "/n4'", "/n5'", "'bf'"):
        assert name in message
        assert any(name in entry for entry in found)
    assert len(found) == 6 and f"opset {18}" in message


@pytest.mark.parametrize(
    ("op", "domain", "attrs"),
    [
        ("MaxUnpool", "", {"kernel_shape": [2, 2]}),
        ("OneHotEncoder", "ai.onnx.ml", {"cats_strings": ["a", "b"]}),
        ("FusedMatMul", "com.microsoft", {"transA": 1}),
        ("CastLike", "", {}),
    ],
)
def test_unsupported_node_causes_no_follow_up_errors(
    op: str, domain: str, attrs: dict[str, Any]
) -> None:
    body = helper.make_graph(
        [node(op, ["v", "v"], ["w"], domain=domain, **attrs), node("Identity", ["c"], ["d"])],
        "turn",
        [info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL),
         onnx.ValueInfoProto(name="v")],
        [info("d", [], TensorProto.BOOL), onnx.ValueInfoProto(name="w")],
    )  # fmt: skip
    nodes = [
        node("Nothing", ["x"], ["a"], "n"),
        node(op, ["a", "a"], ["b"], domain=domain, **attrs),
        node("Loop", ["trips", "", "a"], ["y"], body=body),
    ]
    proto = model(nodes, domains=["ai.onnx.ml", "com.microsoft"], outputs=[info("y"), info("b")])
    add_weights(proto, trips=2)
    with pytest.raises(UnsupportedError) as caught:
        import_model(proto)
    assert len(caught.value.nodes) == 1


def test_size_dependent_expansion_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is added is taken out again.
    monkeypatch.setitem(DECOMPOSITIONS, (DecompositionStage.IMPORT, ("com.acme", "OneRow")), ())

    @register_import_decomposition("com.acme", "OneRow")
    def _one_row(body: ImportBuilder) -> None:
        body.outputs = body.inputs if symbol("n") == 1 else []

    with pytest.raises(UnsupportedError, match=r"n0.*depends on the input shapes: n == 1"):
        nodes = [node("OneRow", ["x"], ["y"], "n0", domain="com.acme")]
        import_model(model(nodes, domains=["com.acme"]))


def test_unsupported_dtype_error_names_input() -> None:
    with pytest.raises(UnsupportedError, match="'x'"):
        inputs = [info("x", [1], TensorProto.COMPLEX64)]
        import_model(model([node("Identity", ["x"], ["y"])], inputs))


def test_import_errors_name_op_and_node() -> None:
    proto = model([node("Add", ["x", "w"], ["y"], "head/add")])
    add_weights(proto, w=np.zeros((2, 4), np.float32))
    with pytest.raises(ShapeError, match=r"^Add 'head/add': "):
        import_model(proto)


@pytest.mark.parametrize("perm", [[5, 9], [0, 0], 1.5])
def test_invalid_attribute_value_names_node(perm: object) -> None:
    with pytest.raises(ModelError, match="'t'"):
        import_model(model([node("Transpose", ["x"], ["y"], "t", perm=perm)]))


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Add", ["x", "nowhere"], ["y"])],
        [node("Add", ["x", "y"], ["a"]), node("Neg", ["a"], ["y"])],
        [node("Abs", ["x"], ["y"]), node("Neg", ["x"], ["y"])],
        [node("Abs", ["x"], ["z"])],
        [node("Abs", ["x", "x", "x"], ["y"])],
        [node("Constant", [], ["y"])],
    ],
    ids=["undefined", "cycle", "twice", "no output", "inputs", "no value"],
)
def test_invalid_graphs_are_refused(nodes: list[onnx.NodeProto]) -> None:
    with pytest.raises(ModelError):
        import_model(model(nodes))
