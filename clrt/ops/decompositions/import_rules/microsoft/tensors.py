"""Generic tensor ops of com.microsoft, composed of ONNX ops."""

from __future__ import annotations

import math

import numpy as np

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "com.microsoft"
# Maximum tokens per n-gram; each adds four nodes.
_MAX_GRAM_TOKENS = 1000


@register_import_decomposition(_DOMAIN, "SampleOp")
def _sample_op(body: ImportBuilder) -> None:
    body.outputs = [body("Identity", body.inputs[0])]


@register_import_decomposition(_DOMAIN, "ExpandDims")
def _expand_dims(body: ImportBuilder) -> None:
    axis = body("Reshape", body("Cast", body.inputs[1], to=7), body.ints(1))
    body.outputs = [body("Unsqueeze", body.inputs[0], axis)]


@register_import_decomposition(_DOMAIN, "CDist")
def _cdist(body: ImportBuilder) -> None:
    """Decomposes CDist: the distance of each row of input 0 to each row of input 1.

    Attribute `metric` selects the Euclidean distance, or its square (the default).
    """
    metric = body.attrs.get("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise UnsupportedError(f"metric '{metric}'; clrt has euclidean and sqeuclidean")
    squares = body("SquaredDistance", *body.inputs[:2], domain="clrt")
    body.outputs = [body("Sqrt", squares) if metric == "euclidean" else squares]


@register_import_decomposition(_DOMAIN, "UnfoldTensor")
def _unfold_tensor(body: ImportBuilder) -> None:
    """Decomposes UnfoldTensor: windows of an axis, whose elements form a new last axis.

    Windows have `size` elements along axis `dim`, and start every `step` elements.
    """
    rank = body.rank_of()
    axis, size = int(body.attrs.get("dim", -1)) % max(rank, 1), int(body.attrs["size"])
    if size < 1:
        raise ModelError(f"its size is {size}; expected 1 or more.")
    step = body.numbers(int(body.attrs.get("step", 1)))
    length = body("Squeeze", body.dim_of(body.inputs[0], axis), body.ints(0))
    end = body("Sub", length, body.numbers(size - 1))
    starts = body("Unsqueeze", body("Range", body.numbers(0), end, step), body.ints(1))
    ahead = body("Range", body.numbers(0), body.numbers(size), body.numbers(1))
    places = body("Add", starts, ahead)
    y = body("Gather", body.inputs[0], places, axis=axis)
    order = [d for d in range(rank + 1) if d != axis + 1]
    body.outputs = [body("Transpose", y, perm=[*order, axis + 1])]


@register_import_decomposition(_DOMAIN, "Trilu")
def _trilu(body: ImportBuilder) -> None:
    body.outputs = [body("Trilu", *body.inputs, upper=int(body.attrs.get("upper", 1)))]


@register_import_decomposition(_DOMAIN, "GatherND")
def _gather_nd(body: ImportBuilder) -> None:
    body.outputs = [body("GatherND", body.inputs[0], body("Cast", body.inputs[1], to=7))]


@register_import_decomposition(_DOMAIN, "GridSample")
def _grid_sample(body: ImportBuilder) -> None:
    """Decomposes com.microsoft's GridSample into ONNX's GridSample, with its names of modes."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}
    name = body.attrs.get("mode", "bilinear")
    attrs = {**body.attrs, "mode": mode.get(name, name)}
    body.outputs = [body("GridSample", *body.inputs, **attrs)]


@register_import_decomposition(_DOMAIN, "Pad")
def _pad(body: ImportBuilder) -> None:
    """Decomposes com.microsoft's Pad into ONNX's Pad.

    Unlike in ONNX, the pads may have shape `[1, n]`, and the padding value shape `[1]`.
    """
    pads = body("Reshape", body.inputs[1], body.ints(-1))
    value = body("Reshape", body.inputs[2], body.ints()) if body.has(2) else None
    mode = body.attrs.get("mode", "constant")
    body.outputs = [body("Pad", body.inputs[0], pads, value, mode=mode)]


@register_import_decomposition(_DOMAIN, "Range")
def _range(body: ImportBuilder) -> None:
    """Decomposes com.microsoft's Range into ONNX's Range.

    Unlike in ONNX, inputs may have shape `[1]`, and the step may be omitted, for 1.
    """
    ends = [body("Reshape", x, body.ints()) for x in body.inputs[:2]]
    step = body("Reshape", body.inputs[2], body.ints()) if body.has(2) else body.number(1)
    body.outputs = [body("Range", *ends, step)]


@register_import_decomposition(_DOMAIN, "Unique")
def _unique(body: ImportBuilder) -> None:
    """Decomposes com.microsoft's Unique: the distinct elements of a tensor.

    Outputs: distinct elements in order of first occurrence; for each element its index among the
    distinct ones; count of each distinct element.
    """
    y, _, which, counts = body.node("Unique", body.inputs, 4, sorted=0)
    body.outputs = [y, which, counts]


@register_import_decomposition(_DOMAIN, "NGramRepeatBlock")
def _ngram_repeat_block(body: ImportBuilder) -> None:
    """Decomposes NGramRepeatBlock: blocks next tokens that would repeat an n-gram of a sequence.

    Inputs: token ids `[batch, tokens]`; scores of next tokens `[batch, vocabulary]`, which become
    -inf for blocked tokens.
    """
    ids, scores = body.inputs
    size, last = body.count_of("ngram_size", most=_MAX_GRAM_TOKENS), body.ints(1)
    end = body.ints(1 << 62)

    def part(start: int, stop: int) -> Value:
        return body("Slice", ids, body.ints(start), body.ints(stop) if stop else end, last)

    tokens = part(size - 1, 0)
    # A token is blocked if the tokens before it in its n-gram equal the last tokens of the row.
    blocked = body("Equal", tokens, tokens)
    for position in range(size - 1):
        ends = part(position, position - size + 1), part(position - size + 1, position - size + 2)
        blocked = body("And", blocked, body("Equal", *ends))
    none = body("Expand", body.constant(np.array(0, np.int32)), body("Shape", scores))
    updates = body("Cast", blocked, to=6)
    mask = body("ScatterElements", none, tokens, updates, axis=1, reduction="max")
    lowest = body.number(-math.inf, 1)
    body.outputs = [body("Where", body("Cast", mask, to=9), lowest, scores)]


@register_import_decomposition(_DOMAIN, "WordConvEmbedding")
def _word_conv_embedding(body: ImportBuilder) -> None:
    """Decomposes WordConvEmbedding: a vector per word, by a convolution over its characters.

    Element f is the maximum over positions of tanh(convolution with filter f). Inputs: character
    ids `[words, positions]`, padded with 0; filters `[filters, 1, window, size]`; bias; table of
    character vectors `[characters, size]`. A word without characters yields zeros.
    """
    ids, weights, bias, table = body.inputs
    letters = body("Gather", table, ids)
    y = body("Conv", body("Unsqueeze", letters, body.ints(1)), weights, bias)
    y = body("Tanh", body("Squeeze", y, body.ints(3)))
    # Windows past the end of the word are ignored, except the first one.
    is_character = body("Greater", ids, body.constant(np.array(0, np.int32)))
    count = body("ReduceSum", body("Cast", is_character, to=7), body.ints(1))
    positions = body.count_up(body.dim_of(y, 2))
    last = body("Max", body("Sub", count, body.dim_of(weights, 2)), body.ints(0))
    ended = body("Unsqueeze", body("Greater", positions, last), body.ints(1))
    y = body("Where", ended, body.floats(-1e12), y)
    largest = body("ReduceMax", y, body.ints(2), keepdims=0)
    first = body.slice(is_character, 0, 1, 1)
    body.outputs = [body("Where", first, largest, body.floats(0))]
