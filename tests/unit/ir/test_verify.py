"""Graph verifier: each violation that a pass could cause is detected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clrt.errors import PassError
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.ir.parse import parse_graph
from clrt.ir.verify import verify
from clrt.ops import REGISTRY

TEXT = """graph "g" (%x: float32[n,3]) {
  const %w: float32[3] = [1.0, 2.0, 3.0]
  %a: float32[n,3] = Add(%x, %w) @"add"
  %b: float32[3,n] = Transpose(%a) @"turn"
  return %b as "y"
}
"""


def graph() -> Graph:
    return parse_graph(TEXT, REGISTRY)


def reversed_nodes(g: Graph) -> None:
    g.nodes.reverse()


def unknown_value(g: Graph) -> None:
    g.nodes[1].inputs = [Value("lost", TensorType(DType.FLOAT32, (3, 3)))]


def foreign_producer(g: Graph) -> None:
    g.nodes[0].outputs[0].producer = g.nodes[1]


def missing_producer(g: Graph) -> None:
    g.nodes[0].outputs[0].producer = None


def produced_input(g: Graph) -> None:
    g.inputs[0].producer = g.nodes[0]


def same_value_name(g: Graph) -> None:
    g.nodes[1].outputs[0].name = "a"


def constant_named_as_a_value(g: Graph) -> None:
    g.nodes[0].arg(1).name = "a"


def same_node_name(g: Graph) -> None:
    g.nodes[1].name = "add"


def output_names(g: Graph) -> None:
    g.output_names.append("z")


def output_of_nothing(g: Graph) -> None:
    g.outputs = [Value("lost", TensorType(DType.FLOAT32, (3, 3)))]


def wrong_dtype(g: Graph) -> None:
    g.nodes[0].outputs[0].type = TensorType(DType.INT64, (symbol("n"), 3))


def wrong_rank(g: Graph) -> None:
    g.nodes[1].outputs[0].type = TensorType(DType.FLOAT32, (3,))


def wrong_dim(g: Graph) -> None:
    g.nodes[1].outputs[0].type = TensorType(DType.FLOAT32, (4, symbol("n")))


def inputs_that_do_not_fit(g: Graph) -> None:
    data = np.zeros(4, np.float32)
    g.nodes[0].inputs[1] = Value("v", TensorType(DType.FLOAT32, (4,), data))


def extra_output(g: Graph) -> None:
    g.nodes[1].outputs.append(Value("c", TensorType(DType.FLOAT32, None), g.nodes[1]))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (reversed_nodes, "turn"),
        (unknown_value, "lost"),
        (foreign_producer, "add"),
        (missing_producer, "add"),
        (produced_input, "x"),
        (same_value_name, "'a'"),
        (constant_named_as_a_value, "'a'"),
        (same_node_name, "'add'"),
        (output_names, "1 output but other names"),
        (output_of_nothing, "lost"),
        (wrong_dtype, "add"),
        (wrong_rank, "turn"),
        (wrong_dim, "turn"),
        (inputs_that_do_not_fit, "add"),
        (extra_output, "turn"),
    ],
    ids=lambda item: getattr(item, "__name__", item),
)
def test_verifier_detects_damaged_graph(damage: Callable[[Graph], None], named: str) -> None:
    g = graph()
    verify(g)
    damage(g)
    with pytest.raises(PassError, match=named):
        verify(g)


def test_verifier_accepts_differing_symbolic_dims() -> None:
    g = graph()
    g.nodes[0].outputs[0].type = TensorType(DType.FLOAT32, (symbol("m"), 3))
    verify(g)


def test_constant_output_is_valid() -> None:
    g = graph()
    constant = g.nodes[0].arg(1)
    g.outputs.append(constant)
    g.output_names.append("w")
    verify(g)


def test_unknown_rank_is_valid() -> None:
    x = Value("x", TensorType(DType.FLOAT32, None))
    y = Value("y", TensorType(DType.FLOAT32, None))
    node = Node("n", REGISTRY.get("", "Transpose")(), [x], [y])
    verify(Graph("g", [x], [y], [node]))
