"""MatMulBnb4 and other 4-bit products, and SparseAttention, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.errors import UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import name_of, quick_device
from tests.ops.test_microsoft_quantised import Case, check

RNG = np.random.default_rng(61)
# Compositions are the same on every device, whose kernels other tests compare.
DEVICES = pytest.mark.parametrize("device", [quick_device()], ids=name_of)


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def _bytes(*shape: int) -> Array:
    return np.asarray(RNG.integers(0, 256, shape), np.uint8)


def _products() -> list[Case]:
    cases = []
    for n, k, block in ((6, 16, 16), (5, 7, 16), (3, 40, 32)):
        count = n * k
        levels, scales = _bytes((count + 1) // 2), abs(_x(-(-count // block)))
        attrs = {"N": n, "K": k, "block_size": block}
        cases += [
            Case(
                "MatMulBnb4", (_x(2, 3, k), levels, scales), given, attrs={**attrs, "quant_type": q}
            )
            for q, given in ((0, (1, 2)), (1, ()))
        ]
    for kind, n, k in ((0, 3, 70), (1, 3, 70), (0, 4, 32), (1, 1, 64)):
        blob = _bytes(n, -(-k // 32), 20 + kind)
        blob[..., :4] = abs(_x(n, blob.shape[1], 1)).view(np.uint8)
        blob[..., 4] %= 16 if kind else 255
        inputs = (_x(2, 5, k), blob.reshape(-1), np.array([k, n]))
        cases.append(Case("MatMulFpQ4", inputs, (1, 2), attrs={"blk_quant_type": kind}))
    return cases


@DEVICES
@pytest.mark.parametrize("case", _products(), ids=lambda c: c.op)
def test_matmul_with_4_bit_weights_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    check(case, device, 1e-4)


@DEVICES
def test_matmul_bnb4_without_trans_b_matches_numpy(device: DeviceInfo) -> None:
    """ONNX Runtime is wrong for transB=0; the reference uses its transposed weights."""
    attrs = {"N": 3, "K": 5, "block_size": 16, "quant_type": 1}
    case = Case("MatMulBnb4", (np.eye(5, dtype=np.float32), _bytes(8), abs(_x(1))), (), 1, attrs)
    model, feeds = case.model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (turned,) = session.run(None, feeds)
    x = _x(4, 3)
    inputs = (x, *case.inputs[1:])
    model, feeds = replace(case, inputs=inputs, attrs={**attrs, "transB": 0}).model()
    with clrt.load(model, device=device.index) as loaded:
        np.testing.assert_allclose(loaded.run(feeds)["y0"], x @ turned.T, atol=1e-5)


def test_unsupported_4_bit_matmul_forms_are_refused() -> None:
    case = _products()[-1]
    for changed, match in (
        (replace(case, attrs={"blk_quant_type": 2}), "blk_quant_type 2"),
        (replace(case, constant=()), "input 1 depends"),
    ):
        model, _ = changed.model()
        with pytest.raises(UnsupportedError, match=match):
            clrt.load(model)


def _layouts(count: int) -> tuple[Array, Array]:
    """Returns row ends and columns of random blocks below the diagonal."""
    seen = np.tril(RNG.integers(0, 2, (count, 4, 4)))
    seen[:, np.arange(4), np.arange(4)] = 1
    ends = np.concatenate([np.zeros((count, 1), int), seen.sum(2).cumsum(1)], 1)
    columns = [np.nonzero(layout)[1] for layout in seen]
    widest = max(map(len, columns))
    filled = [np.pad(c, (0, widest - len(c)), constant_values=-1) for c in columns]
    return ends.astype(np.int32), np.array(filled, np.int32)


def _sparse(
    rows: int, lengths: list[int], layouts: int = 2, packed: bool = False, **more: Any
) -> Case:
    """Returns 4 query heads and 2 key heads on a cache of 64 positions in blocks of 16."""
    batch = len(lengths)
    new = [_x(batch, rows, 64), _x(batch, rows, 32), _x(batch, rows, 32)]
    given = [np.concatenate(new, 2), None, None] if packed else new
    caches = [_x(batch, 2, 64, 16) for _ in range(2)]
    counts = (np.array([max(lengths)], np.int32), np.array(lengths, np.int32))
    tables = [_x(64, 8), _x(64, 8)] if more.get("do_rotary") else []
    inputs = (*given, *caches, *_layouts(layouts), *counts, *tables)
    attrs = {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16, **more}
    return Case("SparseAttention", inputs, (5, 6) if layouts > 1 else (), 3, attrs)


def _session_run(case: Case) -> list[Array]:
    """Returns ONNX Runtime's results; it requires caches to be updated in place."""
    model, feeds = case.model()
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(v.copy()) for n, v in feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y0")
    for output, cache in (("y1", "x3"), ("y2", "x4")):
        binding.bind_ortvalue_output(output, values[cache])
    session.run_with_iobinding(binding)
    return [np.array(value.numpy()) for value in binding.get_outputs()]


@DEVICES
@pytest.mark.parametrize(
    "case",
    [
        _sparse(40, [40, 40]),
        _sparse(1, [37]),
        _sparse(3, [50], layouts=4, do_rotary=1, scale=0.4),
        _sparse(33, [33], layouts=1, packed=True, do_rotary=1, rotary_interleaved=1),
    ],
    ids=["first", "next", "few", "packed"],
)
def test_sparse_attention_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    model, feeds = case.model()
    with clrt.load(model, device=device.index) as loaded:
        found = loaded.run(feeds).values()
    for value, expected in zip(found, _session_run(case), strict=True):
        np.testing.assert_allclose(value, expected, atol=1e-4)


@DEVICES
def test_ragged_sparse_attention_matches_single_rows(device: DeviceInfo) -> None:
    """Each row equals its own run; ONNX Runtime is correct only for the longest row."""
    case = _sparse(1, [61, 18])
    model, feeds = case.model()
    with clrt.load(model, device=device.index) as loaded:
        found = list(loaded.run(feeds).values())
    for row, length in enumerate((61, 18)):
        own = [a[row : row + 1] if i < 5 else a for i, a in enumerate(case.inputs)]
        own[7:9] = [np.array([length], np.int32)] * 2
        for value, expected in zip(found, _session_run(replace(case, inputs=own)), strict=True):
            np.testing.assert_allclose(value[row], expected[0], atol=1e-4)
