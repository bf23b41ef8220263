"""Weight compression: which constants, at which error, and the resulting graph."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import TensorType
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.block_quantization import round_blocks
from clrt.passes.compress_weights import (
    MIN_ELEMS,
    CompressWeights,
    most_changed,
    quantisable_products,
)
from clrt.passes.driver import run_pass
from tests.passes.helpers import graph_of, random_inputs

INPUTS = "%x: float32[B,96], %ids: int64[B], %image: float32[B,8,6,6]"
BODY = """
const %w: float32[96,64] = ...
const %v: float32[64,96] = ...
const %bias: float32[64] = ...
const %table: float32[64,64] = ...
const %kernel: float32[64,8,3,3] = ...
%p: float32[B,64] = MatMul(%x, %w) @"p"
%q: float32[B,64] = clrt.FusedMatMul{trans_b=1, steps=[Add(0, 1), Relu(2)]}(%x, %v, %bias) @"q"
%r: float32[B,64] = Gather(%table, %ids) @"r"
%c: float32[B,64,4,4] = Conv(%image, %kernel) @"c"
"""
OUTPUTS = "%p, %q, %r, %c"
# Of the largest element of a result.
BOUNDS = {DType.FLOAT16: 1e-3, DType.BFLOAT16: 1e-2, DType.INT8: 1e-2, DType.INT4: 0.15}


def _graph() -> Graph:
    return graph_of(BODY, INPUTS, OUTPUTS)


@pytest.mark.parametrize("to", BOUNDS, ids=str)
def test_compressed_weights_keep_results_within_bound(to: DType) -> None:
    graph, small = _graph(), _graph()
    shrink = CompressWeights(to)
    run_pass(small, shrink)
    feeds = random_inputs(graph)
    for before, after in zip(
        evaluate(graph, feeds).values(), evaluate(small, feeds).values(), strict=True
    ):
        assert np.abs(after - before).max() <= BOUNDS[to] * np.abs(before).max()
    shrunk = {"w", "v", "table"} if to.is_int else {"w", "v", "table", "kernel"}
    assert {s.name for s in shrink.shrunk.values()} == shrunk
    assert all(
        0 < s.error < BOUNDS[to] and s.nbytes < s.nbytes_before for s in shrink.shrunk.values()
    )
    whole = {v.name for v in small.constants() if v.dtype is DType.FLOAT32}
    assert not whole & shrunk
    again = CompressWeights(to)
    run_pass(small, again)
    assert not again.shrunk


@pytest.mark.parametrize(
    "line",
    [
        '%y: float32[64,B] = MatMul(%left, %x) @"y"',
        '%y: float32[64,64] = clrt.FusedMatMul{steps=[Add(0, 1)]}(%a, %b, %left) @"y"',
    ],
    ids=["the left side", "what is added"],
)
def test_matmul_left_and_added_constants_are_compressed(line: str) -> None:
    inputs = "%x: float32[64,B], %a: float32[64,3], %b: float32[3,64]"
    graph = graph_of(f"const %left: float32[64,64] = ...\n{line}", inputs, "%y")
    feeds = random_inputs(graph)
    (before,) = evaluate(graph, feeds).values()
    run_pass(graph, CompressWeights(DType.FLOAT16))
    assert not [v for v in graph.constants() if v.dtype is DType.FLOAT32]
    (after,) = evaluate(graph, feeds).values()
    assert np.abs(after - before).max() <= 1e-3 * np.abs(before).max()


def test_shared_weight_is_compressed_once() -> None:
    tied = BODY.replace("Gather(%table", "Gather(%v")
    graph = graph_of(
        tied.replace("float32[B,64] = Gather", "float32[B,96] = Gather"), INPUTS, OUTPUTS
    )
    run_pass(graph, CompressWeights(DType.FLOAT16))
    halves = [v for v in graph.constants() if v.dtype is DType.FLOAT16]
    assert len(halves) == 3


def test_weights_beyond_float16_range_stay_float32() -> None:
    graph = _graph()
    (weight,) = (v for v in graph.constants() if v.name == "w")
    assert weight.numbers is not None
    weight.type = TensorType(weight.dtype, weight.shape, weight.numbers * np.float32(1e6))
    shrink = CompressWeights(DType.FLOAT16)
    record = run_pass(graph, shrink)
    assert shrink.overflows == ["w"]
    assert ("MatMul 'p'", "'w' holds numbers past float16") in record.misses
    assert graph.nodes[0].arg(1) is weight
    whole = CompressWeights(DType.BFLOAT16)
    run_pass(graph, whole)
    assert not whole.overflows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%y: float32[B,64] = clrt.FusedMatMul{trans_a=1}(%t, %w)", "its A is transposed"),
        ("%y: float32[64] = MatMul(%u, %w)", "its A is a vector, or of unknown rank"),
        ("%y: float32[96,B] = Gather{axis=1}(%w, %ids)", "it gathers along another axis"),
        ("%y: float32[B,96,64] = Mul(%x3, %w)", "only products and Gather support integer weights"),
    ],
)
def test_unsuitable_weights_are_not_quantized_to_integers(line: str, reason: str) -> None:
    inputs = "%t: float32[96,B], %u: float32[96], %ids: int64[B], %x3: float32[B,96,64]"
    graph = graph_of(f'const %w: float32[96,64] = ...\n{line} @"n"', inputs)
    record = run_pass(graph, CompressWeights(DType.INT8))
    ((_, found),) = record.misses
    assert found.startswith(reason)
    assert quantisable_products(graph) == []


def test_small_constants_are_not_compressed() -> None:
    assert 96 * 64 > MIN_ELEMS > 64
    graph = _graph()
    run_pass(graph, CompressWeights(DType.FLOAT16))
    assert any(v.name == "bias" and v.dtype is DType.FLOAT32 for v in graph.constants())


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("k", [16, 40, 96])
def test_block_quantization_error_is_bounded_by_step(k: int, bits: int) -> None:
    weights = np.random.default_rng(k).standard_normal((7, k)).astype(np.float32)
    rounded = round_blocks(weights, 16, bits)
    assert rounded.levels.max() < 1 << bits
    steps = np.repeat(rounded.scales, 16, axis=1)[:, :k]
    # Four bits may cut off the ends of a block's range to fit the rest better.
    room = 0.5 if bits == 8 else 2.5
    assert np.all(np.abs(rounded.restored() - weights) <= room * steps + 1e-6)


def test_constant_and_zero_blocks_quantize_exactly() -> None:
    weights = np.zeros((3, 32), np.float32)
    weights[1] = 0.75
    weights[2, 16:] = -2.0
    np.testing.assert_allclose(round_blocks(weights, 16, 4).restored(), weights, rtol=1e-6)


def test_input_moments_halve_int4_product_error() -> None:
    """Inputs of low rank: quantization moves its error to the directions that they lack."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((512, 8)) @ rng.standard_normal((8, 96))
    weights = rng.standard_normal((32, 96)).astype(np.float32)
    wanted = x @ weights.T
    moments = (x.T @ x).astype(np.float32)
    plain = np.linalg.norm(x @ round_blocks(weights, 16, 4).restored().T - wanted)
    led = np.linalg.norm(x @ round_blocks(weights, 16, 4, moments).restored().T - wanted)
    assert led < 0.5 * plain


def test_most_changed_quarter_of_weights_keeps_int8() -> None:
    """Weight `c` changes its product most: the others have 16 distinct levels, exact in int4."""
    rng = np.random.default_rng(4)
    text = ""
    for name in "abcd":
        text += f"const %{name}: float32[64,64] = ...\n"
    text += """%y1: float32[B,64] = MatMul(%x, %a)
    %y2: float32[B,64] = MatMul(%y1, %b)
    %y3: float32[B,64] = MatMul(%y2, %c)
    %y: float32[B,64] = MatMul(%y3, %d)"""
    graph = graph_of(text, "%x: float32[B,64]")
    weights = {v.name: v for v in graph.constants()}
    for name, value in weights.items():
        data = np.tile(np.arange(16, dtype=np.float32) - 7, (64, 4)).T
        data = rng.standard_normal((64, 64)).astype(np.float32) if name == "c" else data
        value.type = TensorType(DType.FLOAT32, (64, 64), data)
    wider = most_changed(graph, {})
    assert [v.name for v in wider] == ["c"]
    shrink = CompressWeights(DType.INT4, wider)
    run_pass(graph, shrink)
    assert {s.name: s.dtype for s in shrink.shrunk.values()} == {
        "a": "int4", "b": "int4", "c": "int8", "d": "int4",
    }  # fmt: skip
