"""Device tensors: NumPy protocols, DLPack, and explicit release."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import clrt
from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.runtime.opencl.session import session_for
from tests.harness import all_devices, quick_device
from tests.models.onnx_text import parsed

DEVICE = quick_device().index
SHARES = [d.index for d in all_devices() if session_for(d).shares_memory]
FLOATS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def add_one() -> Any:
    text = (
        "g (float[n] x) => (float[n] y) { one = Constant<value = float {1.0}>() y = Add(x, one) }"
    )
    with clrt.load(parsed(text), device=DEVICE) as model:
        yield model


@pytest.mark.parametrize("dtype", DType)
def test_numpy_accepts_clrt_dtype(dtype: DType) -> None:
    assert np.dtype(dtype) == dtype.numpy
    assert np.zeros(2, dtype).dtype == np.zeros(2, dtype.numpy).dtype


def test_numpy_accepts_dtype_of_input_spec(add_one: clrt.Model) -> None:
    (spec,) = add_one.inputs
    assert np.dtype(spec.dtype) == np.float32
    np.testing.assert_array_equal(add_one.run(np.ones(2, spec.dtype))["y"], [2, 2])


@pytest.mark.parametrize(
    "array",
    [
        FLOATS,
        FLOATS.T,
        FLOATS[:, ::-1],
        np.array(3, np.int64),
        np.zeros((0, 2), np.float16),
        np.array([True, False]),
        FLOATS.astype(ml_dtypes.bfloat16),
        FLOATS.astype(ml_dtypes.float8_e4m3fn),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_array_round_trips_through_device_tensor(array: np.ndarray[Any, Any]) -> None:
    there = clrt.tensor(array, device=DEVICE)
    assert (there.shape, there.ndim, there.size) == (array.shape, array.ndim, array.size)
    back = np.asarray(there)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_tensor_infers_dtype_and_refuses_invalid_data() -> None:
    assert clrt.tensor([[1.5, 2]], device=DEVICE).dtype is DType.FLOAT32
    assert clrt.tensor([1, 2], device=DEVICE).dtype is DType.INT64
    assert clrt.tensor(FLOATS, "float16", device=DEVICE).dtype is DType.FLOAT16
    assert clrt.tensor(FLOATS, DType.BFLOAT16, device=DEVICE).dtype is DType.BFLOAT16
    assert clrt.tensor(clrt.tensor(FLOATS, device=DEVICE), device=DEVICE).shape == (2, 3)
    for wrong in (["a"], [object()], [[1], [1, 2]], np.zeros(1, np.complex64)):
        with pytest.raises(InputError):
            clrt.tensor(wrong, device=DEVICE)


def test_numpy_array_protocol_honours_dtype_and_copy() -> None:
    there = clrt.tensor(FLOATS, device=DEVICE)
    assert np.asarray(there, np.float64).dtype == np.float64
    copied = np.array(there)
    copied[:] = 0
    np.testing.assert_array_equal(there.numpy(), FLOATS)
    with pytest.raises(ValueError, match="without a copy"):
        there.__array__(np.float64, copy=False)


@pytest.mark.parametrize("device", SHARES)
def test_dlpack_shares_cpu_memory(device: int) -> None:
    there = clrt.tensor(FLOATS, device=device)
    first, second = np.from_dlpack(there), there.__array__(copy=False)
    assert np.shares_memory(first, second)
    np.testing.assert_array_equal(first, FLOATS)
    assert not np.shares_memory(second, np.from_dlpack(there, copy=True))


@pytest.mark.parametrize("device", SHARES)
def test_dlpack_shared_memory_is_not_reused(device: int) -> None:
    shared = np.from_dlpack(clrt.tensor(FLOATS, device=device))
    others = [clrt.tensor(np.full_like(FLOATS, 9), device=device) for _ in range(4)]
    np.testing.assert_array_equal(shared, FLOATS)
    assert not any(np.shares_memory(shared, np.from_dlpack(o)) for o in others)


def test_dlpack_copies_non_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU buffers have no host memory."""
    there = clrt.tensor(FLOATS, device=DEVICE)
    monkeypatch.setattr(type(there), "_shared", lambda self: None)
    assert there.__dlpack_device__() == (1, 0)
    np.testing.assert_array_equal(np.from_dlpack(there), FLOATS)
    np.testing.assert_array_equal(np.from_dlpack(there, device="cpu"), FLOATS)
    with pytest.raises(BufferError, match="must be copied"):
        there.__dlpack__(copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        there.__array__(copy=False)


def test_dlpack_refuses_unsupported_requests() -> None:
    there = clrt.tensor(FLOATS, device=DEVICE)
    with pytest.raises(BufferError, match="to the host"):
        there.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="no streams"):
        there.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"view\('u2'\)"):
        np.from_dlpack(clrt.tensor(FLOATS, "bfloat16", device=DEVICE))


def test_from_dlpack_accepts_foreign_arrays() -> None:
    class Foreign:
        """An array that supports only DLPack."""

        def __dlpack__(self, **options: Any) -> Any:
            return FLOATS.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return FLOATS.__dlpack_device__()

    np.testing.assert_array_equal(clrt.from_dlpack(Foreign(), device=DEVICE).numpy(), FLOATS)
    with pytest.raises(InputError, match="a list by DLPack"):
        clrt.from_dlpack([1, 2], device=DEVICE)


def test_torch_tensors_round_trip_by_dlpack() -> None:
    torch = pytest.importorskip("torch")
    there = clrt.from_dlpack(torch.arange(6.0).reshape(2, 3), device=DEVICE)
    np.testing.assert_array_equal(there.numpy(), FLOATS)
    assert torch.equal(torch.from_dlpack(there), torch.arange(6.0).reshape(2, 3))


def test_released_tensor_memory_is_reused(add_one: clrt.Model) -> None:
    with clrt.tensor(FLOATS[0], device=DEVICE) as there:
        buffer = there.buffer
        np.testing.assert_array_equal(add_one.run(there)["y"], FLOATS[0] + 1)
    assert clrt.tensor(FLOATS[0], device=DEVICE).buffer is buffer
    there.release()
    for use in (there.numpy, lambda: add_one.run(there), lambda: np.from_dlpack(there)):
        with pytest.raises(InputError, match="was released"):
            use()


def test_donated_tensor_stays_donated_after_release(add_one: clrt.Model) -> None:
    there = clrt.tensor(FLOATS[0], device=DEVICE)
    add_one.run(there, donate=["x"])
    there.release()
    with pytest.raises(InputError, match="was donated"):
        there.numpy()
