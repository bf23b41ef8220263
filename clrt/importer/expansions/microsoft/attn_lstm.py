"""AttnLSTM of com.microsoft: a Scan over the places, each a step of LSTM and one of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import helper

from clrt.errors import UnsupportedError
from clrt.importer.expansions.body import Body, expands
from clrt.importer.expansions.layouts import count_up, dim_of
from clrt.ir.dtypes import DType
from clrt.ops.recurrent import ALPHA, BETA

# Where the inputs are of which each direction has its own.
_OWN = {
    "W": 1, "R": 2, "B": 3, "h": 5, "c": 6, "P": 7, "QW": 8, "MW": 9, "V": 10, "AW": 13,
}  # fmt: skip
_BACKWARDS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
# Of a direction.
_FUNCTIONS = 3


@expands("com.microsoft", "AttnLSTM")
def _attn_lstm(body: Body) -> None:
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
    seen = ""
    if body.has(12):
        seen = _before(body, dim_of(body, memory, 1), body("Cast", body.inputs[12], to=7))
    sides = _BACKWARDS[body.attrs.get("direction", "forward")]
    results = []
    for number, backwards in enumerate(sides):
        names = {k: _of_direction(body, i, number, len(sides)) for k, i in _OWN.items()}
        hidden = dim_of(body, names["R"], 2)
        width = dim_of(body, names["AW"], 2) if names["AW"] else dim_of(body, names["MW"], 1)
        first = [names[k] or _zeros(body, body.ints(1), batch, hidden) for k in "hc"]
        first.append(_zeros(body, batch, width))
        names |= {"memory": memory, "seen": seen, "keys": body("MatMul", memory, names["MW"])}
        names |= {"0": body.ints(0), "1": body.ints(1), "-1": body.ints(-1)}
        names |= {"lowest": body.floats(float("-inf"))}
        steps = _turned(body, x, lengths) if backwards else x
        step = _step(names, _cell(body, number))
        h, c, _, y = body.node("Scan", [*first, steps, live], 4, body=step, num_scan_inputs=2)
        y = _turned(body, y, lengths) if backwards else y
        results.append((body("Unsqueeze", y, body.ints(1)), h, c))
    outputs = zip(*results, strict=True)
    body.outputs = [body("Concat", *parts, axis=int(not i)) for i, parts in enumerate(outputs)]


def _before(body: Body, count: str, lengths: str) -> str:
    """Which of so many places are in front of the end of each row, `[B, places]`."""
    return body("Less", count_up(body, count), body("Unsqueeze", lengths, body.ints(1)))


def _of_direction(body: Body, index: int, number: int, count: int) -> str:
    """An input, with one direction only; "" where it is left out."""
    value = body.optional(index)
    if not value or count == 1:
        return value
    return body("Slice", value, body.ints(number), body.ints(number + 1), body.ints(0))


def _zeros(body: Body, *sizes: str) -> str:
    return body("Expand", body.floats(0), body("Concat", *sizes, axis=0))


def _turned(body: Body, value: str, lengths: str) -> str:
    """Each row of `[T, B, …]` from its end to its start."""
    return body("ReverseSequence", value, lengths, time_axis=0, batch_axis=1)


def _cell(body: Body, number: int) -> dict[str, Any]:
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


def _step(names: dict[str, str], attrs: dict[str, Any]) -> onnx.GraphProto:
    """What a place does: the state meets x and what attention gave last, then asks the memory.

    Args:
        names: Values outside, by what they are.
        attrs: Of LSTM, which leaves a row that is at its end as it is.
    """
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: Sequence[str], *outputs: str, **more: Any) -> str:
        nodes.append(helper.make_node(op, inputs, outputs, **more))
        return outputs[0]

    add("Concat", ["x", "given"], "both", axis=1)
    add("Unsqueeze", ["both", names["0"]], "one")
    weights = [names[k] for k in "WRB"]
    states = ["live", "h", "c", names["P"]]
    add("LSTM", ["one", *weights, *states], "y4", "next_h", "next_c", **attrs)
    y3 = add("Squeeze", ["y4", names["0"]], "y3")
    add("Squeeze", [y3, names["0"]], "y")
    query = add("MatMul", ["next_h", names["QW"]], "query")
    turned = add("Transpose", [query], "turned", perm=[1, 0, 2])
    add("Tanh", [add("Add", [names["keys"], turned], "sum")], "met")
    add("Mul", ["met", names["V"]], "weighed")
    score = add("ReduceSum", ["weighed", names["-1"]], "score", keepdims=0)
    if names["seen"]:
        score = add("Where", [names["seen"], score, names["lowest"]], "known")
    add("Unsqueeze", [add("Softmax", [score], "share", axis=-1), names["1"]], "shares")
    found = add("MatMul", ["shares", names["memory"]], "found")
    if names["AW"]:
        state = add("Transpose", ["next_h"], "state", perm=[1, 0, 2])
        joined = add("Concat", [state, found], "joined", axis=2)
        found = add("MatMul", [joined, names["AW"]], "layered")
    add("Squeeze", [found, names["1"]], "next_given")
    inputs, outputs = (
        [onnx.ValueInfoProto(name=n) for n in each]
        for each in (
            ["h", "c", "given", "x", "live"],
            ["next_h", "next_c", "next_given", "y"],
        )
    )
    return helper.make_graph(nodes, "place", inputs, outputs)
