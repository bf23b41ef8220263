"""Rewriting of decoders with past key/value inputs to a paged key/value cache."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.kv_cache_sizes import MAX_SLABS, PAGE_TOKENS
from clrt.models.decoders.io_names import DecoderNames, PastPair
from clrt.models.decoders.paging.rewrite import page_decoder
from clrt.ops.reference_interpreter import evaluate
from tests.passes.helpers import graph_of

NAMES = DecoderNames(
    "tokens", "logits", (PastPair("past_k", "past_v", "present_k", "present_v"),), "mask", "places"
)
INPUTS = """%tokens: int64[1,tokens], %mask: int64[1,past+tokens], %places: int64[1,tokens],
    %past_k: float32[1,2,past,4], %past_v: float32[1,2,past,4]"""
OUTPUTS = "%logits, %present_k, %present_v"
CONTEXT, TEXT = 64, np.random.default_rng(0).integers(0, 9, 12)


def matrix(seed: int, rows: int, columns: int) -> str:
    return str(np.random.default_rng(seed).normal(size=(rows, columns)).round(2).tolist())


SIZES = """const %zero: int64[] = 0
const %one: int64[] = 1
const %ax: int64[1] = [1]
const %n: int64[] = tokens
const %p: int64[] = past
const %all: int64[] = past+tokens
const %low: float32[] = -inf
const %none: float32[] = 0.0
%count: int64[tokens] = Range(%zero, %n, %one)
%own: int64[tokens] = Add(%count, %p)
%column: int64[tokens,1] = Unsqueeze(%own, %ax)
%keys: int64[past+tokens] = Range(%zero, %all, %one)
%behind: int64[tokens,past+tokens] = Sub(%column, %keys)
"""
CAUSAL = "%m: bool[tokens,past+tokens] = GreaterOrEqual(%behind, %zero)\n"
WINDOW = """const %width: int64[] = 3
%near: bool[tokens,past+tokens] = LessOrEqual(%behind, %width)
%seen: bool[tokens,past+tokens] = GreaterOrEqual(%behind, %zero)
%m: bool[tokens,past+tokens] = And(%near, %seen)
"""
ALIBI = """const %slopes: float32[2,1,1] = [[[-0.5]], [[-0.25]]]
%far: float32[tokens,past+tokens] = Cast{to=float32}(%behind)
%price: float32[2,tokens,past+tokens] = Mul(%far, %slopes)
%seen: bool[tokens,past+tokens] = GreaterOrEqual(%behind, %zero)
%m: float32[2,tokens,past+tokens] = Where(%seen, %price, %low)
"""
EMBED = f"""const %table: float32[9,8] = {matrix(1, 9, 8)}
const %head: float32[8,9] = {matrix(2, 8, 9)}
%x: float32[1,tokens,8] = Gather(%table, %tokens)
"""
PLACES = f"""const %where: float32[40,8] = {matrix(3, 40, 8)}
%add: float32[tokens,8] = Gather(%where, %own)
%q: float32[1,tokens,8] = Add(%x, %add)
"""
SAME = "%q: float32[1,tokens,8] = Identity(%x)\n"
ATTEND = """%y: float32[1,tokens,8], %present_k: float32[1,2,past+tokens,4],
  %present_v: float32[1,2,past+tokens,4] =
  Attention{q_num_heads=2, kv_num_heads=2}(%q, %x, %q, %m, %past_k, %past_v)
"""
PROJECT = "%logits: float32[1,tokens,9] = MatMul(%y, %head)"


def decoder(text: str) -> Graph:
    return graph_of(re.sub(r",\n  |=\n  ", lambda m: m.group()[0] + " ", text), INPUTS, OUTPUTS)


def expected(graph: Graph) -> Any:
    """The logits of all of the text."""
    text = TEXT[None]
    empty = np.zeros((1, 2, 0, 4), np.float32)
    ones, places = np.ones_like(text), np.arange(len(TEXT))[None]
    feeds = dict(tokens=text, mask=ones, places=places, past_k=empty, past_v=empty)
    return evaluate(graph, feeds)["logits"][0]


def found(graph: Graph) -> Any:
    """The same, in steps that a token of another text begins, and one of no text ends."""
    pitch = next(v for v in graph.inputs if v.name == "slab0").shape
    assert pitch is not None
    slabs = {
        f"slab{s}": np.zeros((2 - 2 * bool(s), int(pitch[1])), np.float32) for s in range(MAX_SLABS)
    }
    table, logits, done = np.array([[1], [0]], np.int32), [], 0
    for count in (5, 1, 4, 1, 1):
        parts = [(TEXT[k], 1, k) for k in range(done, done + count)]
        step = np.array([(3, 0, done), *parts, (0, -1, 0)], np.int32)
        feeds = {"step": step, "table": table, "rows": np.arange(1, count + 1, dtype=np.int32)}
        none = {"history": np.full((count, 1), -1, np.int32), **slabs}
        none["settings"] = np.zeros((count, 8), np.float32)
        none["limits"] = np.zeros((count, 4), np.int32)
        none["allowed"] = np.full((count, 1), -1 % 2**32, np.uint32)
        none["bias_ids"] = np.full((count, 1), -1, np.int32)
        none["bias_values"] = np.zeros((count, 1), np.float32)
        results = evaluate(graph, {**feeds, **none})
        slabs = {f"slab{s}": results[f"kept{s}"] for s in range(MAX_SLABS)}
        logits.append(results["logits"])
        done += count
    return np.concatenate(logits)


@pytest.mark.parametrize("mask", [CAUSAL, WINDOW, ALIBI], ids=["causal", "window", "alibi"])
@pytest.mark.parametrize("places", [SAME, PLACES], ids=["nowhere", "places"])
def test_paged_decoder_matches_logits_of_original(mask: str, places: str) -> None:
    text = SIZES + mask + EMBED + places + ATTEND + PROJECT
    wanted = expected(decoder(text))
    paged = page_decoder(decoder(text), NAMES, DType.FLOAT32, CONTEXT)
    assert (paged.layers, paged.kv_heads, paged.head_size) == (1, 2, 4)
    assert (paged.hidden, paged.vocabulary) == (8, 9)
    assert paged.places == (40 if places == PLACES else None)
    slab = next(v for v in paged.graph.inputs if v.name == "slab0")
    assert slab.shape is not None and slab.shape[1] == 2 * 2 * PAGE_TOKENS * 4
    np.testing.assert_allclose(found(paged.graph), wanted, 1e-5, 1e-5)


SQUARE = """%square: int64[2] = Concat{axis=0}(%side, %side)
%ones: float32[past+tokens,past+tokens] = ConstantOfShape{value=1.0}(%square)
%lower: float32[past+tokens,past+tokens] = Trilu{upper=0}(%ones)
%last: float32[tokens,past+tokens] = Slice(%lower, %start, %end, %rows)
%m: bool[tokens,past+tokens] = Cast{to=bool}(%last)
"""


def test_paged_decoder_limits_positions_of_square_mask() -> None:
    """The square mask is not computed for more tokens than the cache can hold."""
    constants = """const %side: int64[1] = [past+tokens]
    const %start: int64[1] = [past]
    const %end: int64[1] = [past+tokens]
    const %rows: int64[1] = [0]
    """
    text = SIZES + constants + SQUARE + EMBED + SAME + ATTEND + PROJECT
    for context, places in ((64, None), (1 << 20, 4096)):
        paged = page_decoder(decoder(text), NAMES, DType.FLOAT32, context)
        assert paged.places == places
    np.testing.assert_allclose(found(paged.graph), expected(decoder(text)), 1e-5, 1e-5)


HIDES_NOTHING = "%m: bool[tokens,past+tokens] = Equal(%behind, %behind)\n"
ODD = """%far: float32[tokens,past+tokens] = Cast{to=float32}(%behind)
%near: float32[tokens,past+tokens] = Sin(%far)
%seen: bool[tokens,past+tokens] = GreaterOrEqual(%behind, %zero)
%m: float32[tokens,past+tokens] = Where(%seen, %near, %low)
"""
OF_DATA = """%some: int64[tokens,past+tokens] = Add(%behind, %tokens)
%m: bool[tokens,past+tokens] = GreaterOrEqual(%some, %zero)
"""
REFUSED = {
    "CumSum 'q': clrt cannot tell whether it mixes tokens": (
        CAUSAL, "%q: float32[1,tokens,8] = CumSum(%x, %one)\n", ATTEND,
    ),
    "Softmax 'q': it operates along the token axis": (
        CAUSAL, "%q: float32[1,tokens,8] = Softmax{axis=1}(%x)\n", ATTEND,
    ),
    "Mul 'q': 'f' depends on the number of past tokens": (
        CAUSAL,
        "%f: float32[] = Cast{to=float32}(%p) %q: float32[1,tokens,8] = Mul(%x, %f)\n",
        ATTEND,
    ),
    "or on the order of tokens in a step": (
        CAUSAL,
        """%f: float32[tokens] = Cast{to=float32}(%count)
        %f2: float32[tokens,1] = Unsqueeze(%f, %ax)
        %q: float32[1,tokens,8] = Mul(%x, %f2)\n""",
        ATTEND,
    ),
    "its mask is neither causal nor a sliding window": (HIDES_NOTHING, SAME, ATTEND),
    "adds something other than a mask or ALiBi to scores": (ODD, SAME, ATTEND),
    "'m' depends on data": (OF_DATA, SAME, ATTEND),
    "attention over 'past_k' is not recognised": (
        CAUSAL, SAME, ATTEND.replace("%past_k, %past_v)", "%past_v, %past_k)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_unpageable_decoder_is_refused_with_reason(message: str) -> None:
    mask, places, attend = REFUSED[message]
    graph = decoder(SIZES + mask + EMBED + places + attend + PROJECT)
    with pytest.raises(UnsupportedError) as caught:
        page_decoder(graph, NAMES, DType.FLOAT32, CONTEXT)
    assert message in str(caught.value)
    assert "load the file by clrt.load" in str(caught.value)
