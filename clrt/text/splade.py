"""SPLADE pooling as a graph of standard ops."""

from __future__ import annotations

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ops.op_builder import OpBuilder, floats, ints
from clrt.runtime.execution.signature import TensorSpec
from clrt.text.pooling import LOGITS, MASK, RESULT


def splade_graph(strategy: str, activation: str, logits: TensorSpec) -> Graph:
    """Builds the graph that reduces log(1 + relu(logits)) over tokens, by maximum or sum.

    Args:
        strategy: "max" or "sum".
        activation: "relu", or "log1p_relu" to apply the logarithm twice.
        logits: Type of the token logits, [batch, sequence, vocabulary].

    Returns:
        Graph with inputs `logits` and int64 [batch, sequence] `attention_mask`; output
        `sentence_embedding`, float32 [batch, vocabulary].

    Numerics: The logarithm of 1 + x is as exact as log1p, also near 0.

    Source: sentence-transformers' SpladePooling.
    """
    build = OpBuilder()
    size = logits.shape[-1] if logits.shape else "vocabulary"
    width = size if isinstance(size, int) else "vocabulary"
    x = build.float_feed(LOGITS, logits.dtype, "batch", "sequence", width)
    mask = build("Unsqueeze", build.feed(MASK, DType.INT64, "batch", "sequence"), ints(2))
    kept = build("Cast", mask, to=DType.BOOL)
    x = build("Relu", build("Where", kept, x, floats(0.0)))
    steps = 2 if activation == "log1p_relu" else 1
    # The logarithm is monotonic, so the maximum may be taken first.
    if strategy == "max":
        x = build("ReduceMax", x, ints(1), keepdims=0)
    for _ in range(steps):
        x = _log1p(build, x)
    if strategy == "sum":
        x = build("ReduceSum", x, ints(1), keepdims=0)
    return build.graph("splade", build.inputs, [x], [RESULT])


def _log1p(build: OpBuilder, x: Value) -> Value:
    """Adds ops for log(1 + x) of x >= 0 to a graph, exact also for small x.

    Source: W. Kahan; Higham, Accuracy and Stability of Numerical Algorithms, problem 1.5.
    """
    one = floats(1.0)
    more = build("Add", x, one)
    gained = build("Sub", more, one)
    is_lost = build("Equal", gained, floats(0.0))
    safe = build("Where", is_lost, one, gained)
    scaled = build("Mul", build("Log", more), build("Div", x, safe))
    return build("Where", is_lost, x, scaled)
