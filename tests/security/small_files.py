"""Small models that demand many resources, and the expected start of each error message."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, STRING, BOOL, UINT8 = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
    TensorProto.UINT8,
)
Case = tuple[bytes, Any]
node = helper.make_node
X = np.ones(3, np.float32)


def info(name: str, dtype: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[Any],
    inputs: list[Any] | None = None,
    output: int = FLOAT,
    *,
    functions: list[Any] = [],  # noqa: B006
    **constants: Any,
) -> bytes:
    """A model whose output is y, by default over a float vector x."""
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    inputs = [info("x", FLOAT, ["N"])] if inputs is None else inputs
    graph = helper.make_graph(nodes, "g", inputs, [info("y", output)], tensors)
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 21), ("com.microsoft", 1), ("f", 1))]
    made = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)
    return bytes(made.SerializeToString())


def summed(*nodes: Any, **constants: Any) -> Case:
    """Returns a model of y = x + sum of the elements of c, and its input.

    Args:
        nodes: Nodes that compute c from the constants.
        constants: The constants by name.
    """
    ends = [node("ReduceSum", ["c"], ["s"], keepdims=0), node("Add", ["s", "x"], ["y"])]
    return model([*nodes, *ends], **constants), X


def doubling(op: str, count: int, first: str, last: str, **attrs: Any) -> list[Any]:
    names = [first, *(f"v{i}" for i in range(1, count)), last]
    return [node(op, [a, a], [b], **attrs) for a, b in pairwise(names)]


def growing_apart(count: int) -> list[Any]:
    """Constants that double, by nodes whose inputs are different ones."""
    nodes = []
    for i in range(count):
        start, end = ("k" if i == 0 else f"v{i}"), ("c" if i == count - 1 else f"v{i + 1}")
        nodes += [node("Relu", [start], [f"a{i}"]), node("Neg", [start], [f"b{i}"])]
        nodes.append(node("Concat", [f"a{i}", f"b{i}"], [end], axis=0))
    return nodes


def dims(count: int) -> Case:
    """A tensor of (d0 + 1) (d1 + 1) … elements."""
    nodes = [node("Shape", ["x"], ["s"]), node("Add", ["s", "one"], ["p"])]
    nodes += [node("ReduceProd", ["p"], ["n"], keepdims=1), node("ConstantOfShape", ["n"], ["y"])]
    x = info("x", FLOAT, [f"d{i}" for i in range(count)])
    return model(nodes, [x], one=np.int64([1])), np.ones([1] * count, np.float32)


def powers(count: int) -> Case:
    nodes = [node("Shape", ["x"], ["n"]), *doubling("Mul", count, "n", "c")]
    return model([*nodes, node("Cast", ["c"], ["y"], to=FLOAT)]), np.ones(1, np.float32)


def of_text(
    op: str, texts: list[str], output: int = STRING, domain: str = "", **attrs: Any
) -> Case:
    outputs = ["y", "n"] if op == "StringSplit" else ["y"]
    nodes = [node(op, ["x"], outputs, domain=domain, **attrs)]
    return model(nodes, [info("x", STRING, ["N"])], output), np.array(texts, object)


def a_range(dtype: type, start: Any, limit: Any, delta: Any) -> Case:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    inputs = [info(n, kind, []) for n in "abd"]
    feeds = {n: np.array(v, dtype) for n, v in zip("abd", (start, limit, delta), strict=True)}
    return model([node("Range", list("abd"), ["y"])], inputs, kind), feeds


def nested_functions(count: int, calls: int) -> Case:
    """f0 is Relu, and each other calls the one before it so many times."""
    functions = []
    for k in range(count + 1):
        steps = ["a", *(f"t{i}" for i in range(1, calls)), "b"]
        op, domain = (f"f{k - 1}", "f") if k else ("Relu", "")
        pairs = pairwise(steps)
        body = [node(op, [i], [o], domain=domain) for i, o in pairs]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
        functions.append(helper.make_function("f", f"f{k}", ["a"], ["b"], body, opsets))
    return model([node(f"f{count}", ["x"], ["y"], domain="f")], functions=functions), X


def loop_body(nodes: list[Any], outputs: list[str], states: list[Any], name: str = "b") -> Any:
    inputs = [info("i", INT64, []), info("go", BOOL, []), *states]
    nodes = [node("Identity", ["go"], ["on"]), *nodes]
    return helper.make_graph(nodes, name, inputs, [info("on", BOOL, []), *map(info, outputs)])


def nested_loops(depth: int) -> Case:
    """Loops in loops that all carry a state whose size grows, declared as fixed."""
    inner = [node("Concat", ["s", "s"], ["t"], axis=0)]
    for i in range(depth):
        body = loop_body(inner, ["t"], [info("s", FLOAT, [3])], f"b{i}")
        inner = [node("Loop", ["n", "", "s"], ["t"], body=body)]
    inner[0].input[2], inner[0].output[0] = "x", "y"
    inputs = [info("x", FLOAT, [3]), info("n", INT64, [])]
    return model(inner, inputs), {"x": X, "n": np.array(1)}


def endless(outputs: list[str], states: list[str]) -> Case:
    body = loop_body(
        [node("Mul", ["x", "x"], ["t"]), *(node("Add", [s, s], [f"{s}o"]) for s in states)],
        [*(f"{s}o" for s in states), *outputs],
        [info(s) for s in states],
    )
    loop = node("Loop", ["n", "", *("x" for _ in states)], ["y"], body=body)
    return model([loop], n=np.array(2**60)), X


def image(width: int, height: int) -> Case:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    nodes = [node("ImageDecoder", ["x"], ["y"])]
    file = np.frombuffer(b"\x89PNG\r\n\x1a\n" + body, np.uint8)
    return model(nodes, [info("x", UINT8, ["N"])], UINT8), file


def of_rank(rank: int) -> Case:
    nodes = [node("Reshape", ["x", "s"], ["r"]), node("Transpose", ["r"], ["y"])]
    return model(nodes, s=np.int64([1] * (rank - 1) + [3])), X


def tensor(**fields: Any) -> Case:
    """A weight that is not what it says."""
    made = TensorProto(data_type=FLOAT, name="w", **fields)
    graph = helper.make_graph([node("Add", ["x", "w"], ["y"])], "g", [info("x")], [info("y")])
    graph.initializer.append(made)
    opsets = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(graph, opset_imports=opsets).SerializeToString()), X


def sparse(size: int) -> Case:
    values = numpy_helper.from_array(np.ones(1, np.float32), "v")
    indices = numpy_helper.from_array(np.int64([5]), "i")
    value = helper.make_sparse_tensor(values, indices, [size])
    return summed(node("Constant", [], ["c"], sparse_value=value))


EXPONENTIAL = ["a" * 40 + "b"]
MANY = 10**12
# The case, and how its error starts; "" for one that runs.
CASES: dict[str, tuple[Callable[[], Case], str]] = {
    "constants that double": (
        lambda: summed(*doubling("Concat", 60, "k", "c", axis=0), k=X),
        "ShapeError: 'v",
    ),
    "constants that double apart": (
        lambda: summed(*growing_apart(40), k=X),
        "ShapeError: '",
    ),
    "constant tile": (
        lambda: summed(node("Tile", ["k", "n"], ["c"]), k=X, n=np.int64([MANY])),
        "ShapeError: 'c'",
    ),
    "constant one-hot": (
        lambda: summed(
            node("OneHot", ["i", "d", "v"], ["c"]), i=np.int64([1]), d=np.int64(MANY), v=X[:2]
        ),
        "ShapeError: 'c'",
    ),
    "constant window": (
        lambda: summed(node("HannWindow", ["n"], ["c"]), n=np.int64(MANY)),
        "ShapeError: 'HannWindow",
    ),
    "mel weights of the host": (
        lambda: summed(
            node("MelWeightMatrix", ["a", "b", "r", "l", "h"], ["c"]),
            **dict(a=np.int64(40), b=np.int64(10**8), r=np.int64(16000)),
            **dict(l=np.float32(0), h=np.float32(8000)),
        ),
        "OutOfMemoryError: The result of MelWeightMatrix",
    ),
    "8 dims": (lambda: dims(8), ""),
    "20 dims": (lambda: dims(20), ""),
    "30 squares": (lambda: powers(30), ""),
    "exponential pattern": (
        lambda: of_text("RegexFullMatch", EXPONENTIAL, BOOL, pattern="(a+)+$"),
        "",
    ),
    "exponential tokens": (
        lambda: of_text(
            *("Tokenizer", EXPONENTIAL, STRING, "com.microsoft"),
            **dict(mark=0, mincharnum=1, pad_value="", tokenexp="(a+)+$"),
        ),
        "",
    ),
    "back-reference": (
        lambda: of_text("RegexFullMatch", ["aa"], BOOL, pattern=r"(a)\1"),
        "UnsupportedError: The model needs 1 thing",
    ),
    "nested pattern": (
        lambda: of_text("RegexFullMatch", ["a"], BOOL, pattern="(" * 3000 + "a" + ")" * 3000),
        "",
    ),
    "a long text among many": (
        lambda: of_text("Identity", ["a" * 10**6] + ["b"] * 10**5),
        "OutOfMemoryError: 100001 texts",
    ),
    "texts that double": (
        lambda: (
            model(doubling("StringConcat", 40, "x", "y"), [info("x", STRING, ["N"])], STRING),
            np.array(["ab"], object),
        ),
        "OutOfMemoryError: StringConcat 'StringConcat_",
    ),
    "skips of any length": (
        lambda: (
            model(
                [
                    node(
                        *("TfIdfVectorizer", ["x"], ["y"]),
                        **dict(max_gram_length=10**9, min_gram_length=1, max_skip_count=10**9),
                        **dict(mode="TF", ngram_counts=[0], ngram_indexes=[0, 1]),
                        pool_int64s=[1, 2],
                    )
                ],
                [info("x", INT64, ["N"])],
            ),
            np.arange(5000),
        ),
        "",
    ),
    "split": (
        lambda: (model([node("Split", ["x"], ["y", "z"], num_outputs=10**9)]), X),
        "ModelError: Split 'Split_0': num_outputs is 1000000000, and it has 2 outputs.",
    ),
    "range": (lambda: a_range(np.int64, 0, 10**13, 1), "OutOfMemoryError: Range 'Range_0'"),
    "range past 64 bits": (
        lambda: a_range(np.int64, -(2**63), 2**63 - 1, 1),
        "OutOfMemoryError: Range 'Range_0'",
    ),
    "range of tiny steps": (
        lambda: a_range(np.float32, 0, 1e30, 1e-45),
        "OutOfMemoryError: Range 'Range_0'",
    ),
    "range backwards": (lambda: a_range(np.float64, -1e308, 1e308, -1e-300), ""),
    "range to inf": (lambda: a_range(np.float32, 0, np.inf, 1), "ShapeError: Range 'Range_0'"),
    "range by nan": (lambda: a_range(np.float32, 0, 9, np.nan), "ShapeError: Range 'Range_0'"),
    "rank 70": (lambda: of_rank(70), "ShapeError: '"),
    "rank 1000": (lambda: of_rank(1000), "ShapeError: '"),
    "functions 500 deep": (
        lambda: nested_functions(500, 1),
        "ModelError: The model nests functions and graphs 501 deep; 64 are allowed.",
    ),
    "functions that double": (lambda: nested_functions(40, 2), "ModelError: The model has "),
    "functions 50 deep": (lambda: nested_functions(50, 1), ""),
    "loops 24 deep": (lambda: nested_loops(24), "ModelError: "),
    "loops 3 deep": (lambda: nested_loops(3), ""),
    "iterations without an end": (
        lambda: endless([], ["s"]),
        f"InputError: Loop 'Loop_0': needs {2**60} iterations",
    ),
    "rows without an end": (
        lambda: endless(["t"], []),
        f"InputError: Loop 'Loop_0': needs {2**60} iterations",
    ),
    "image": (lambda: image(60_000, 60_000), "InputError: ImageDecoder 'ImageDecoder_0': Image"),
    "weight without its data": (lambda: tensor(dims=[2**40]), "ModelError: initializer 'w'"),
    "weight with little data": (
        lambda: tensor(dims=[2**40], raw_data=bytes(4)),
        "ModelError: initializer 'w'",
    ),
    "weight with few numbers": (
        lambda: tensor(dims=[2**62, 2**62], float_data=[1.0]),
        "ModelError: initializer 'w'",
    ),
    "sparse weight": (lambda: sparse(2**40), "OutOfMemoryError: attribute 'sparse_value'"),
}
