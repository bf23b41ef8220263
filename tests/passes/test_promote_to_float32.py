"""16-bit floats: computed in float32, cast at model inputs and outputs, weights kept 16-bit."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.demote_exact_weights import DemoteExactWeights
from clrt.passes.device_pipeline import prepare
from clrt.passes.driver import run_pass
from clrt.passes.pipeline import optimize
from clrt.passes.promote_to_float32 import PromoteToFloat32
from tests.passes.helpers import check, graph_of

LAYER = """const %w: {t}[64,64] = ...
const %g: {t}[64] = ...
%p: {t}[B,64] = MatMul(%x, %w)
%r: {t}[B,64] = Add(%p, %x)
%y: {t}[B,64] = LayerNormalization(%r, %g)"""


def test_widening_inserts_casts_at_inputs_and_outputs_only() -> None:
    graph = graph_of(LAYER.format(t="float16"), "%x: float16[B,64]")
    before = evaluate(graph, {"x": _x()})["y"]
    run_pass(graph, PromoteToFloat32())
    ops = [n.op.name for n in graph.nodes]
    assert ops.count("Cast") == 3  # x once for each of its users, and y
    inner = [v for n in graph.nodes if n.op.name != "Cast" for v in n.outputs]
    assert all(v.dtype is DType.FLOAT32 for v in inner)
    after = evaluate(graph, {"x": _x()})["y"]
    assert after.dtype == np.float16
    np.testing.assert_allclose(after, before, rtol=0, atol=4e-3)


CPU = DeviceCaps("p", "cpu", "v", "1", "cpu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_matmul_of_widened_model_reads_16_bit_weights(dtype: str) -> None:
    graph = graph_of(LAYER.format(t=dtype), f"%x: {dtype}[B,64]")
    weight = next(v for v in graph.constants() if v.name == "w").numbers
    optimize(graph)
    prepare(graph, CPU)
    (product,) = (n for n in graph.nodes if n.op.name == "FusedMatMul")
    assert product.arg(1).dtype.itemsize == 2 and product.arg(0).dtype is DType.FLOAT32
    assert isinstance(product.op, FusedMatMul) and str(product.op.a_dtype) == dtype
    found = product.arg(1).numbers
    assert weight is not None and found is not None
    np.testing.assert_array_equal(found.astype(np.float32), weight.astype(np.float32))


def test_weight_inexact_in_float16_is_not_narrowed() -> None:
    graph = graph_of(LAYER.format(t="float32"), "%x: float32[B,64]")
    optimize(graph)
    assert not run_pass(graph, DemoteExactWeights()).hits


def test_data_movement_ops_are_not_widened() -> None:
    body = "%y: float16[64,B] = Transpose{perm=[1, 0]}(%x)"
    check([PromoteToFloat32()], "%x: float16[B,64]", body, body)


def test_explicit_float16_cast_before_integer_cast_is_kept() -> None:
    body = """%h: float16[B] = Cast{to=float16}(%x)
    %y: int32[B] = Cast{to=int32}(%h)"""
    check([PromoteToFloat32()], "%x: float32[B]", body, body)


def _x() -> Array:
    return np.random.default_rng(1).standard_normal((3, 64)).astype(np.float16)


def test_narrow_weights_with_float32_inputs_are_not_widened() -> None:
    """float16 and bfloat16 weights stay as they are if the activations are float32 already."""
    body = """const %w: bfloat16[8,4] = ...
    const %e: float16[64,4,8] = ...
    %p: float32[B,8] = clrt.FusedMatMul{trans_b=1}(%x, %w)
    %y: float32[B,4] = clrt.RoutedMatMul(%p, %e, %chosen)"""
    check([PromoteToFloat32()], "%x: float32[B,4], %chosen: int64[B,1]", body, body)
