"""Products fused with the normalization of their input rows, and with each other."""

from __future__ import annotations

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import ElementwiseInstruction
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.matmul.matmul_nbits import MatMulNBits
from clrt.ops.matmul.norm_gemm_fusion import MOST_ROWS
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.ops.norm.rms_normalization import RMSNormalization
from clrt.ops.pointwise.activations import Swish
from clrt.ops.pointwise.table import Add, Mul
from clrt.runtime.opencl.devices import DeviceInfo
from tests.ops.samples.matmul.quantized_matmul import quantised
from tests.ops.test_split_product import DEVICES, Build, check, floats

GATE = (ElementwiseInstruction(Swish(), (0,)), ElementwiseInstruction(Mul(), (2, 1)))
RESIDUAL = (ElementwiseInstruction(Add(), (0, 1)),)
rng = np.random.default_rng(17)
ROWS = (1, 2, 5, MOST_ROWS, MOST_ROWS + 1, 40)


def product(build: Build, x: Value, n: int, form: str, *extras: Value) -> Value:
    """Returns x times a weight, with an epilogue chosen by the number of extras."""
    k, steps = int(x.dims[-1]), (() if not extras else GATE if len(extras) == 1 else RESIDUAL)
    if form.startswith("Q"):
        raw = build.given(f"w{len(build.known)}", quantised(rng, form, n, k), True)
        return build.apply(QuantizedMatMul(form, k, n, 8, steps), x, raw, *extras[:1])
    if form == "MatMulNBits":
        op = MatMulNBits(k, n, 4, 32, a_bits=8, steps=steps)
        levels = rng.integers(0, 256, (n, op.blocks, 16)).astype(np.uint8)
        packed = build.given(f"w{len(build.known)}", levels, True)
        scales = rng.uniform(0.01, 0.1, (n, op.blocks)).astype(np.float32)
        given = packed, build.given(f"w{len(build.known)}", scales, True)
        return build.apply(op, x, *given, None, None, None, *extras[:1])
    weight = build.weight(n, k, dtype=DType(form))
    return build.apply(FusedMatMul(trans_b=1, steps=steps), x, weight, *extras[:1])


FORMS = pytest.mark.parametrize("form", ["float32", "float16", "Q4_0", "Q8_0", "MatMulNBits"])


def layer(rows: int, k: int, n: int, form: str, lead: tuple[int, ...] = ()) -> Build:
    """Returns a decoder layer between two attentions, followed by a projection."""
    build = Build()
    x = build.given("x", floats(*lead, rows, k))
    h = build.apply(RMSNormalization(), x, build.weight(k))
    up = product(build, h, n, form)
    gated = product(build, h, n, form, up)
    y = product(build, gated, k, form, x, x)
    z = product(build, build.apply(RMSNormalization(), y, build.weight(k)), 33, form)
    build.graph.outputs = [y, z]
    return build


def check_dots(device: DeviceInfo, form: str) -> None:
    """Skips low-bit weights if no kernel of 8-bit dot products runs."""
    if not (form.startswith("float") or device.caps.int8_dot_isa or device.caps.simulator):
        pytest.skip("its products take A as it is")


@DEVICES
@FORMS
@pytest.mark.parametrize("rows", ROWS)
def test_norm_gemm_fusion_matches_reference(device: DeviceInfo, form: str, rows: int) -> None:
    if device.caps.simulator and rows > MOST_ROWS + 1:
        pytest.skip("it takes a simulator half a minute and has no other kernels")
    check_dots(device, form)
    apart = form.startswith("float") and rows > MOST_ROWS
    check(layer(rows, 64, 96, form), device, 6 if apart else 3)


@DEVICES
@pytest.mark.parametrize("form", ["float32", "float16"])
def test_norm_gemm_fusion_with_8_row_tile_matches_reference(device: DeviceInfo, form: str) -> None:
    tiles = {"gemm_cpu": {"T_MR": 8, "T_NV": 2, "T_VW": 4}}
    for rows in (5, 7, 8):
        check(layer(rows, 19, 13, form), device, 3, tiles)


@DEVICES
@pytest.mark.parametrize("form", ["Q4_0", "MatMulNBits"])
def test_norm_gemm_fusion_of_stacks_matches_reference(device: DeviceInfo, form: str) -> None:
    check_dots(device, form)
    for rows, lead in ((1, (1,)), (MOST_ROWS, (1,)), (3, (2,)), (2, (2, 1))):
        check(layer(rows, 64, 96, form, lead), device, 3)


@DEVICES
def test_norm_gemm_fusion_of_odd_sizes_matches_reference(device: DeviceInfo) -> None:
    for rows, k, n in ((1, 7, 5), (6, 33, 50), (3, 1, 1)):
        check(layer(rows, k, n, "float32"), device, 3)


@DEVICES
def test_normalized_rows_with_other_readers_are_not_fused(device: DeviceInfo) -> None:
    build = Build()
    x = build.given("x", floats(2, 32))
    h = build.apply(RMSNormalization(), x, build.weight(32))
    build.graph.outputs = [h, product(build, h, 24, "float32")]
    check(build, device, 2)


@DEVICES
def test_product_with_other_readers_is_not_fused(device: DeviceInfo) -> None:
    build = Build()
    x = build.given("x", floats(2, 32))
    up = product(build, x, 24, "float32")
    build.graph.outputs = [up, product(build, x, 24, "float32", up)]
    check(build, device, 2)
