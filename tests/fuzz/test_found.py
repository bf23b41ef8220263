"""Regression tests: graphs that random testing once found to give wrong results."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.parse import parse_graph
from clrt.ops import REGISTRY
from clrt.passes.driver import infer_types
from clrt.runtime.opencl.devices import DeviceInfo
from tests.fuzz.test_graphs import check
from tests.harness import all_devices

FOUND = {
    "Relu of a negative number is 0, not -0": """
graph "g" (%x: float32[5]) {
  const %c: float32[] = 2.0
  %r: float32[5] = Relu(%x) @"relu"
  %i: float32[5] = Reciprocal(%r) @"reciprocal"
  %y: float32[5] = Min(%i, %c) @"min"
  return %y as "y"
}
""",
    "a constant as the columns of a product in groups": """
graph "g" (%w: float32[4,3,2,2], %b: float32[6]) {
  const %x: float32[2,4,3,3] = ...
  %y: float32[2,6,5,4] = ConvTranspose{dilations=[2, 1], group=2}(%x, %w, %b) @"node"
  return %y as "y"
}
""",
    "a normalised vector times itself": """
graph "g" (%x: float32[5]) {
  const %axes: int64[1] = [-1]
  const %epsilon: float32[] = 0.001
  %mean: float32[1] = ReduceMean(%x, %axes) @"mean"
  %d: float32[5] = Sub(%x, %mean) @"deviation"
  %s: float32[5] = Mul(%d, %d) @"square"
  %v: float32[1] = ReduceMean(%s, %axes) @"variance"
  %e: float32[1] = Add(%v, %epsilon) @"add"
  %r: float32[1] = Sqrt(%e) @"root"
  %n: float32[5] = Div(%d, %r) @"normalise"
  %y: float32[5] = Mul(%n, %n) @"twice"
  return %y as "y"
}
""",
    "weights times themselves": """
graph "g" (%q: float32[2,4,4], %k: float32[2,4,4]) {
  %t: float32[2,4,4] = Transpose{perm=[0, 2, 1]}(%k) @"transpose"
  %s: float32[2,4,4] = MatMul(%q, %t) @"scores"
  %w: float32[2,4,4] = Softmax(%s) @"softmax"
  %y: float32[2,4,4] = MatMul(%w, %w) @"product"
  return %y as "y"
}
""",
    "scores as their own mask": """
graph "g" (%q: float32[2,4,4], %k: float32[2,4,4], %v: float32[2,4,4]) {
  %t: float32[2,4,4] = Transpose{perm=[0, 2, 1]}(%k) @"transpose"
  %s: float32[2,4,4] = MatMul(%q, %t) @"scores"
  %m: float32[2,4,4] = Add(%s, %s) @"mask"
  %w: float32[2,4,4] = Softmax(%m) @"softmax"
  %y: float32[2,4,4] = MatMul(%w, %v) @"product"
  return %y as "y"
}
""",
    "a region without samples": """
graph "g" (%x: float32[2,3,6,7]) {
  const %r: float32[2,4] = [[1.4, -1.9, 0.9, -1.3], [0.5, 0.5, 3.0, 4.0]]
  const %i: int64[2] = [0, 1]
  %y: float32[2,3,2,3] = RoiAlign{mode="max", output_height=2, output_width=3}(%x, %r, %i) @"align"
  return %y as "y"
}
""",
    "a region of image -0.3": """
graph "g" (%x: float32[2,3,6,7]) {
  const %regions: float32[2,5] = [[-0.3, 0.0, 0.0, 3.0, 4.0], [1.9, 1.0, 1.0, 5.0, 5.0]]
  %y: float32[2,3,2,3] = MaxRoiPool{pooled_shape=[2, 3]}(%x, %regions) @"pool"
  return %y as "y"
}
""",
    "a branch in a loop over several types": """
graph "g" (%x: float32[3,8]) {
  %e: float32[3,8] = Elu(%x) @"elu"
  %y: int64[3,8] = Cast{to=int64}(%e) @"cast"
  return %y as "y"
}
""",
    "a logarithm as an integer": """
graph "g" (%x: float32[3,8]) {
  %a: float32[3,8] = Abs(%x) @"abs"
  %l: float32[3,8] = Log(%a) @"log"
  %y: int64[3,8] = Cast{to=int64}(%l) @"cast"
  return %y as "y"
}
""",
    "a constant matrix without rows": """
graph "g" (%x: float32[2,0]) {
  const %w: float32[0,3] = []
  %p: float32[2,3] = MatMul(%x, %w) @"product"
  %y: float32[2,3] = Relu(%p) @"relu"
  return %y as "y"
}
""",
}


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("name", FOUND)
def test_past_fuzz_failure_matches_reference(name: str, device: DeviceInfo) -> None:
    graph = parse_graph(FOUND[name], REGISTRY)
    infer_types(graph)
    rng = np.random.default_rng(1)
    shapes = {v.name: [int(d) for d in v.shape or ()] for v in graph.inputs}
    check(graph, {n: rng.uniform(-2, 2, s).astype(np.float32) for n, s in shapes.items()}, device)
