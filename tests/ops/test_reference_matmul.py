"""Matrix products: references and inference against ONNX's node tests; lowering."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Shape, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.kernels.gemm_problem import epilogue_operand_fits
from clrt.kernels.panel_layout import Panels
from clrt.kernels.spec import PackedWeight, Scratch
from clrt.ops.base import Op
from clrt.ops.conv.conv import Conv, FusedConv
from clrt.ops.conv.conv_transpose import ConvTranspose
from clrt.ops.conv.deform_conv import DeformConv
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.pointwise.table import Add, Gelu, Mul
from clrt.plan.make_plan import make_plan, step_lifetimes
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import DeviceStep, launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, plan_graph, run_graph, sample_graph, tolerance
from tests.ops.onnx_cases import Case, cases
from tests.ops.samples import Sample

CPU = DeviceCaps("p", "cpu", "v", "1", "cpu")
GPU = DeviceCaps("p", "gpu", "v", "1", "gpu", max_work_group_size=256, local_mem_bytes=32 << 10)
TINY = DeviceCaps("p", "tiny", "v", "1", "gpu", max_work_group_size=64)
ALL = cases({"MatMul", "Gemm", "Conv"})
F32 = DType.FLOAT32
B, S = symbol("B"), symbol("S")


@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_matmul_reference_and_inference_match_onnx(case: Case) -> None:
    types = [None if a is None else TensorType(DType.of(a.dtype), a.shape) for a in case.inputs]
    (expected,) = (o for o in case.outputs if o is not None)
    (result,) = case.op.reference(*case.inputs)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, strict=True)
    (found,) = case.op.infer(types)
    assert (found.dtype, found.shape) == (DType.of(expected.dtype), expected.shape)


def test_onnx_cases_cover_matmul_gemm_and_conv() -> None:
    assert {c.op.name for c in ALL} == {"MatMul", "Gemm", "Conv"}


@pytest.mark.parametrize(
    ("extra", "out", "fits"),
    [
        ((384,), (B, S, 384), True),
        ((1, 1, 384), (B, S, 384), True),
        ((B, S, 384), (B, S, 384), True),
        ((S, 384), (B, S, 384), True),
        ((), (B, S, 384), True),
        ((B, S, 1), (B, S, 384), True),
        ((B, 1, 1, S), (B, 12, S, S), True),
        ((2, 1, 1, 1, 9), (2, 3, 4, 5, 9), False),
        ((2, 3, 4, 5, 9), (2, 3, 4, 5, 9), True),
        ((S,), (B, S, 384), False),
        ((B, 384), (B, S, 384), False),
        ((2, B, S, 384), (B, S, 384), False),
        (None, (B, S, 384), False),
        ((384,), None, False),
    ],
)
def test_epilogue_operand_fit_follows_broadcast(
    extra: Shape | None, out: Shape | None, fits: bool
) -> None:
    assert epilogue_operand_fits(extra, out) is fits


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [1, 4, 7, 8, 9])
def test_panel_packing_orders_and_pads_elements(n: int, transposed: bool) -> None:
    """Element (k, n) is in panel n // width, row k, lane n % width; padding is 0."""
    b = np.arange(1, 2 * 3 * n + 1, dtype=np.float32).reshape(2, 3, n)
    stored = np.ascontiguousarray(b.swapaxes(1, 2)) if transposed else b
    value = Value("w", TensorType(F32, stored.shape, stored))
    packed = Panels(3, n, 4, transposed).of(value).pack(stored)
    padded = np.zeros((2, 3, -(-n // 4) * 4), np.float32)
    padded[..., :n] = b
    for batch, panel, k, lane in np.ndindex(packed.shape):
        assert packed[batch, panel, k, lane] == padded[batch, k, panel * 4 + lane]


def _linear(
    weights: Array, bound: dict[str, int], caps: DeviceCaps, record: dict[str, int] | None = None
) -> Plan:
    x = Value("x", TensorType(F32, (B, S, weights.shape[0])))
    w = Value("w", TensorType(F32, weights.shape, weights))
    bias = Value("bias", TensorType(F32, weights.shape[1:], weights[0]))
    y = Value("y", TensorType(F32, (B, S, weights.shape[1])))
    op = FusedMatMul(
        steps=(ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Gelu(), (2,)))
    )
    graph = Graph("linear", [x], [y], [Node("linear", op, [x, w, bias], [y])])
    return make_plan(specialise(graph, bound), caps, lambda _: record or {})


@pytest.mark.parametrize("caps", [CPU, GPU, TINY], ids=lambda c: c.name)
def test_matmul_new_shape_compiles_nothing(caps: DeviceCaps) -> None:
    weights = np.ones((8, 24), np.float32)
    shapes = [(1, 1), (1, 7), (3, 1), (2, 16)]
    plans = [_linear(weights, {"B": b, "S": s}, caps) for b, s in shapes]
    first, *others = (
        {x.kernel for x in launches_of(p.steps)} | {*p.precompiled_kernels} for p in plans
    )
    assert len(first) == (4 if caps is GPU else 1)  # three tiles, and few rows
    assert all(kernels == first for kernels in others)


def test_matmul_merges_batch_rows_and_packs_weights() -> None:
    (step,) = _linear(np.ones((8, 70), np.float32), {"B": 3, "S": 5}, CPU).steps
    assert isinstance(step, DeviceStep)
    (launch,) = step.launches
    assert launch.global_size == (4 * 3,)
    buffers = [getattr(a, "buffer", None) for a in launch.args]
    assert sum(isinstance(b, PackedWeight) for b in buffers) == 1
    assert launch.flops == 2 * 15 * 70 * 8


@pytest.mark.parametrize(
    ("columns", "tile"),
    [(10, (14, 1)), (32, (8, 2)), (40, (8, 3)), (64, (6, 4)), (96, (8, 3)), (1000, (8, 3))],
)
def test_gemm_panel_width_fits_columns(columns: int, tile: tuple[int, int]) -> None:
    record = {"T_MR": 8, "T_NV": 3, "T_VW": 16}
    weights = np.ones((4, columns), np.float32)
    (step,) = _linear(weights, {"B": 2, "S": 5}, CPU, record).steps
    assert isinstance(step, DeviceStep)
    defines = dict(step.launches[0].kernel.defines)
    assert (int(defines["T_MR"]), int(defines["T_NV"])) == tile


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_gemm_tiles_fitted_to_columns_match_numpy(device: DeviceInfo) -> None:
    if not device.caps.is_cpu:
        pytest.skip("a CPU kernel")
    rng = np.random.default_rng(7)
    for m, n in [(29, 10), (29, 32), (13, 64), (5, 130)]:
        x, w = (rng.standard_normal(s).astype(np.float32) for s in [(m, 9), (9, n)])
        graph = sample_graph(Sample(MatMul(), (x, w)))
        result = _run(graph, device, {"x0": x, "x1": w}, T_MR=8, T_NV=3, T_VW=16)
        np.testing.assert_allclose(result, x @ w, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("caps", "variant"), [(CPU, "gemm_cpu"), (GPU, "gemm_gpu"), (TINY, "gemm_any")]
)
def test_matmul_variant_depends_on_device(caps: DeviceCaps, variant: str) -> None:
    (step,) = _linear(np.ones((8, 8), np.float32), {"B": 1, "S": 2}, caps).steps
    assert isinstance(step, DeviceStep) and step.variant == variant


def _run(graph: Graph, device: DeviceInfo, feeds: dict[str, Array], **tunables: int) -> Array:
    results, plan = run_graph(graph, feeds, device, tunables or None)
    assert not plan.host_steps
    return results[graph.output_names[0]]


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("transposed", [0, 1])
def test_product_with_constant_weights_matches_reference(
    device: DeviceInfo, transposed: int
) -> None:
    """Packed weights, single and stacked, for widths around the panel width."""
    rng = np.random.default_rng(2)
    for shape in [(17, 23), (17, 24), (17, 50), (3, 17, 25)]:
        w = rng.standard_normal(shape).astype(np.float32)
        stored = np.ascontiguousarray(w.swapaxes(-1, -2)) if transposed else w
        x = rng.standard_normal((3, 6, 17)).astype(np.float32)
        a, y = (
            Value("x", TensorType(F32, x.shape)),
            Value("y", TensorType(F32, (3, 6, w.shape[-1]))),
        )
        weight = Value("w", TensorType(F32, stored.shape, stored))
        op = FusedMatMul(trans_b=transposed)
        graph = Graph("g", [a], [y], [Node("n", op, [a, weight], [y])])
        (expected,) = op.reference(x, stored)
        result = _run(graph, device, {"x": x})
        np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance(op, expected))


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_product_does_not_overwrite_its_operand(device: DeviceInfo) -> None:
    """x W + x: the residual may reuse x's memory only if nothing else reads it."""
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in [(40, 40), (40, 40)])
    source, weight = Value("x", TensorType(F32, x.shape)), Value("w", TensorType(F32, w.shape, w))
    inner, y = Value("h", TensorType(F32, x.shape)), Value("y", TensorType(F32, x.shape))
    op = FusedMatMul(steps=(ElementwiseInstruction(Add(), (0, 1)),))
    nodes = [
        Node("add", Add(), [source, source], [inner]),
        Node("mm", op, [inner, weight, inner], [y]),
    ]
    result = _run(Graph("g", [source], [y], nodes), device, {"x": x})
    (expected,) = op.reference(2 * x, w, 2 * x)
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance(op, expected))


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
@pytest.mark.parametrize("tile", [(6, 2, 8), (1, 1, 4), (3, 4, 16)], ids=str)
def test_gemm_cpu_tiles_match_numpy(device: DeviceInfo, tile: tuple[int, int, int]) -> None:
    if not device.caps.is_cpu:
        pytest.skip("a CPU kernel")
    tunables = dict(zip(("T_MR", "T_NV", "T_VW"), tile, strict=True))
    rng = np.random.default_rng(4)
    for m, n in [(1, 1), (6, 16), (7, 33), (13, 64)]:
        x, w = (rng.standard_normal(s).astype(np.float32) for s in [(m, 9), (9, n)])
        graph = sample_graph(Sample(MatMul(), (x, w)))
        result = _run(graph, device, {"x0": x, "x1": w}, **tunables)
        np.testing.assert_allclose(result, x @ w, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "shapes", "columns"),
    [
        (Conv((3, 3), group=2), [(5, 4, 6, 7), (6, 2, 3, 3), (6,)], 2 * 18 * 24),
        (
            FusedConv(
                (3, 3),
                group=2,
                steps=(
                    ElementwiseInstruction(Mul(), (0, 1)),
                    ElementwiseInstruction(Add(), (3, 2)),
                ),
            ),
            [(5, 4, 6, 7), (6, 2, 3, 3), (6,), (5, 6, 1, 1), (5, 6, 4, 5)],
            2 * 18 * 24,
        ),
        (ConvTranspose(group=2, strides=(2, 2)), [(5, 4, 3, 4), (4, 2, 3, 3), (4,)], 2 * 18 * 12),
        (
            DeformConv((2, 1), 2, (), 2, (1, 0, 1, 1), (1, 2)),
            [(5, 4, 5, 6), (4, 2, 2, 3), (5, 24, 5, 3), (4,), (5, 12, 5, 3)],
            4 * 6 * 15,
        ),
    ],
    ids=["Conv", "FusedConv", "ConvTranspose", "DeformConv"],
)
@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_conv_in_image_parts_matches_reference(
    op: Op,
    shapes: list[tuple[int, ...]],
    columns: int,
    device: DeviceInfo,
) -> None:
    """Columns of all images exceed the buffer limit; the last part has another size."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    feeds: dict[str, Any] = {f"x{i}": a for i, a in enumerate(arrays)}
    tile = {"T_MR": 4, "T_NV": 3, "T_VW": 8, "columns_bytes": 2 * 4 * columns}
    tile = tile if device.caps.is_cpu else None
    results, plan = run_graph(sample_graph(Sample(op, tuple(arrays))), feeds, device, tile)
    (expected,) = op.reference(*arrays)
    np.testing.assert_allclose(results["y0"], expected, rtol=0, atol=tolerance(op, expected))
    two = tuple(a[:2] if len(a) == 5 else a for a in arrays)
    pair = plan_graph(sample_graph(Sample(op, two)), device.caps, tile)
    if device.caps.is_cpu:  # on GPUs no columns are made
        assert plan.launches == 3 * pair.launches
        assert _scratch_bytes(plan) == _scratch_bytes(pair)


def _scratch_bytes(plan: Plan) -> int:
    return sum(owner.nbytes for owner, _ in step_lifetimes(plan) if isinstance(owner, Scratch))
