"""Prints the plan of a model: `python -m tests.unit.ops.planned_models NAME`.

A process of its own shows which plan comes of importing only the modules that the model needs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from onnx import parser

from clrt.ir.dims import Expr
from clrt.ir.graph import Graph
from clrt.kernels.tuning_records import record_for
from clrt.models.onnx.importer import import_model
from clrt.passes.device_pipeline import optimize_for
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import DeviceStep
from tests.plans import CPU, described

_HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'

# A residual block with batch normalization, and the ends of a classifier.
_RESNET = """
g (float[n, 3, 16, 16] image) => (float[n, 5] y)
{
  w0_dims = Constant<value = int64[4] {8, 3, 3, 3}>()
  w0 = ConstantOfShape<value = float[1] {0.25}>(w0_dims)
  w1_dims = Constant<value = int64[4] {8, 8, 3, 3}>()
  w1 = ConstantOfShape<value = float[1] {0.5}>(w1_dims)
  w2_dims = Constant<value = int64[2] {5, 8}>()
  w2 = ConstantOfShape<value = float[1] {0.75}>(w2_dims)
  b_dims = Constant<value = int64[1] {8}>()
  b = ConstantOfShape<value = float[1] {1.5}>(b_dims)
  c0 = Conv<pads = [1, 1, 1, 1]>(image, w0)
  n0 = BatchNormalization(c0, b, b, b, b)
  r0 = Relu(n0)
  p0 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r0)
  c1 = Conv<pads = [1, 1, 1, 1]>(p0, w1)
  n1 = BatchNormalization(c1, b, b, b, b)
  s1 = Add(n1, p0)
  r1 = Relu(s1)
  mean = GlobalAveragePool(r1)
  flat = Flatten(mean)
  g1 = Gemm<transB = 1>(flat, w2)
  y = Softmax(g1)
}
"""
_QUANTIZED = """
g (float[n, 32] x) => (float[n, 8] y)
{
  w_dims = Constant<value = int64[2] {32, 48}>()
  w = ConstantOfShape<value = int8[1] {5}>(w_dims)
  v_dims = Constant<value = int64[2] {48, 8}>()
  v = ConstantOfShape<value = int8[1] {3}>(v_dims)
  g_dims = Constant<value = int64[1] {48}>()
  g = ConstantOfShape<value = float[1] {1.5}>(g_dims)
  scale = Constant<value = float {0.125}>()
  zero = Constant<value = uint8 {128}>()
  center = Constant<value = int8 {0}>()
  q, s, o = DynamicQuantizeLinear(x)
  m = MatMulInteger(q, w, o)
  c = Cast<to = 1>(m)
  t = Mul(c, s)
  h = LayerNormalization(t, g)
  a = QuantizeLinear(h, scale, zero)
  d = DequantizeLinear(a, scale, zero)
  e = DequantizeLinear(v, scale, center)
  y = MatMul(d, e)
}
"""
# Ops that decompositions replace when a graph is planned.
_LOWERED = """
g (float[n, 4] x, float[4, 4] w, bool b) => (float[n, n] y, float[n, 4] z, float[k, 4] some)
{
  e = Einsum<equation = "ij,jk->ik">(x, w)
  m = Max(x, e, x)
  t = Transpose<perm = [1, 0]>(m)
  y = MatMul(m, t)
  truth = Constant<value = bool {1}>()
  count = Constant<value = int64 {3}>()
  v = Loop(count, truth, x) <
    body = step (int64 i, bool c, float[n, 4] a) => (bool d, float[n, 4] f) {
      d = Identity(c)
      f = MatMul(a, w)
    }
  >
  z = If(b) <then_branch = yes () => (float[n, 4] p) { p = Relu(v) },
             else_branch = no () => (float[n, 4] p) { p = Neg(v) }>
  which = Constant<value = bool[2] {1, 0}>()
  some = Compress<axis = 0>(z, which)
}
"""


def _from_text(text: str) -> Callable[[], Graph]:
    return lambda: import_model(parser.parse_model(_HEAD + text))


def _minilm() -> Graph:
    from tests.models.fixtures import load_minilm
    from tests.models.oracle import model_folder

    return import_model(load_minilm("minilm_dynamo18", model_folder()))


def _gguf_decoder() -> Graph:
    from clrt.formats.gguf.file import read_gguf
    from clrt.models.decoders.gguf import read_gguf_decoder
    from clrt.models.decoders.graph import decoder_graph
    from tests.generation.gguf_decoders import case_file

    folder = Path(tempfile.mkdtemp())
    return decoder_graph(*read_gguf_decoder(read_gguf(case_file("Q4_K", folder))))


MODELS = {
    "minilm": _minilm,
    "resnet": _from_text(_RESNET),
    "quantized": _from_text(_QUANTIZED),
    "lowered": _from_text(_LOWERED),
    "gguf decoder": _gguf_decoder,
}


def planned(name: str) -> list[str]:
    """Returns a line per step of a model's plan: its nodes, and a digest of its launches."""
    lines = []
    for caps in (CPU, replace(CPU, kind="gpu")):
        graph = MODELS[name]()
        optimize_for(graph, caps, 2)
        dims = (d for v in graph.inputs for d in v.shape or () if isinstance(d, Expr))
        static = specialise(graph, {s: 2 for d in dims for s in d.symbols})
        plan = make_plan(static, caps, lambda kernel, caps=caps: record_for(kernel, caps))
        lines += [str(s.nodes) for s in plan.steps if not isinstance(s, DeviceStep)]
        for step in described(plan):
            digest = sha256(repr(step).encode()).hexdigest()
            lines.append(f"{caps.kind} {step[0]} {[op.name for op in step[1]]} {digest}")
    return lines


if __name__ == "__main__":
    print("\n".join(planned(sys.argv[1])))
    assert "clrt.ops.text.tokenizer" not in sys.modules  # no model needs it
