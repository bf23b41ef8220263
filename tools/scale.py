"""Times loading and planning per node on made-up models of growing size, without a device.

    python tools/scale.py                                   # all kinds, 1,000 to 50,000 nodes
    python tools/scale.py --kinds chain --nodes 200000
    python tools/scale.py --kinds chain --nodes 20000 --profile optimise

Kinds: `chain` is Add, Mul and Relu with weights; `blocks` transformer layers as exporters write
them; `shapes` the shape arithmetic around reshapes; `convs` a chain of convolutions; `parts` takes
a tensor apart and puts it together again.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import helper, numpy_helper

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.models.onnx.importer import import_model
from clrt.passes.device_pipeline import prepare
from clrt.passes.pipeline import optimize
from clrt.plan.make_plan import make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise

T = TypeVar("T")

_WIDTH, _HEADS = 32, 4
_CAPS = DeviceCaps("Made up", "cpu", "none", "1", "cpu", compute_units=2)
_STAGES = ("import", "optimise", "prepare", "specialise", "plan")


class Maker:
    """Collects the nodes of an ONNX model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """The output of a new node."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}_{name}", **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """A new weight of small random numbers."""
        return self.constant(self._rng.normal(0, 0.1, shape).astype(np.float32))

    def constant(self, value: Any) -> str:
        """A new initializer; what is no array becomes int64."""
        array = np.asarray(value, getattr(value, "dtype", np.int64))
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name


def chain(make: Maker, x: str) -> str:
    """Four elementwise nodes, of which one has a second use far behind."""
    y = make.add("Relu", make.add("Add", x, make.weight(_WIDTH)))
    return make.add("Add", make.add("Mul", y, make.weight(_WIDTH)), x)


def blocks(make: Maker, x: str) -> str:
    """A transformer layer with LayerNorm, attention and GELU in their parts."""
    half, scale = (make.constant(np.float32(v)) for v in (0.5, 0.125))
    one, root = (make.constant(np.float32(v)) for v in (1, 2**0.5))

    def dense(y: str, n: int, k: int) -> str:
        return make.add("Add", make.add("MatMul", y, make.weight(n, k)), make.weight(k))

    def norm(y: str) -> str:
        centred = make.add("Sub", y, make.add("ReduceMean", y, make.constant([-1])))
        square = make.add("Mul", centred, centred)
        mean = make.add("ReduceMean", square, make.constant([-1]))
        below = make.add("Sqrt", make.add("Add", mean, make.constant(np.float32(1e-5))))
        scaled = make.add("Mul", make.add("Div", centred, below), make.weight(_WIDTH))
        return make.add("Add", scaled, make.weight(_WIDTH))

    def heads(y: str, order: tuple[int, ...]) -> str:
        size = make.add("Shape", y)
        dims = [make.add("Gather", size, make.constant(i), axis=0) for i in (0, 1)]
        parts = [make.add("Unsqueeze", d, make.constant([0])) for d in dims]
        shape = make.add("Concat", *parts, make.constant([_HEADS, -1]), axis=0)
        return make.add("Transpose", make.add("Reshape", y, shape), perm=order)

    q, v = (heads(dense(x, _WIDTH, _WIDTH), (0, 2, 1, 3)) for _ in range(2))
    k = heads(dense(x, _WIDTH, _WIDTH), (0, 2, 3, 1))
    scores = make.add("Softmax", make.add("Mul", make.add("MatMul", q, k), scale), axis=-1)
    mixed = make.add("Transpose", make.add("MatMul", scores, v), perm=(0, 2, 1, 3))
    flat = make.add("Reshape", mixed, make.constant([0, 0, _WIDTH]))
    x = norm(make.add("Add", dense(flat, _WIDTH, _WIDTH), x))
    h = dense(x, _WIDTH, 2 * _WIDTH)
    erf = make.add("Add", make.add("Erf", make.add("Div", h, root)), one)
    gelu = make.add("Mul", make.add("Mul", h, erf), half)
    return norm(make.add("Add", dense(gelu, 2 * _WIDTH, _WIDTH), x))


def shapes(make: Maker, x: str) -> str:
    """A reshape and its inverse, both computed from the shape."""
    size = make.add("Shape", x)
    dims = [make.add("Gather", size, make.constant([i]), axis=0) for i in range(3)]
    rows = make.add("Mul", dims[0], dims[1])
    flat = make.add("Reshape", x, make.add("Concat", rows, dims[2], axis=0))
    y = make.add("MatMul", flat, make.weight(_WIDTH, _WIDTH))
    return make.add("Reshape", y, make.add("Concat", *dims, axis=0))


def convs(make: Maker, x: str) -> str:
    """A residual block."""
    y = x
    for _ in range(2):
        w, b = make.weight(_HEADS, _HEADS, 3, 3), make.weight(_HEADS)
        y = make.add("Relu", make.add("Conv", y, w, b, pads=[1, 1, 1, 1]))
    return make.add("Add", x, y)


def parts(make: Maker, x: str) -> str:
    """Two halves, computed apart."""
    axis, half = make.constant([0]), _WIDTH // 2
    bounds = [(make.constant([i]), make.constant([i + half])) for i in (0, half)]
    halves = (make.add("Slice", x, start, end, axis) for start, end in bounds)
    return make.add("Concat", *(make.add("Softmax", h) for h in halves), axis=0)


KINDS: dict[str, tuple[Callable[[Maker, str], str], list[str | int]]] = {
    "chain": (chain, ["batch", "sequence", _WIDTH]),
    "blocks": (blocks, ["batch", "sequence", _WIDTH]),
    "shapes": (shapes, ["batch", "sequence", _WIDTH]),
    "convs": (convs, ["batch", _HEADS, "height", "width"]),
    "parts": (parts, [_WIDTH, "sequence"]),
}


def model_of(kind: str, nodes: int) -> onnx.ModelProto:
    """A model of at least so many nodes."""
    block, dims = KINDS[kind]
    make, x = Maker(), "x"
    while len(make.nodes) < nodes:
        x = block(make, x)
    graph = helper.make_graph(
        make.nodes,
        kind,
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, None)],
        make.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def measure(kind: str, nodes: int, profiled: str | None) -> tuple[int, dict[str, float], Plan]:
    """Nodes, the seconds of each stage, and the plan."""
    data = model_of(kind, nodes).SerializeToString()
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], T]) -> T:
        gc.collect()
        profile = cProfile.Profile() if stage == profiled else None
        start = time.process_time()
        result = work() if profile is None else profile.runcall(work)
        seconds[stage] = time.process_time() - start
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        return result

    graph: Graph = timed("import", lambda: import_model(data))
    count = len(graph.nodes)
    timed("optimise", lambda: optimize(graph))
    timed("prepare", lambda: prepare(graph, _CAPS))
    sizes = {"batch": 2, "sequence": 8, "height": 8, "width": 8}
    bound = timed("specialise", lambda: specialise(graph, sizes))
    return count, seconds, timed("plan", lambda: make_plan(bound, _CAPS, lambda _: {}))


def main() -> None:
    """Prints a line for each kind and size."""
    parser = argparse.ArgumentParser(description="Times loading and planning per node.")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--nodes", nargs="+", type=int, default=[1000, 10_000, 50_000])
    parser.add_argument("--profile", choices=_STAGES, help="print where a stage spends its time")
    options = parser.parse_args()
    os.environ.setdefault("CLRT_NODE_LIMIT", str(2 * max(options.nodes)))
    print(f"{'':16}{'µs per node of the file':>24}")
    print("kind       nodes", *(f"{s:>11}" for s in (*_STAGES, "load")), "   launches  arena")
    measure(options.kinds[0], 100, None)  # imports
    for kind in options.kinds:
        for nodes in options.nodes:
            count, seconds, plan = measure(kind, nodes, options.profile)
            spent = [*seconds.values(), sum(seconds[s] for s in _STAGES[:3])]
            times = " ".join(f"{s / count * 1e6:11.1f}" for s in spent)
            print(
                f"{kind:8} {count:7} {times} {plan.launches:11} {plan.arena.nbytes:6}", flush=True
            )


if __name__ == "__main__":
    main()
