"""AttnLSTM of com.microsoft: a Scan over the places, each a step of LSTM and one of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.axis_helpers import count_up, dim_of
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.recurrent.recurrent import ALPHA, BETA

# Where the inputs are of which each direction has its own.
_OWN = {
    "W": 1, "R": 2, "B": 3, "h": 5, "c": 6, "P": 7, "QW": 8, "MW": 9, "V": 10, "AW": 13,
}  # fmt: skip
_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Of a direction.
_FUNCTIONS = 3


@register_import_decomposition("com.microsoft", "AttnLSTM")
def _attn_lstm(body: ImportBuilder) -> None:
    """Inputs: those of LSTM, where W takes what attention gave last beside x; weights of queries
    `[D, H, A]` and of the memory `[D, M, A]`, a vector `[D, A]`, the memory `[B, S, M]` and lengths
    in it; and weights `[D, M + H, …]` of the state and what it found there, which else is all that
    attention gives.
    """
    if body.input_dtype() is not DType.FLOAT32:
        raise UnsupportedError(f"dtype {body.input_dtype()}")
    for index in (1, 2, 8, 9, 10, 11):
        body.input_type(index)
    x, memory = body.inputs[0], body.inputs[11]
    time, batch = (dim_of(body, x, axis) for axis in (0, 1))
    lengths = body("Cast", body.inputs[4], to=7) if body.has(4) else body("Expand", time, batch)
    live = body("Transpose", body("Cast", _before(body, time, lengths), to=6), perm=[1, 0])
    seen = None
    if body.has(12):
        seen = _before(body, dim_of(body, memory, 1), body("Cast", body.inputs[12], to=7))
    sides = _BACKWARDS[body.attrs.get("direction", "forward")]
    results = []
    for number, backwards in enumerate(sides):
        given = {k: _of_direction(body, i, number, len(sides)) for k, i in _OWN.items()}
        hidden = dim_of(body, _there(given, "R"), 2)
        wide = given["AW"]
        width = dim_of(body, wide, 2) if wide else dim_of(body, _there(given, "MW"), 1)
        first = [given[k] or _zeros(body, body.ints(1), batch, hidden) for k in "hc"]
        first.append(_zeros(body, batch, width))
        keys = body("MatMul", memory, given["MW"])
        given |= {"memory": memory, "seen": seen, "keys": keys}
        steps = _turned(body, x, lengths) if backwards else x
        step = _step(given, _cell(body, number))
        h, c, _, y = body.scan([*first, steps, live], step, 4, num_scan_inputs=2)
        y = _turned(body, y, lengths) if backwards else y
        results.append((body("Unsqueeze", y, body.ints(1)), h, c))
    outputs = zip(*results, strict=True)
    body.outputs = [body("Concat", *parts, axis=int(not i)) for i, parts in enumerate(outputs)]


def _before(body: ImportBuilder, count: Value, lengths: Value) -> Value:
    """Which of so many places are in front of the end of each row, `[B, places]`."""
    return body("Less", count_up(body, count), body("Unsqueeze", lengths, body.ints(1)))


def _of_direction(body: ImportBuilder, index: int, number: int, count: int) -> Value | None:
    """An input, with one direction only; None where it is left out."""
    value = body.optional(index)
    if not value or count == 1:
        return value
    return body("Slice", value, body.ints(number), body.ints(number + 1), body.ints(0))


def _there(given: dict[str, Value | None], name: str) -> Value:
    """One that is no optional input."""
    value = given[name]
    assert value is not None
    return value


def _zeros(body: ImportBuilder, *sizes: Value) -> Value:
    return body("Expand", body.floats(0), body("Concat", *sizes, axis=0))


def _turned(body: ImportBuilder, value: Value, lengths: Value) -> Value:
    """Each row of `[T, B, …]` from its end to its start."""
    return body("ReverseSequence", value, lengths, time_axis=0, batch_axis=1)


def _cell(body: ImportBuilder, number: int) -> dict[str, Any]:
    """The attributes of LSTM for one of the directions."""
    attrs = {k: body.attrs[k] for k in ("clip", "hidden_size", "input_forget") if k in body.attrs}
    functions = [name.lower() for name in body.attrs.get("activations", ())]
    first, end = _FUNCTIONS * number, _FUNCTIONS * (number + 1)
    if functions:
        attrs["activations"] = functions[first:end]
    for name, takes in (("activation_alpha", ALPHA), ("activation_beta", BETA)):
        start, stop = (sum(f in takes for f in functions[:k]) for k in (first, end))
        if body.attrs.get(name, ())[start:stop]:
            attrs[name] = body.attrs[name][start:stop]
    return attrs


def _step(
    given: dict[str, Value | None], attrs: dict[str, Any]
) -> Callable[[ImportBuilder, list[Value]], list[Value]]:
    """What a place does: the state meets x and what attention gave last, then asks the memory.

    Args:
        given: Values outside, by what they are.
        attrs: Of LSTM, which leaves a row that is at its end as it is.
    """

    def step(body: ImportBuilder, inputs: list[Value]) -> list[Value]:
        h, c, last, x, live = inputs
        first, second = body.ints(0), body.ints(1)
        one = body("Unsqueeze", body("Concat", x, last, axis=1), first)
        operands = [one, *(given[k] for k in "WRB"), live, h, c, given["P"]]
        y, next_h, next_c = body.node("LSTM", operands, 3, **attrs)
        y = body("Squeeze", body("Squeeze", y, first), first)
        query = body("Transpose", body("MatMul", next_h, given["QW"]), perm=[1, 0, 2])
        met = body("Tanh", body("Add", given["keys"], query))
        score = body("ReduceSum", body("Mul", met, given["V"]), body.ints(-1), keepdims=0)
        if given["seen"]:
            score = body("Where", given["seen"], score, body.floats(float("-inf")))
        shares = body("Unsqueeze", body("Softmax", score, axis=-1), second)
        found = body("MatMul", shares, given["memory"])
        if given["AW"]:
            state = body("Transpose", next_h, perm=[1, 0, 2])
            found = body("MatMul", body("Concat", state, found, axis=2), given["AW"])
        return [next_h, next_c, body("Squeeze", found, second), y]

    return step
