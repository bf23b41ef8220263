"""KernelLoop nodes, loops in one launch, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.device.requires import ANY
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ops.control import kernel_loop
from clrt.ops.control.kernel_loop import KernelLoop, LoopBody
from clrt.ops.control.loop_code import node_work
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.slice import Slice
from clrt.ops.norm.softmax import Softmax
from clrt.ops.pointwise.cast import BitCast
from clrt.ops.pointwise.table import Add, Less, Mul, Tanh
from clrt.ops.reduce.argmax import ArgMax
from clrt.ops.reduce.reduce import ReduceLogSumExp, ReduceMax, ReduceSum
from clrt.ops.reference_interpreter import evaluate
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_graph

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])


def _body() -> LoopBody:
    """Returns a body with states [2, 9], [2, 1], int64 [], a row [9] and stacked outputs."""
    build = Builder()
    turn, _ = counters = [build.input("i", DType.INT64, ()), build.input("go", DType.BOOL, ())]
    x = build.input("x", DType.FLOAT32, (2, 9))
    c = build.input("c", DType.FLOAT32, (2, 1))
    k = build.input("k", DType.INT64, ())
    row = build.input("row", DType.FLOAT32, (9,))
    table = build.input("table", DType.FLOAT32, (5, 9))
    weights = build.constant(np.linspace(-0.5, 0.5, 90, dtype=np.float32).reshape(9, 10))
    wide = build.add(MatMul(), x, weights)
    cut = build.add(Slice(), wide, build.ints(1), build.ints(10), build.ints(1))
    picked = build.add(Gather(), table, k)
    y = build.add(Tanh(), build.add(Add(), build.add(Add(), cut, row), picked))
    axis = build.ints(1)
    sums = build.add(ReduceSum(), y, axis)
    soft = build.add(Softmax(0), y)
    total = build.add(Add(), c, build.add(Add(), sums, build.add(ReduceLogSumExp(), soft, axis)))
    top = build.add(ReduceMax(keepdims=False), total)
    more = build.add(Less(), top, build.numbers(14.0, DType.FLOAT32))
    step = build.add(Add(), k, build.numbers(-1))
    both = build.add(Concat(1), total, y)
    best = build.add(ArgMax(1, keepdims=False), soft)
    number = build.add(Mul(), build.add(Add(), best, turn), step)
    outputs = [more, y, total, step, both, number]
    names = [str(n) for n in range(len(outputs))]
    graph = build.graph("body", [*counters, x, c, k, row, table], outputs, names)
    body = LoopBody.of(graph, 3, goes_on=False)
    assert body is not None
    return body


def _graph(most: int) -> Graph:
    body, build = _body(), Builder()
    given = [build.input("first", DType.INT64, ()), build.input("limit", DType.INT64, ())]
    given += [build.input(f"s{n}", DType.FLOAT32, d) for n, d in enumerate(((2, 9), (2, 1)))]
    given += [build.input("s2", DType.INT64, ())]
    given += [
        build.input("rows", DType.FLOAT32, (8, 9)),
        build.input("table", DType.FLOAT32, (5, 9)),
    ]
    op = KernelLoop(body.graph, 3, (True,), (False, False), most, False)
    results = build.add_all(op, *given, *body.constants)
    return build.graph("g", given, results, [str(n) for n in range(len(results))])


def test_bitcast_runs_outside_kernel_loop() -> None:
    build = Builder()
    build.add(BitCast(DType.INT32), build.input("x", DType.FLOAT32, (3,)))
    assert node_work(build.nodes[0]) is None


def test_work_of_outer_product_counts_its_elements() -> None:
    build = Builder()
    a, b = build.input("a", DType.FLOAT32, (300, 1)), build.input("b", DType.FLOAT32, (1, 300))
    build.add(MatMul(), a, b)
    assert node_work(build.nodes[0]) == 300 * 300


@DEVICES
@pytest.mark.parametrize("variant", [v.name for v in KernelLoop.variants])
def test_kernel_loop_matches_reference(
    device: DeviceInfo, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_loop, "_LANES", 4)
    (chosen,) = (v for v in KernelLoop.variants if v.name == variant)
    monkeypatch.setattr(KernelLoop, "variants", (replace(chosen, requires=ANY),))
    rng = np.random.default_rng(1)
    feeds = {
        "first": np.array(1),
        "s0": rng.standard_normal((2, 9)).astype(np.float32),
        "s1": np.zeros((2, 1), np.float32),
        "s2": np.array(4),
        "rows": rng.standard_normal((8, 9)).astype(np.float32),
        "table": rng.standard_normal((5, 9)).astype(np.float32),
    }
    graph = _graph(6)
    for limit in (6, 3, 1):
        feeds["limit"] = np.array(limit)
        found, _ = run_graph(graph, feeds, device)
        wanted = evaluate(graph, feeds)
        made = min(int(wanted["0"]), limit)
        for name, array in wanted.items():
            rows = slice(made) if name in ("4", "5") else ...
            np.testing.assert_allclose(found[name][rows], array[rows], rtol=1e-5, atol=1e-6)
