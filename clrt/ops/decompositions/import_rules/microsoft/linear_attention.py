"""LinearAttention of com.microsoft: a Scan over the tokens."""

from __future__ import annotations

from collections.abc import Callable

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_RULES = ("linear", "gated", "delta", "gated_delta")


@register_import_decomposition("com.microsoft", "LinearAttention")
def _linear_attention(body: ImportBuilder) -> None:
    """Decomposes LinearAttention: each head has a matrix as state, which every token updates.

    A token adds the product of its key and value to the state, and multiplies its query by the new
    state. Two parts depend on `update_rule`: "gated" rules first multiply the state by a decay;
    "delta" rules add only the difference to the stored value, times a learning rate.

    Inputs: queries, keys and values, each `[batch, tokens, heads * size]`; initial state `[batch,
    heads, key_size, value_size]`; logarithm of the decay; learning rate.

    Decay and rate are per token and head; the decay may also be per row of the state.
    """
    rule = body.attrs.get("update_rule", "gated_delta")
    if rule not in _RULES:
        raise UnsupportedError(f"update_rule '{rule}'")
    if body.attrs.get("state_window", 0):
        raise UnsupportedError("a window of states")
    heads, groups = body.count_of("q_num_heads"), body.count_of("kv_num_heads")
    depth, width = body.size_of(0, 2) // heads, body.size_of(2, 2) // groups
    if depth < 1 or width < 1:
        raise ModelError(f"its inputs are too narrow for {heads} heads of q and {groups} of v.")
    each = max(heads // groups, 1)
    q = body("Reshape", body.inputs[0], body.ints(0, 0, -1, each, depth))
    k = body("Reshape", body.inputs[1], body.ints(0, 0, -1, depth, 1))
    # If q or k have fewer heads than the state, each head serves several heads of the state.
    q, k = (
        _repeated(body, t, groups // num_heads)
        for t, num_heads in ((q, min(heads, groups)), (k, body.size_of(1, 2) // depth))
    )
    scale = body.attrs.get("scale", 0.0) or depth**-0.5
    v = body("Reshape", body.inputs[2], body.ints(0, 0, groups, 1, width))
    scanned = {"q": body("Mul", q, body.number(scale)), "k": k, "v": v}
    if "gated" in rule:
        scanned["decay"] = body(
            "Exp", body("Reshape", body.inputs[4], body.ints(0, 0, groups, -1, 1))
        )
    if "delta" in rule:
        scanned["rate"] = body("Reshape", body.inputs[5], body.ints(0, 0, -1, 1, 1))
    state = body.optional(3)
    if not state:
        shape = body(
            "Concat", body.dim_of(body.inputs[0], 0), body.ints(groups, depth, width), axis=0
        )
        state = body("Expand", body.number(0.0), shape)
    last, y = body.scan(
        [state, *scanned.values()], _token(list(scanned)), 2, num_scan_inputs=len(scanned),
        scan_input_axes=[1] * len(scanned), scan_output_axes=[1],
    )  # fmt: skip
    # Type inference of Scan does not know that y has the rows of q.
    rows = body("Shape", body.inputs[0], end=2)
    shape = body("Concat", rows, body.ints(max(heads, groups) * width), axis=0)
    body.outputs = [body("Reshape", y, shape), last]


def _repeated(body: ImportBuilder, value: Value, times: int) -> Value:
    """Repeats each head `times` times; the copies of a head are adjacent.

    Args:
        body: Builder.
        value: `[batch, tokens, heads, rows, columns]`.
        times: Number of copies of each head.

    Returns:
        `[batch, tokens, heads * times, rows, columns]`.
    """
    if times == 1:
        return value
    spread = body("Expand", body("Unsqueeze", value, body.ints(3)), body.ints(1, 1, 1, times, 1, 1))
    shape = body("Shape", value)
    ends = [body.slice(shape, a, b, 0) for a, b in ((0, 2), (3, 5))]
    return body("Reshape", spread, body("Concat", ends[0], body.ints(-1), ends[1], axis=0))


def _token(names: list[str]) -> Callable[[ImportBuilder, list[Value]], list[Value]]:
    """Returns a function that builds the Scan body of LinearAttention, for one token.

    The body multiplies the state, `[batch, heads, key_size, value_size]`, by the decay and adds
    k * v, or with a learning rate k * rate * (v - k @ state). The body returns the new state,
    and q @ new state.

    Args:
        names: Names of the body's inputs after the state: "q", "k", "v", then "decay" and "rate" if
            the update rule has them.
    """

    def token(body: ImportBuilder, inputs: list[Value]) -> list[Value]:
        state = inputs[0]
        operands = dict(zip(names, inputs[1:], strict=True))
        value = operands["v"]
        if "decay" in operands:
            state = body("Mul", state, operands["decay"])
        if "rate" in operands:
            # Delta rule: only the difference to the stored value is learnt.
            row = body("Transpose", operands["k"], perm=[0, 1, 3, 2])
            missing = body("Sub", value, body("MatMul", row, state))
            value = body("Mul", operands["rate"], missing)
        state = body("Add", state, body("Mul", operands["k"], value))
        return [state, body("MatMul", operands["q"], state)]

    return token
