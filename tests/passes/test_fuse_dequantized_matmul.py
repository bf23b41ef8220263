"""Fusion of MatMul with dequantized constants into MatMulNBits, with equal results."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.pointwise.quantize_linear import DequantizeLinear
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.driver import infer_types
from clrt.passes.fuse_dequantized_matmul import FuseDequantizedMatmul
from clrt.passes.pipeline import optimize
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_graph
from tests.passes.helpers import apply

RNG = np.random.default_rng(3)
K, N = 20, 13


def _graph(op: IrOp, *constants: Array | None, rows: int | None = None) -> Graph:
    values = [
        None if a is None else Value(f"c{i}", TensorType.of(a)) for i, a in enumerate(constants)
    ]
    x = Value("x", TensorType(DType.FLOAT32, (symbol("B") if rows is None else rows, K)))
    w, y = (Value(name, TensorType(DType.FLOAT32, None)) for name in ("w", "y"))
    nodes = [Node("weight", op, values, [w]), Node("product", MatMul(), [x, w], [y])]
    graph = Graph("g", [x], [y], nodes)
    infer_types(graph)
    return graph


def _levels(dtype: str, shape: tuple[int, ...] = (K, N)) -> Array:
    limits = ml_dtypes.iinfo(np.dtype(dtype))
    drawn = RNG.integers(int(limits.min), int(limits.max) + 1, shape)
    return np.asarray(drawn, np.int32).astype(np.dtype(dtype))


def _scales(*shape: int) -> Array:
    return np.asarray(RNG.uniform(0.01, 0.1, shape), np.float32)


CASES: list[tuple[IrOp, tuple[Array | None, ...]]] = [
    (DequantizeLinear(0, 8), (_levels("int4"), _scales(3, N))),
    (DequantizeLinear(0, 8), (_levels("uint4"), _scales(3, N), _levels("uint4", (3, N)))),
    (DequantizeLinear(-2, 4), (_levels("int4"), _scales(5, N), _levels("int4", (5, N)))),
    (DequantizeLinear(1), (_levels("int4"), _scales(N), _levels("int4", (N,)))),
    (DequantizeLinear(), (_levels("uint4"), _scales())),
    (DequantizeLinear(1), (_levels("int8"), _scales(N))),
    (DequantizeLinear(1), (_levels("uint8"), _scales(N), _levels("uint8", (N,)))),
]


@pytest.mark.parametrize(("op", "constants"), CASES, ids=str)
def test_dequantized_matmul_becomes_matmul_nbits(
    op: IrOp, constants: tuple[Array | None, ...]
) -> None:
    graph = _graph(op, *constants)
    apply(FuseDequantizedMatmul(), graph)
    assert [n.op.name for n in graph.nodes if n.op.name != "DequantizeLinear"] == ["MatMulNBits"]


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("rows", [1, 9])
def test_dequantized_matmul_matches_reference_on_device(rows: int, device: DeviceInfo) -> None:
    for op, constants in CASES[:5]:
        graph = _graph(op, *constants, rows=rows)
        feeds = {"x": np.asarray(RNG.standard_normal((rows, K)), np.float32)}
        expected = evaluate(graph, feeds)
        optimize(graph)
        assert [n.op.name for n in graph.nodes] == ["MatMulNBits"]
        actual, plan = run_graph(graph, feeds, device)
        assert not plan.host_steps
        (wanted,), (found,) = expected.values(), actual.values()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "constants", "reason"),
    [
        (DequantizeLinear(1, 8), (_levels("int4"), _scales(K, 2)), "along N"),
        (DequantizeLinear(0), (_levels("int4"), _scales(K)), "a scale per row"),
        (DequantizeLinear(0, 5), (_levels("int4"), _scales(4, N)), "not whole bytes"),
        (DequantizeLinear(), (_levels("int16"), _scales()), "a weight int16"),
    ],
    ids=str,
)
def test_unsuitable_dequantized_matmul_is_kept(
    op: IrOp, constants: tuple[Array | None, ...], reason: str
) -> None:
    graph = _graph(op, *constants)
    record = apply(FuseDequantizedMatmul(), graph)
    assert not record.hits
    assert [r for _, r in record.misses if reason in r]
