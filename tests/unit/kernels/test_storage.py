"""Narrow dtypes compared with ml_dtypes: every code, and numbers around rounding boundaries."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from clrt.ir.dtypes import WIDENED_STORAGES, DType
from clrt.ir.op import Array
from clrt.ops import REGISTRY
from clrt.ops.attention.paged_cache import PagedOp
from clrt.ops.base import Op
from clrt.ops.generation.sample_tokens import SampleTokens
from clrt.ops.pointwise.cast import Cast
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, run_graph, sample_graph, tolerance
from tests.ops.samples import Sample, samples

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
NARROW = [d for d in DType if d.storage not in ("plain", "half")]
# Of ops on a cache in pages only that may be narrow, of SampleTokens the logits: samples have it.
FLOATS = [
    c
    for c in REGISTRY.all_classes().values()
    if c.supported_storages == WIDENED_STORAGES and not issubclass(c, (PagedOp, SampleTokens))
]


@DEVICES
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_narrow_dtype_code_is_read(dtype: DType, device: DeviceInfo) -> None:
    count = 1 << min(dtype.file_bits, 6 if "float6" in dtype.value else 16)
    codes = np.arange(count, dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
    x = codes.view(dtype.numpy)
    wide = DType.FLOAT32 if dtype.is_float else DType.INT32
    found, _ = run_graph(sample_graph(Sample(Cast(wide), (x,))), {"x0": x}, device)
    np.testing.assert_array_equal(found["y0"], x.astype(wide.numpy))


@DEVICES
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", [d for d in NARROW if d.is_float], ids=str)
def test_casts_to_narrow_floats_match_reference(
    dtype: DType, saturate: bool, device: DeviceInfo
) -> None:
    if dtype is DType.FLOAT8E8M0:
        exponents = np.arange(0, 255, dtype=np.uint32) << 23
        x = np.concatenate([exponents + k for k in (0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF)])
        x = x.astype(np.uint32).view(np.float32)
    else:
        rng = np.random.default_rng(0)
        bits = rng.integers(0, 2**32, 50_000, dtype=np.uint32)
        codes = (
            np.arange(256, dtype=np.uint8).view(dtype.numpy) if dtype.itemsize == 1 else bits[:0]
        )
        exact = np.unique(codes[: 1 << min(dtype.file_bits, 8)].astype(np.float32))
        exact = exact[np.isfinite(exact)]
        middles = (exact[1:] + exact[:-1]) / 2
        around = [np.nextafter(middles, np.float32(s * np.inf)) for s in (1, -1)]
        x = np.concatenate([bits.view(np.float32), exact, middles, *around]).astype(np.float32)
    op = Cast(dtype, saturate)
    found, _ = run_graph(sample_graph(Sample(op, (x,))), {"x0": x}, device)
    (expected,) = op.reference(x)
    np.testing.assert_array_equal(found["y0"].astype(np.float32), expected.astype(np.float32))


def _is_half(array: Array | None) -> bool:
    """Whether an input is absent, float16 or an integer array."""
    return array is None or array.dtype == np.float16 or array.dtype.kind == "i"


@DEVICES
@pytest.mark.parametrize("cls", FLOATS, ids=lambda c: c.name)
def test_bfloat16_is_computed_as_float32(
    cls: type[Op], device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results in bfloat16 and float32 of equal inputs differ only by the final rounding."""
    monkeypatch.setattr(cls, "variants", cls.variants[-1:])
    halves = [s for s in samples(cls) if all(map(_is_half, s.inputs))]
    assert halves
    for sample in halves:
        found = []
        for dtype in (DType.BFLOAT16, DType.FLOAT32):
            inputs = [
                a
                if a is None or a.dtype.kind == "i"
                else a.astype(DType.BFLOAT16.numpy).astype(dtype.numpy)
                for a in sample.inputs
            ]
            feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
            results, plan = run_graph(sample_graph(Sample(sample.op, tuple(inputs))), feeds, device)
            assert not plan.host_steps
            found.append(results)
        for narrow, wide in zip(found[0].values(), found[1].values(), strict=True):
            rounding = float(ml_dtypes.finfo(narrow.dtype).eps) / 2
            np.testing.assert_allclose(
                narrow.astype(np.float32), wide, rounding, tolerance(sample.op, wide)
            )
