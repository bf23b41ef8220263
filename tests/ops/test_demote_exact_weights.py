"""Products with packed constant weights in 16 bits, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import ElementwiseInstruction, TensorType
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.pointwise.table import Add
from clrt.runtime.model.model import load
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
ROWS = symbol("rows")


@DEVICES
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("transposed", [0, 1])
# Of the largest a few rows have a kernel of their own.
@pytest.mark.parametrize(("n", "k"), [(1, 37), (24, 37), (96, 37), (250, 1101)])
def test_product_with_16_bit_weights_matches_reference(
    n: int, k: int, transposed: int, dtype: DType, device: DeviceInfo
) -> None:
    rng = np.random.default_rng(n)
    weights = rng.standard_normal((n, k) if transposed else (k, n)).astype(dtype.numpy)
    weights.flat[:3] = np.array([6e-8, -0.0, 65000], dtype.numpy)  # the least of float16, and large
    bias = rng.standard_normal(n).astype(np.float32)
    op = FusedMatMul(trans_b=transposed, steps=(ElementwiseInstruction(Add(), (0, 1)),))
    x = Value("x", TensorType(DType.FLOAT32, (ROWS, k)))
    w = Value("w", TensorType(dtype, weights.shape, weights))
    c = Value("c", TensorType(DType.FLOAT32, bias.shape, bias))
    y = Value("y", TensorType(DType.FLOAT32, (ROWS, n)))
    graph = Graph("g", [x], [y], [Node("y", op, [x, w, c], [y])])
    with load(graph, device=device.index, strict=True, optimize_level=0) as model:
        for rows in (1, 3, 8, 17):
            given = rng.standard_normal((rows, k)).astype(np.float32)
            (expected,) = op.reference(given, weights, bias)
            got = model.run(given)["y"]
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
