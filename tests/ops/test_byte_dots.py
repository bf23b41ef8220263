"""Products of 4-bit and 8-bit levels by every 8-bit dot instruction of this machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clrt.device.caps import MatrixShape
from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, TensorType
from clrt.ops.attention.paged_attention import PagedAttention
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.cpu_matrix_units import host_dots
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, plan_graph, run_plan, sample_graph, tolerance
from tests.ops.samples import samples
from tests.ops.test_ops import check, feeds_of
from tests.ops.test_split_product import floats, planned

CPUS = [d for d in all_devices() if "takes-assembler" in d.caps.quirks]
DEVICES = pytest.mark.parametrize("device", CPUS, ids=lambda d: d.platform.split()[0])
DOTS = pytest.mark.parametrize("dots", host_dots(), ids=lambda s: s.instructions)
# Levels of 4 and 8 bits, blocks of 16 and 32, with minima and without.
TYPES = ("Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K")


def product(name: str, raw: Array, a: Array, device: DeviceInfo, dots: MatrixShape) -> Array:
    """Checks A times the transpose of blocks against the reference."""
    type_ = BLOCK_TYPES_BY_NAME[name]
    n, k = len(raw), raw.shape[1] // type_.nbytes * type_.elements
    op = QuantizedMatMul(type=name, K=k, N=n, a_bits=8)
    x, y = (Value(v, TensorType(DType.FLOAT32, (len(a), s))) for v, s in (("x", k), ("y", n)))
    weight = Value("w", TensorType.of(raw))
    graph = Graph("g", [x], [y], [Node("product", op, [x, weight], [y])], ["y"])
    caps = replace(device.caps, matrix_shapes=frozenset({dots}))
    plan = planned(graph, caps)
    launches = launches_of(plan.steps)
    assert {x.kernel.entry for x in launches} == {"gemm_levels_cpu"}
    assert all(dict(x.kernel.defines)["DOT_ISA"] == str(caps.int8_dot_isa) for x in launches)
    found = run_plan(plan, {"x": a}, device)["y"]
    (expected,) = op.reference(a, raw)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance(op, expected))
    return found


@DEVICES
@DOTS
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 64), (6, 37)], ids=str)
def test_block_product_by_byte_dots_matches_reference(
    name: str, m: int, n: int, device: DeviceInfo, dots: MatrixShape
) -> None:
    type_ = BLOCK_TYPES_BY_NAME[name]
    raw = np.random.default_rng(n).integers(0, 256, (n, type_.row_bytes(512)), np.uint8)
    if not np.isfinite(type_.dequantise(raw)).all():
        raw &= 0xBB  # no exponent is that of infinity
    product(name, raw, floats(m, 512), device, dots)


@DEVICES
@DOTS
@pytest.mark.parametrize("name", ["Q4_0", "Q8_0"])
def test_byte_dots_do_not_overflow_largest_sums(
    name: str, device: DeviceInfo, dots: MatrixShape
) -> None:
    """Levels of maximum magnitude and equal sign, whose sums exceed 16 bits."""
    type_ = BLOCK_TYPES_BY_NAME[name]
    raw = np.empty((32, 2, type_.nbytes), np.uint8)
    raw[:, :, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for row, level in enumerate((0x00, 0xFF, 0x80, 0x7F)):
        raw[row::4, :, 2:] = level
    a = np.ones((5, 64), np.float32)
    a[1], a[2, ::2], a[3, 1::2] = -1, -1, -1
    product(name, raw.reshape(32, -1), a, device, dots)


@DEVICES
@DOTS
def test_uint8_paged_attention_matches_reference(device: DeviceInfo, dots: MatrixShape) -> None:
    caps, ran = replace(device.caps, matrix_shapes=frozenset({dots})), 0
    for sample in samples(PagedAttention):
        plan = plan_graph(sample_graph(sample), caps)
        kernels = [dict(x.kernel.defines) for x in launches_of(plan.steps)]
        if not any("DOT_ISA" in defines for defines in kernels):
            continue
        assert all(d["DOT_ISA"] == str(caps.int8_dot_isa) for d in kernels if "DOT_ISA" in d)
        ran += 1
        expected = sample.op.run_reference(*sample.inputs)
        for found, array in zip(
            run_plan(plan, feeds_of(sample), device).values(), expected, strict=True
        ):
            check(f"sample {sample.op}", found, array, tolerance(sample.op, array))
    assert ran
