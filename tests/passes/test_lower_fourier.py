"""Lowering of DFT and STFT to products with constant matrices, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.ops.signal.fourier import Transform
from clrt.passes.device_pipeline import prepare
from clrt.passes.lower_fourier import LowerFourier
from clrt.passes.pipeline import optimize
from tests.harness import quick_device
from tests.models.onnx_text import parsed
from tests.passes.helpers import apply, check_miss, graph_of
from tests.passes.test_channels_last import ops, prepared

PASS = LowerFourier()
NUMBERS = "const %n: int64[] = {points}\nconst %a: int64[] = {axis}\n"


def _dft(shape: str, result: str, axis: int, points: int | None, attributes: str = "") -> Graph:
    numbers = NUMBERS.format(points=points or 0, axis=axis)
    n = "_" if points is None else "%n"
    body = f"{numbers}%y: float32[{result}] = DFT{attributes}(%x, {n}, %a)"
    return graph_of(body, f"%x: float32[{shape}]")


FORWARD = [
    ("B,8,1", "B,8,2", 1, None),
    ("B,7,2", "B,7,2", -2, None),
    ("B,7,3,2", "B,7,3,2", 1, None),
    ("6,B,3,1", "6,B,3,2", 0, None),
    ("5,2", "5,2", 0, None),
    ("B,6,2", "B,9,2", 1, 9),
    ("B,9,1", "B,4,2", 1, 4),
    ("3,S,2", "3,8,2", 1, 8),
    ("S,B,1", "3,B,2", 0, 3),
    ("B,5,1", "B,1,2", 1, 1),
]


@pytest.mark.parametrize(("shape", "result", "axis", "points"), FORWARD)
@pytest.mark.parametrize("kind", ["", "{inverse=True}", "{onesided=True}"])
def test_dft_becomes_one_matmul(
    shape: str, result: str, axis: int, points: int | None, kind: str
) -> None:
    if "onesided" in kind:
        dims = result.split(",")
        dims[axis] = str(int(dims[axis]) // 2 + 1)
        result = ",".join(dims)
    graph = _dft(shape, result, axis, points, kind)
    apply(PASS, graph)
    found = ops(graph)
    assert found["FusedMatMul"] == 1 and not found["DFT"]
    moved = axis not in (-2, len(shape.split(",")) - 2)
    assert found["Transpose"] == 2 * moved


HALVES = [("B,5,2", 8), ("B,5,2", 9), ("B,5,1", None), ("B,9,2", 7), ("B,2,2", 9), ("B,S,2", 6)]


@pytest.mark.parametrize(("shape", "points"), HALVES)
def test_onesided_inverse_dft_becomes_one_matmul(shape: str, points: int | None) -> None:
    graph = _dft(shape, f"B,{points or 8},1", 1, points, "{inverse=True, onesided=True}")
    apply(PASS, graph)
    assert ops(graph)["FusedMatMul"] == 1


def test_dft_matrix_matches_numpy_fft() -> None:
    """To the last place: the roots of unity are rounded once."""
    x = np.random.default_rng(0).standard_normal((3, 400, 2))
    z = x[..., 0] + 1j * x[..., 1]
    whole = Transform(400, 400, 2, 400)
    for transform, expected in (
        (whole, np.fft.fft(z)),
        (replace(whole, inverse=True), np.fft.ifft(z)),
        (replace(whole, points=401, length=201, outputs=401), np.fft.fft(z[:, :201], 401)),
    ):
        found = np.einsum("bjp,jpkq->bkq", x[:, : transform.length], transform.matrix())
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], expected, atol=1e-11)


WINDOW = "const %w: float32[8] = [0.0, 0.25, 0.5, 1.0, 1.0, 0.5, 0.25, 0.125]\n"
STEP = "const %s: int64[] = 3\nconst %n: int64[] = 8\n"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("end", ["", ",1", ",2"])
@pytest.mark.parametrize("call", ["(%x, %s, %w)", "{onesided=False}(%x, %s, _, %n)"])
def test_stft_becomes_one_conv(dtype: str, end: str, call: str) -> None:
    points = 8 if "False" in call else 5
    window = WINDOW.replace("float32", dtype)
    body = f"{window}{STEP}%y: {dtype}[B,11,{points},2] = STFT{call}"
    graph = graph_of(body, f"%x: {dtype}[B,40{end}]")
    apply(PASS, graph)
    found = ops(graph)
    assert found["Conv"] == 1 and not found["STFT"]
    assert found["Cast"] == 2 * (dtype == "float16")


def test_stft_on_cpu_needs_no_copy() -> None:
    body = f"{WINDOW}{STEP}%y: float32[N,11,5,2] = STFT(%x, %s, %w)"
    graph = prepared(body, "%x: float32[N,40,1]")
    assert ops(graph) == {"ChannelsLastConv": 1, "Reshape": 1}


def test_stft_nodes_share_matrix_constant() -> None:
    body = f"""{WINDOW}{STEP}%u: float32[B,11,5,2] = STFT(%x, %s, %w)
    %v: float32[B,11,5,2] = STFT(%z, %s, %w)
    %y: float32[B,11,5,2] = Add(%u, %v)"""
    graph = graph_of(body, "%x: float32[B,40,1], %z: float32[B,40,1]")
    apply(PASS, graph)
    assert len({n.arg(1) for n in graph.nodes if n.op.name == "Conv"}) == 1


def test_stft_is_lowered_by_device_passes_only() -> None:
    """Compiled models therefore do not contain the matrices."""
    body = f"{WINDOW}{STEP}%y: float32[B,11,5,2] = STFT(%x, %s, %w)"
    graph = graph_of(body, "%x: float32[B,40,1]")
    optimize(graph)
    assert ops(graph)["STFT"] == 1
    prepare(graph, DeviceCaps("p", "gpu", "v", "1", "gpu"))
    assert ops(graph)["Conv"] == 1


@pytest.mark.parametrize(
    ("inputs", "body", "reason"),
    [
        ("%x: float64[B,8,1]", "%y: float64[B,8,2] = DFT(%x)", "its input is float64"),
        ("%x: float32[B,S,1]", "%y: float32[B,S,2] = DFT(%x)", "depends on the input"),
        ("%x: float32[B,8,S]", "%y: float32[B,8,2] = DFT(%x)", "may be real or complex"),
        ("%x: float32[1,2048,1]", "%y: float32[1,2048,2] = DFT(%x)", "a matrix of 32 MiB"),
        ("%x: float32[B,0,1]", "%y: float32[B,8,2] = DFT(%x, %n)", "the transform has no points"),
        (
            "%x: float32[B,40], %w: float32[8]",
            "%y: float32[B,11,5,2] = STFT(%x, %s, %w)",
            "its window is computed",
        ),
    ],
)
def test_unsupported_dft_and_stft_report_reason(inputs: str, body: str, reason: str) -> None:
    check_miss(PASS, inputs, f"{STEP}{body}", reason)


def test_dft_matrices_count_towards_fold_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_FOLD_LIMIT", "1000")
    body = "%u: float32[B,8,2] = DFT(%x)\n%y: float32[B,8,2] = DFT(%u)"
    graph = graph_of(body, "%x: float32[B,8,1]")
    record = apply(PASS, graph)
    assert len(record.hits) == 1 and "CLRT_FOLD_LIMIT" in record.misses[0][1]


LINES = """g (float[B,L,1] x, float[L,2] z) => (float[B,M,4,2] y, float[9,2] u, float[9,1] v) {
    step=Constant<value_int=3>() nine=Constant<value_int=9>() size=Constant<value_int=7>()
    y=STFT(x,step,,size) u=DFT<axis=0>(z,nine) v=DFT<axis=0,inverse=1,onesided=1>(z,nine) }"""


def test_dft_of_symbolic_length_matches_numpy() -> None:
    """Inputs are cut or zero-padded to the transform length."""
    rng = np.random.default_rng(1)
    with clrt.load(parsed(LINES, opset=18), device=quick_device().index) as model:
        for length in (16, 7):
            x = rng.standard_normal((2, length, 1)).astype(np.float32)
            z = rng.standard_normal((length, 2)).astype(np.float32)
            found = model.run({"x": x, "z": z})
            frames = np.lib.stride_tricks.sliding_window_view(x[..., 0], 7, axis=1)[:, ::3]
            line = z[:, 0] + 1j * z[:, 1]
            for name, expected in (("y", np.fft.rfft(frames)), ("u", np.fft.fft(line, 9))):
                parts = np.stack([expected.real, expected.imag], -1)
                np.testing.assert_allclose(found[name], parts, rtol=1e-5, atol=1e-5)
            real = np.fft.irfft(line, 9)[:, None]
            np.testing.assert_allclose(found["v"], real, rtol=1e-5, atol=1e-5)
