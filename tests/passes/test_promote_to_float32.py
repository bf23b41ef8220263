"""Floats of 16 bits: computed in float32, rounded at the model's ends, stored as they were."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.demote_exact_weights import NarrowWeights
from clrt.passes.device_pipeline import prepare
from clrt.passes.driver import run_pass
from clrt.passes.pipeline import optimize
from clrt.passes.promote_to_float32 import WidenFloats
from tests.passes.helpers import check, graph_of

LAYER = """const %w: {t}[64,64] = ...
const %g: {t}[64] = ...
%p: {t}[B,64] = MatMul(%x, %w)
%r: {t}[B,64] = Add(%p, %x)
%y: {t}[B,64] = LayerNormalization(%r, %g)"""


def test_casts_stand_at_the_ends_only() -> None:
    graph = graph_of(LAYER.format(t="float16"), "%x: float16[B,64]")
    before = evaluate(graph, {"x": _x()})["y"]
    run_pass(graph, WidenFloats())
    ops = [n.op.name for n in graph.nodes]
    assert ops.count("Cast") == 3  # x once for each of its users, and y
    inner = [v for n in graph.nodes if n.op.name != "Cast" for v in n.outputs]
    assert all(v.dtype is DType.FLOAT32 for v in inner)
    after = evaluate(graph, {"x": _x()})["y"]
    assert after.dtype == np.float16
    np.testing.assert_allclose(after, before, rtol=0, atol=4e-3)


CPU = DeviceCaps("p", "cpu", "v", "1", "cpu")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_products_read_the_weights_as_they_were(dtype: str) -> None:
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


def test_a_weight_that_would_lose_stays() -> None:
    graph = graph_of(LAYER.format(t="float32"), "%x: float32[B,64]")
    optimize(graph)
    assert not run_pass(graph, NarrowWeights()).hits


def test_what_only_moves_elements_stays() -> None:
    body = "%y: float16[64,B] = Transpose{perm=[1, 0]}(%x)"
    check([WidenFloats()], "%x: float16[B,64]", body, body)


def test_rounding_that_the_model_asks_for_before_integers_stays() -> None:
    body = """%h: float16[B] = Cast{to=float16}(%x)
    %y: int32[B] = Cast{to=int32}(%h)"""
    check([WidenFloats()], "%x: float32[B]", body, body)


def _x() -> Array:
    return np.random.default_rng(1).standard_normal((3, 64)).astype(np.float16)


def test_weights_that_kernels_read_as_they_lie_stay() -> None:
    """Of a model whose activations are float32."""
    body = """const %w: bfloat16[8,4] = ...
    const %e: float16[64,4,8] = ...
    %p: float32[B,8] = clrt.FusedMatMul{trans_b=1}(%x, %w)
    %y: float32[B,4] = clrt.RoutedMatMul(%p, %e, %chosen)"""
    check([WidenFloats()], "%x: float32[B,4], %chosen: int64[B,1]", body, body)
