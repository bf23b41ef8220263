"""Round trips of the graph text format, and errors of its parser."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from clrt.errors import ClrtError, ModelError
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import TensorType
from clrt.ir.parse import parse_graph
from clrt.ir.text import elided, print_graph
from clrt.ir.verify import verify
from clrt.ops import REGISTRY

GRAPHS = {
    "inputs": """graph "main" (%ids: int64[batch,sequence], %mask: int64[?]) {
  return %ids as "a", %mask as "b"
}
""",
    "computed dims": """graph "g" (%x: float32[batch,floordiv(s, 2),max(s, 3)]) {
  %y: float32[batch*floordiv(s, 2)-1,2+s] = Identity(%x) @"n"
  return %y as "y"
}
""",
    "nested dims": """graph "g" (%x: float32[max(-1+min(1+s, 8), 0),s]) {
  const %d: int64[2] = [max(-1+min(1+s, 8), 0), s]
  return %x as "x", %d as "d"
}
""",
    "constants": """graph "g" () {
  const %f: float32[2,2] = [[1.5, -2.0], [3e-07, 1e+30]]
  const %i: int64[1] = [-1]
  const %b: bool[2] = [1, 0]
  const %s: float16[] = 0.5
  const %e: int32[0] = []
  %y: float32[2,2] = Add(%f, %s) @"n"
  %z: int64[1] = Identity(%i) @"m"
  %u: bool[2] = Identity(%b) @"o"
  %v: int32[0] = Identity(%e) @"p"
  return %y as "y"
}
""",
    "special floats": """graph "g" () {
  const %f: float32[3] = [inf, -inf, nan]
  return %f as "f"
}
""",
    "attributes": """graph "g" (%x: float32[2,3]) {
  %a: int32[2,3] = Cast{to=int32}(%x) @"cast"
  %b: float32[3,2] = Transpose{perm=[1, 0]}(%x) @"turn"
  %c: float32[2,3] = LeakyRelu{alpha=0.25}(%x) @"leaky"
  return %a as "a", %b as "b", %c as "c"
}
""",
    "left out": """graph "g" (%x: float32[2,3]) {
  const %hi: float32[] = 1.0
  %y: float32[2,3] = Clip(%x, _, %hi) @"clip"
  return %y as "y"
}
""",
    "several outputs": """graph "g" (%x: float32[4,3]) {
  %a: float32[2,3], %b: float32[2,3] = Split{num_outputs=2}(%x) @"split"
  return %a as "a", %b as "b"
}
""",
    "steps": """graph "g" (%x: float32[3]) {
  %y: int32[3] = clrt.Fused{steps=[Neg(0), Cast{to=int32}(1), clrt.Literal{value=2.0}()]}(%x) @"f"
  return %y as "y"
}
""",
    "names": """graph "a \\"b\\" é" (%/m/x:0: int32[3], %"a b": int32[3], %"%,()": int32[3]) {
  %a-b.c_1/d:1: int32[3] = Add(%/m/x:0, %"a b") @"on \\"two\\"\\nlines"
  %"=": int32[3] = Add(%a-b.c_1/d:1, %"%,()") @"x}"
  %"ends:": int32[3] = Neg(%"=") @"é"
  return %"ends:" as "out put"
}
""",
}


def round_trip(text: str) -> Graph:
    graph = parse_graph(text, REGISTRY)
    printed = print_graph(graph)
    assert print_graph(parse_graph(printed, REGISTRY)) == printed
    return graph


@pytest.mark.parametrize("text", GRAPHS.values(), ids=list(GRAPHS))
def test_graph_text_round_trips(text: str) -> None:
    round_trip(text)


def test_negative_zero_round_trips() -> None:
    text = """graph "g" (%n: int64[1]) {
  %z: float32[?] = ConstantOfShape{value=-0.0}(%n) @"zeros"
  %y: float32[?] = clrt.Fused{steps=[clrt.Literal{value=-0.0}(), Mul(0, 1)]}(%z) @"f"
  return %y as "y"
}
"""
    assert print_graph(round_trip(text)) == text


@pytest.mark.parametrize(
    "name", ["x", "/a/b:0", "a b", "ends:", "a:b", "%", '"', "é", "\\", "1", ""]
)
def test_value_names_round_trip(name: str) -> None:
    value = Value(name, TensorType(DType.FLOAT32, (2,)))
    graph = Graph("g", [value], [value], [], ["o"])
    again = parse_graph(print_graph(graph), REGISTRY)
    assert [v.name for v in again.inputs] == [name]


@pytest.mark.parametrize("dtype", list(DType))
def test_constants_of_every_dtype_round_trip(dtype: DType) -> None:
    info = ml_dtypes.finfo(dtype.numpy) if dtype.is_float else np.iinfo(np.int8)
    data = np.array([0, 1, 1]) if dtype is DType.BOOL else np.array([info.max, 0, 1])
    data = data.astype(dtype.numpy)
    if dtype in (DType.INT64, DType.UINT64):
        data[0] = np.iinfo(dtype.numpy).max
    value = Value("c", TensorType(dtype, (3,), data))
    again = parse_graph(print_graph(Graph("g", [], [value])), REGISTRY).outputs[0].numbers
    assert again is not None and DType.of(again.dtype) is dtype
    if dtype.is_float:
        again, data = again.astype(np.float64), data.astype(np.float64)
    np.testing.assert_array_equal(again, data)


def test_subgraphs_and_sequence_types_round_trip() -> None:
    text = """graph "g" (%c: bool[], %s: sequence(float32[n,2]), %x: float32[2]) {
  %y: float32[2] = If{then_branch=graph "then" (%x2: float32[2]) {
      const %k: float32[2] = [1.0, 2.0]
      %a: float32[2] = Add(%x2, %k) @"add"
      return %a as "0"
    }, else_branch=graph "else" (%x3: float32[2]) {
      return %x3 as "0"
    }, captures=1}(%c, %x) @"if"
  return %y as "y", %s as "s"
}
"""
    assert print_graph(parse_graph(text, REGISTRY)) == text


def test_symbolic_constants_round_trip() -> None:
    data = np.empty(2, object)
    data[:] = [symbol("batch") * 2, 3]
    value = Value("c", TensorType(DType.INT64, (2,), data))
    again = parse_graph(print_graph(Graph("g", [], [value])), REGISTRY).outputs[0].type.data
    assert again is not None
    assert [str(d) for d in again] == ["2*batch", "3"]


def test_numeric_constants_after_symbolic_ones_round_trip() -> None:
    round_trip("""graph "g" () {
  const %a: int64[1] = [batch]
  const %b: int64[] = batch
  const %c: float32[] = 1.0
  const %"d d": float32[] = 2.0
  return %a as "a", %b as "b", %c as "c", %"d d" as "d"
}
""")


def test_element_limit_elides_constants() -> None:
    value = Value("c", TensorType(DType.INT64, (3,), np.arange(3)))
    graph = Graph("g", [], [value])
    assert "= ..." in print_graph(graph, elided(2))
    assert "= [0, 1, 2]" in print_graph(graph, elided(3))


def test_elided_constants_are_seeded_by_name() -> None:
    text = 'graph "g" () {{\n  const %{}: float32[4,5] = ...\n  return %{} as "o"\n}}\n'
    first, again, other = (
        parse_graph(text.format(n, n), REGISTRY).outputs[0].numbers for n in ("a", "a", "b")
    )
    assert first is not None and again is not None and other is not None
    np.testing.assert_array_equal(first, again)
    assert first.std() > 0 and not np.array_equal(first, other)


def test_parsed_graphs_pass_verification() -> None:
    verify(round_trip(GRAPHS["several outputs"]))
    verify(round_trip(GRAPHS["attributes"]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "graph",
        'graph "g" (',
        'graph "g" (%x: float32[2]) {',
        'graph "g" (%x: float32[2]) { return %y }',
        'graph "g" (%x: float99[2]) { return %x }',
        'graph "g" (%x: float32[2 2]) { return %x }',
        'graph "g" (%x: float32[2], %x: float32[2]) { return %x }',
        'graph "g" (%x: float32[2]) { %y: float32[2] = NoSuchOp(%x) return %y }',
        'graph "g" (%x: float32[2]) { %y: float32[2] = Neg{nothing=1}(%x) return %y }',
        'graph "g" (%x: float32[2]) { %y: float32[2] = Transpose{perm=[}(%x) return %y }',
        'graph "g" () { const %c: float32[2] = [1.0, 2.0, 3.0] return %c }',
        'graph "g" () { const %c: int64[2] = [1, & return %c }',
        'graph "g" () { const %c: float32[n] = ... return %c }',
    ],
)
def test_damaged_graph_text_is_refused(text: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_graph(text, REGISTRY)
    assert isinstance(caught.value, ClrtError)
