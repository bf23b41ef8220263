"""GroupQueryAttention: sliding-window and quantized caches, and scores, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import clrt
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.ir.op import Array
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import name_of, quick_device
from tests.ops.test_microsoft_quantised import Case, check

RNG = np.random.default_rng(41)
# Compositions are the same on every device, whose kernels other tests compare.
DEVICES = pytest.mark.parametrize("device", [quick_device()], ids=name_of)
OP, HEADS = "GroupQueryAttention", {"num_heads": 4, "kv_num_heads": 2}


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def _new(batch: int, rows: int) -> tuple[Array, ...]:
    return _x(batch, rows, 64), _x(batch, rows, 32), _x(batch, rows, 32)


def _last(*values: int) -> tuple[Array, Array]:
    return np.array(values, np.int32), np.array(max(values) + 1, np.int32)


def _in_fewer_bits() -> list[Case]:
    cases = []
    for bits, dtype, width in ((8, np.int8, 16), (4, np.uint8, 8)):
        for kind, shape in (("PER_TENSOR", (1,)), ("PER_CHANNEL", (1, 2, 1, 16))):
            limits = np.iinfo(dtype)
            scales = [abs(_x(*shape)) * 0.05 * 16 ** (bits == 4) + 0.01 for _ in range(2)]
            attrs: dict[str, Any] = {
                **HEADS, "k_quant_type": kind, "v_quant_type": kind, "kv_cache_bit_width": bits,
            }  # fmt: skip
            past = [
                np.asarray(RNG.integers(limits.min, limits.max + 1, (2, 2, 5, width)), dtype)
                for _ in range(2)
            ]
            none = [t[:, :, :0] for t in past]
            tail = [None] * 5
            tables = [_x(16, 8), _x(16, 8), None, None, None]
            cases += [
                Case(OP, (*_new(2, 3), *none, *_last(2, 2), *tail, *scales), (), 3, attrs),
                Case(OP, (*_new(2, 1), *past, *_last(5, 5), *tables, *scales), (), 3,
                     {**attrs, "do_rotary": 1, "local_window_size": 3}),
            ]  # fmt: skip
    # Scales are float32 whatever the others are.
    new = [t.astype(np.float16) for t in _new(2, 1)]
    attrs = {**HEADS, "k_quant_type": kind, "v_quant_type": kind}
    inputs = (*new, *past, *_last(5, 5), *[None] * 5, *scales)
    return [*cases, Case(OP, inputs, (), 3, {**attrs, "kv_cache_bit_width": 4})]


@DEVICES
@pytest.mark.parametrize("case", _in_fewer_bits(), ids=lambda c: c.attrs["k_quant_type"])
def test_quantized_kv_cache_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    query = case.inputs[0]
    check(case, device, 5e-3 if query is not None and query.dtype == np.float16 else 1e-4)


def _with_scores() -> list[Case]:
    cases = []
    bias = _x(1, 4, 3, 3)
    cache = [np.pad(_x(2, 2, 5, 16), [(0, 0), (0, 0), (0, 2), (0, 0)]) for _ in range(2)]
    for kind in (1, 2):
        attrs: dict[str, Any] = {**HEADS, "qk_output": kind}
        more = {**attrs, "softcap": 2.0, "local_window_size": 2}
        first = (*_new(2, 3), None, None, *_last(2, 2), *[None] * 3)
        cases += [
            Case(OP, (*first, bias, _x(4)), (), 4, more),
            Case(OP, (*_new(2, 1), *cache, *_last(4, 4)), (), 4, attrs),
        ]
    return [*cases, Case(OP, first[:7], (), 4, {**attrs, "causal": 0})]


@DEVICES
@pytest.mark.parametrize("case", _with_scores(), ids=lambda c: f"qk_output {c.attrs['qk_output']}")
def test_attention_scores_output_matches_onnxruntime(case: Case, device: DeviceInfo) -> None:
    check(case, device, 1e-4)


def _resident(total: int, size: int, window: int) -> int:
    """Returns the number of positions in a sliding-window cache, as documented."""
    step = size - window + 1
    return total if total <= size else total - step * -(-(total - size) // step)


@DEVICES
@pytest.mark.parametrize(
    ("lengths", "size", "window", "steps", "more"),
    [
        ([0], 6, 4, [3, 1, 1, 2, 1, 1, 1, 1], {}),
        ([0, 0], 5, 5, [7, 1], {"softcap": 3.0, "smooth_softmax": 1}),
        ([3], 4, 2, [9, 1, 2], {"do_rotary": 1, "rotary_interleaved": 1}),
        ([9, 2], 6, 3, [1, 1, 1, 1], {"do_rotary": 1, "bias": 1}),
        ([0], 5, 3, [7, 2, 1], {"bias": 1, "bits": 8}),
        ([0, 0], 7, 3, [8, 1], {"bits": 4, "sinks": 1}),
    ],
    ids=["plain", "full", "rotating", "ragged", "8 bits", "4 bits"],
)
def test_sliding_window_cache_matches_onnxruntime(
    lengths: list[int],
    size: int,
    window: int,
    steps: list[int],
    more: dict[str, Any],
    device: DeviceInfo,
) -> None:
    """Each step appends a few tokens to the cache that ONNX Runtime returned before."""
    bits, bias, sinks = (more.get(name, 0) for name in ("bits", "bias", "sinks"))
    attrs = {**HEADS, "sliding_window_cache": 1, "local_window_size": window}
    attrs.update((k, v) for k, v in more.items() if k not in ("bits", "bias", "sinks"))
    dtype, width = {0: (np.float32, 32), 8: (np.int8, 32), 4: (np.uint8, 16)}[bits]
    scales: list[Array] = []
    if bits:
        attrs.update(k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", kv_cache_bit_width=bits)
        scales = [np.array([0.4], np.float32), np.array([0.3], np.float32)]
    tables = [_x(32, 16), _x(32, 16)] if "do_rotary" in attrs else [None, None]
    batch, past = len(lengths), [_x(len(lengths), 2, size, width).astype(dtype) for _ in range(2)]
    # What lies behind the places that there are says nothing, whatever it is.
    garbage = 99 if bits else np.nan
    case, loaded, session = Case(OP, (), (), 3, attrs, symbolic=True), None, None
    try:
        for step in steps:
            for row, total in enumerate(lengths):
                for cache in past:
                    cache[row, :, _resident(total, size, window) :] = garbage
            lengths = [total + step for total in lengths]
            new = _x(batch, step, 128), _x(batch, step, 64), _x(batch, step, 64)
            added = _x(1, 4, step, max(lengths)) if bias else None
            tail = [*tables, None, added, _x(4) if sinks else None, *scales]
            inputs = (*new, *past, *_last(*(total - 1 for total in lengths)), *tail)
            model, feeds = replace(case, inputs=inputs).model()
            if loaded is None or session is None:
                data = model.SerializeToString()
                session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
                loaded = clrt.load(data, device=device.index)
            wanted, found = session.run(None, feeds), list(loaded.run(feeds).values())
            np.testing.assert_allclose(found[0], wanted[0], atol=1e-4)
            for ours, theirs in zip(found[1:], wanted[1:], strict=True):
                assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
                for row, total in enumerate(lengths):
                    kept = _resident(total, size, window)
                    np.testing.assert_allclose(
                        ours[row, :, :kept], theirs[row, :, :kept], atol=1e-5
                    )
            past = wanted[1:]
    finally:
        if loaded is not None:
            loaded.close()


def test_invalid_kv_caches_are_refused() -> None:
    cache = np.zeros((1, 2, 4, 16), np.uint8)
    scale = np.array([0.1], np.float32)
    plain = (*_new(1, 1), cache.astype(np.float32), cache.astype(np.float32), *_last(0))
    bits = (*_new(1, 1), cache, cache, *_last(0), *[None] * 5, scale, scale)
    cases: list[tuple[tuple[Array | None, ...], dict[str, Any], type[Exception], str]] = [
        (plain, {"sliding_window_cache": 1}, ModelError, "-1 positions"),
        (bits, {"kv_cache_bit_width": 8}, UnsupportedError, "uint8 in 8 bits"),
    ]
    for inputs, attrs, kind, match in cases:
        model, _ = Case(OP, inputs, (), 3, {**HEADS, **attrs}).model()
        with pytest.raises(kind, match=match):
            clrt.load(model)


@DEVICES
@pytest.mark.parametrize("last", [5, 100, (1 << 31) - 1])
def test_sequence_longer_than_cache_is_refused(last: int, device: DeviceInfo) -> None:
    cache = [_x(2, 2, 5, 16) for _ in range(2)]
    lengths = np.array([4, last], np.int32)
    case = Case(OP, (*_new(2, 1), *cache, lengths, np.array(5, np.int32)), (), 3, HEADS)
    model, feeds = case.model()
    (name,) = (n for n, a in feeds.items() if a is lengths)
    with clrt.load(model, device=device.platform) as loaded:
        said = f"a write index computed from .*'{name}'.* is {last}; allowed are 0..4"
        with pytest.raises(InputError, match=said):
            loaded.run(feeds)
        loaded.run({**feeds, name: np.array([4, 4], np.int32)})
