"""Weights packed by the device equal weights packed by the host."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.graph import Value
from clrt.ir.op import Array, ConcatenatedRows, TensorType
from clrt.kernels.panel_layout import Panels
from clrt.kernels.quantized_panels_cpu import QuantizedPanels
from clrt.kernels.quantized_rows_gpu import PackedQuantizedRows
from clrt.kernels.spec import PackedWeight
from clrt.ops.matmul.gguf_format import GgufFormat
from clrt.runtime.opencl import device_packing
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.weight_store import WeightStore
from tests.ops.test_split_product import DEVICES

rng = np.random.default_rng(23)
READ_TYPES = [t.name for t in BLOCK_TYPES_BY_NAME.values() if t.coding and t.coding.reader]


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_packing, "_MIN_BYTES", 0)
    monkeypatch.setattr(device_packing, "_CHUNK_BYTES", 20_000)


def packed_there(source: PackedWeight, device: DeviceInfo) -> Array:
    """Returns the weights packed by the device."""
    session = session_for(device)
    assert device_packing.packs(source, session) is not device.caps.simulator
    buffer = device_packing.pack(source, session, WeightStore(session).programs.kernel)
    made = np.empty(source.nbytes, np.uint8)
    if buffer.host is None:
        from clrt.runtime.opencl.driver import cl

        cl.enqueue_copy(session.queue, made, buffer)
    else:
        made[:] = buffer.host[: source.nbytes]
    return made


def split_count(array: Array, *borders: int) -> Value:
    """Returns a constant whose rows are in separate parts."""
    parts = tuple(np.split(array, borders))
    return Value("w", TensorType.of(ConcatenatedRows(parts, array.dtype)))


def assert_same(made: Array, expected: Array) -> None:
    other = np.flatnonzero(made != expected)
    # Any bits are a number; of those that are none, the bits may be others.
    pairs = [x.view(np.float16)[other // 2] for x in (made, expected)]
    assert np.isnan(pairs[0]).all() and np.isnan(pairs[1]).all()
    assert len(other) < len(made) // 100


@DEVICES
@pytest.mark.parametrize("name", READ_TYPES)
def test_device_packed_gguf_blocks_equal_host(device: DeviceInfo, name: str) -> None:
    n, k = (35, 256) if device.caps.simulator else (131, 512)
    check_blocks(GgufFormat.panels, name, n, k, device)


def check_blocks(
    packed: Callable[[GgufFormat], QuantizedPanels | PackedQuantizedRows],
    name: str,
    n: int,
    k: int,
    device: DeviceInfo,
) -> None:
    """Checks that a device packs rows of random bytes, in parts, like NumPy."""
    found = BLOCK_TYPES_BY_NAME[name]
    raw = rng.integers(0, 256, (n, found.row_bytes(k)), dtype=np.uint8)
    source = packed(GgufFormat(found, n, k, split_count(raw, n // 3, n // 2))).packed
    assert_same(packed_there(source, device), source.pack(raw).reshape(-1))


@DEVICES
@pytest.mark.parametrize("name", ["Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q6_K"])
def test_device_packed_gguf_rows_equal_host(device: DeviceInfo, name: str) -> None:
    """Compares the weight layout that GPU kernels read."""
    n, k = (5, 256) if device.caps.simulator else (131, 768)
    check_blocks(GgufFormat.rows, name, n, k, device)


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_device_packed_panels_equal_host(device: DeviceInfo, dtype: str) -> None:
    for n, k, width in ((100, 70, 24), (24, 1, 24), (5, 129, 16)):
        weight = rng.standard_normal((n, k)).astype(dtype)
        whole = Value("w", TensorType.of(weight[None]))  # of one direction
        for value in (split_count(weight, n // 3), whole):
            source = Panels(k, n, width, transposed=True).of(value)
            expected = source.pack(weight).reshape(-1).view(np.uint8)
            assert np.array_equal(packed_there(source, device), expected)
