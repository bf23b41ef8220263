"""AttnLSTM of com.microsoft: a Scan over time whose body is an LSTM step and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clrt.errors import UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.ops.recurrent.recurrent import ALPHA, BETA

# Input indices of the parameters and states that each direction has separately.
_PER_DIRECTION = {
    "W": 1, "R": 2, "B": 3, "h": 5, "c": 6, "P": 7, "QW": 8, "MW": 9, "V": 10, "AW": 13,
}  # fmt: skip
_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Activation functions per direction.
_FUNCTIONS_PER_DIRECTION = 3


@register_import_decomposition("com.microsoft", "AttnLSTM")
def _attn_lstm(body: ImportBuilder) -> None:
    """Decomposes AttnLSTM: an LSTM in which each step attends to a memory.

    The attention output of a step is an input of the next step. Inputs 0 to 7 are the inputs of
    LSTM; the weights W apply to x concatenated with the previous attention output. Shapes of the
    other inputs have these dims: directions (D), hidden elements (H), elements of a query (A), and
    elements of a memory vector (M).
    Input 8: weights of queries, `[D, H, A]`;
    input 9: weights of the memory, `[D, M, A]`;
    input 10: vector that reduces a query plus a memory vector to a score, `[D, A]`;
    input 11: the memory, `[batch, positions, M]`;
    input 12: optional number of memory positions of each batch row, `[batch]`;
    input 13: optional weights that combine the attention result with the state, `[D, M + H,
    outputs]`. Without these weights, the attention output is the attention result.
    """
    if body.input_dtype() is not DType.FLOAT32:
        raise UnsupportedError(f"dtype {body.input_dtype()}")
    for index in (1, 2, 8, 9, 10, 11):
        body.input_type(index)
    x, memory = body.inputs[0], body.inputs[11]
    time, batch = (body.dim_of(x, axis) for axis in (0, 1))
    lengths = body("Cast", body.inputs[4], to=7) if body.has(4) else body("Expand", time, batch)
    live = body("Transpose", body("Cast", _valid_positions(body, time, lengths), to=6), perm=[1, 0])
    seen = None
    if body.has(12):
        seen = _valid_positions(body, body.dim_of(memory, 1), body("Cast", body.inputs[12], to=7))
    sides = _BACKWARDS[body.attrs.get("direction", "forward")]
    results = []
    for number, backwards in enumerate(sides):
        params = {k: _of_direction(body, i, number, len(sides)) for k, i in _PER_DIRECTION.items()}
        hidden = body.dim_of(_required(params, "R"), 2)
        combine = params["AW"]
        width = body.dim_of(combine, 2) if combine else body.dim_of(_required(params, "MW"), 1)
        first = [params[k] or _zeros(body, body.ints(1), batch, hidden) for k in "hc"]
        first.append(_zeros(body, batch, width))
        keys = body("MatMul", memory, params["MW"])
        params |= {"memory": memory, "seen": seen, "keys": keys}
        steps = _reverse(body, x, lengths) if backwards else x
        step = _step(params, _cell(body, number))
        h, c, _, y = body.scan([*first, steps, live], step, 4, num_scan_inputs=2)
        y = _reverse(body, y, lengths) if backwards else y
        results.append((body("Unsqueeze", y, body.ints(1)), h, c))
    outputs = zip(*results, strict=True)
    body.outputs = [body("Concat", *parts, axis=int(not i)) for i, parts in enumerate(outputs)]


def _valid_positions(body: ImportBuilder, count: Value, lengths: Value) -> Value:
    """Returns whether positions 0 to count - 1 are below each length, bool `[batch, count]`.

    Args:
        body: Builder.
        count: Number of positions, shape `[1]`.
        lengths: Length of each batch row, int64 `[batch]`.
    """
    return body("Less", body.count_up(count), body("Unsqueeze", lengths, body.ints(1)))


def _of_direction(body: ImportBuilder, index: int, number: int, count: int) -> Value | None:
    """Returns the slice of an input that belongs to one direction of the LSTM, `[1, …]`.

    Args:
        body: Builder.
        index: Input index; its axis 0 is the direction.
        number: Index of the direction.
        count: Number of directions.

    Returns:
        The slice; None if the input is omitted.
    """
    value = body.optional(index)
    if not value or count == 1:
        return value
    return body.slice(value, number, number + 1, 0)


def _required(params: dict[str, Value | None], name: str) -> Value:
    """Returns parameter `name` of `params`, which must not be None."""
    value = params[name]
    assert value is not None
    return value


def _zeros(body: ImportBuilder, *sizes: Value) -> Value:
    """Returns float32 zeros; `sizes` are the dims, int64 `[1]` each."""
    return body("Expand", body.floats(0), body("Concat", *sizes, axis=0))


def _reverse(body: ImportBuilder, value: Value, lengths: Value) -> Value:
    """Reverses the steps of each sequence; steps after its end stay in place.

    Args:
        body: Builder.
        value: `[steps, batch, …]`.
        lengths: Steps of each sequence, `[batch]`.
    """
    return body("ReverseSequence", value, lengths, time_axis=0, batch_axis=1)


def _cell(body: ImportBuilder, number: int) -> dict[str, Any]:
    """Returns the attributes of ONNX's LSTM for one direction of AttnLSTM.

    Args:
        body: Builder.
        number: Index of the direction.
    """
    attrs = {k: body.attrs[k] for k in ("clip", "hidden_size", "input_forget") if k in body.attrs}
    functions = [name.lower() for name in body.attrs.get("activations", ())]
    first, end = _FUNCTIONS_PER_DIRECTION * number, _FUNCTIONS_PER_DIRECTION * (number + 1)
    if functions:
        attrs["activations"] = functions[first:end]
    for name, takes in (("activation_alpha", ALPHA), ("activation_beta", BETA)):
        start, stop = (sum(f in takes for f in functions[:k]) for k in (first, end))
        if body.attrs.get(name, ())[start:stop]:
            attrs[name] = body.attrs[name][start:stop]
    return attrs


def _step(
    params: dict[str, Value | None], attrs: dict[str, Any]
) -> Callable[[ImportBuilder, list[Value]], list[Value]]:
    """Returns a function that builds the Scan body of AttnLSTM.

    The body runs an LSTM step on x and the previous attention output, then attention with the new
    state as query.

    Args:
        params: Weights, attention memory and its mask by name; None for omitted ones.
        attrs: Attributes of the LSTM.
    """

    def step(body: ImportBuilder, inputs: list[Value]) -> list[Value]:
        h, c, last, x, live = inputs
        first, second = body.ints(0), body.ints(1)
        one = body("Unsqueeze", body("Concat", x, last, axis=1), first)
        operands = [one, *(params[k] for k in "WRB"), live, h, c, params["P"]]
        y, next_h, next_c = body.node("LSTM", operands, 3, **attrs)
        y = body("Squeeze", body("Squeeze", y, first), first)
        query = body("Transpose", body("MatMul", next_h, params["QW"]), perm=[1, 0, 2])
        energy = body("Tanh", body("Add", params["keys"], query))
        score = body("ReduceSum", body("Mul", energy, params["V"]), body.ints(-1), keepdims=0)
        if params["seen"]:
            score = body("Where", params["seen"], score, body.floats(float("-inf")))
        weights = body("Unsqueeze", body("Softmax", score, axis=-1), second)
        context = body("MatMul", weights, params["memory"])
        if params["AW"]:
            state = body("Transpose", next_h, perm=[1, 0, 2])
            context = body("MatMul", body("Concat", state, context, axis=2), params["AW"])
        return [next_h, next_c, body("Squeeze", context, second), y]

    return step
