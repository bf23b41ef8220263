"""OrtValues and I/O bindings against ONNX Runtime, and on devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import clrt.onnxruntime as ort
from clrt.onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented, RuntimeException
from clrt.runtime.opencl.tensors import DeviceTensor
from tests.models.onnx_text import normal
from tests.onnxruntime.side_by_side import agree, same, session

TEXT = """
    g (float[n, 3] x) => (float[n, 3] y, float[n] s) <int64[1] a = {1}>
    { y = Add(x, x)  s = ReduceSum<keepdims = 0>(x, a) }
"""
VALUES = [
    np.float32([[1, 2], [3, 4]]),
    np.float16([1]),
    np.array(3),
    np.array([True]),
    np.asfortranarray(np.float64([[1, 2], [3, 4]])),
    np.array(["text"]),
    [1, 2],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: str(getattr(v, "dtype", "list")))
def test_ortvalue_properties_match_onnxruntime(value: Any) -> None:
    def told(runtime: Any) -> Any:
        made = runtime.OrtValue.ortvalue_from_numpy(value)
        kinds = made.is_tensor(), made.is_sparse_tensor(), made.is_tensor_sequence()
        size = made.tensor_size_in_bytes(), made.shape(), made.data_type(), made.element_type()
        return kinds, size, made.has_value(), made.device_name(), made.numpy(), np.asarray(made)

    agree(told)


def test_ortvalue_shares_array_memory() -> None:
    def shared(runtime: Any) -> Any:
        array = normal(1, 2, 3)
        value = runtime.OrtValue.ortvalue_from_numpy(array)
        array[0, 0] = 7
        value.numpy()[0, 1] = 8
        before = array.copy()
        value.update_inplace(np.full((2, 3), 5, np.float32))
        own = value.data_ptr() == array.ctypes.data
        return before, array, own, np.from_dlpack(value), value.__dlpack_device__()

    agree(shared)
    agree(lambda r: r.OrtValue.from_dlpack(normal(1, 4)).numpy())
    made = ort.OrtValue.ortvalue_from_numpy(normal(1, 2))
    for wrong in (normal(1, 3), np.arange(2, dtype=np.int32)):
        with pytest.raises(RuntimeException, match="does not match"):
            made.update_inplace(wrong)


def test_ortvalue_of_given_type_matches_onnxruntime() -> None:
    for type_ in (np.float32, np.int64, TensorProto.FLOAT16, TensorProto.BOOL, np.str_):
        agree(
            lambda r, t=type_: _told(r.OrtValue.ortvalue_from_shape_and_type([2, 3], t)),
        )
    bits = np.full(3, 0x3F80, np.uint16)

    def half(runtime: Any) -> Any:
        make = runtime.OrtValue.ortvalue_from_numpy_with_onnx_type
        text = "g (bfloat16[n] x) => (float[n] y) { y = Cast<to = 1>(x) }"
        made = make(bits, TensorProto.BFLOAT16)
        (found,) = session(runtime, text).run_with_ort_values(None, {"x": made})
        return made.data_type(), found.numpy()

    agree(half)
    agree(lambda r: r.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.FLOAT))


def _told(value: Any) -> Any:
    return value.data_type(), value.shape(), value.numpy().dtype


@pytest.mark.skipif(ort.get_device() == "GPU", reason="there is a GPU")
@pytest.mark.parametrize("place", ["cuda", "dml"])
def test_ortvalue_on_missing_device_is_refused(place: str) -> None:
    agree(lambda r: r.OrtValue.ortvalue_from_numpy(normal(1, 2), place, 0))
    with pytest.raises(ValueError, match="Unsupported device type"):
        ort.OrtValue.ortvalue_from_numpy(normal(1, 2), "toaster", 0)


def test_ortdevice_ids_and_types_match_onnxruntime() -> None:
    def numbers(runtime: Any) -> Any:
        made = [runtime.OrtDevice.make(n, 0) for n in ("cpu", "cuda", "dml", "gpu", "npu")]
        return [(m.device_id(), m.device_type(), m.device_mem_type()) for m in made]

    agree(numbers)


def test_io_binding_matches_onnxruntime() -> None:
    def bound(runtime: Any) -> Any:
        made, x = session(runtime, TEXT), normal(1, 2, 3)
        binding = made.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("s")
        binding.bind_output("y", "cpu")
        made.run_with_iobinding(binding)
        first = binding.copy_outputs_to_cpu()
        x[:] = 3
        made.run_with_iobinding(binding, runtime.RunOptions())
        # Copies: ONNX Runtime's arrays may lie in memory that goes with the values.
        values = [v.numpy().copy() for v in binding.get_outputs()]
        binding.clear_binding_outputs()
        y = np.zeros((2, 3), np.float32)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        s = runtime.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
        binding.bind_ortvalue_output("s", s)
        binding.bind_input("x", "cpu", 0, TensorProto.FLOAT, x.shape, x.ctypes.data)
        made.run_with_iobinding(binding)
        binding.synchronize_outputs()
        vector = binding.get_outputs_as_ortvaluevector()
        own = binding.get_outputs()[1].data_ptr() == s.data_ptr()
        return first, values, y, s.numpy().copy(), own, len(vector)

    agree(bound)


def test_invalid_io_binding_errors_match_onnxruntime() -> None:
    def run(runtime: Any, bind: Any) -> Any:
        made = session(runtime, TEXT)
        binding = made.io_binding()
        bind(binding, runtime.OrtValue.ortvalue_from_numpy)
        made.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    def rank(binding: Any, value: Any) -> None:
        binding.bind_cpu_input("x", normal(1, 3))
        binding.bind_output("y")

    def shape(binding: Any, value: Any) -> None:
        binding.bind_ortvalue_input("x", value(normal(1, 2, 3)))
        binding.bind_ortvalue_output("y", value(normal(1, 4, 3)))

    def dtype(binding: Any, value: Any) -> None:
        binding.bind_ortvalue_input("x", value(normal(1, 2, 3)))
        binding.bind_ortvalue_output("y", value(np.zeros((2, 3))))

    def cleared(binding: Any, value: Any) -> None:
        rank(binding, value)
        binding.clear_binding_inputs()

    nothing: Any = lambda binding, value: binding.bind_cpu_input("x", normal(1, 2, 3))  # noqa: E731
    unknown: Any = lambda binding, value: binding.bind_cpu_input("q", normal(1, 2, 3))  # noqa: E731
    untyped: Any = lambda binding, value: binding.bind_output("y", buffer_ptr=1)  # noqa: E731
    for bind in (rank, shape, dtype, cleared, nothing, unknown, untyped):
        agree(lambda runtime, bind=bind: run(runtime, bind))
    agree(lambda r: session(r, TEXT).run_with_iobinding(session(r, TEXT).io_binding()))


def test_io_binding_keeps_outputs_on_device() -> None:
    made, x = session(ort, TEXT), normal(1, 2, 3)
    binding = made.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x, "clrt", 0))
    binding.bind_output("y", "clrt")
    binding.bind_output("s")
    for power in (2, 4):
        made.run_with_iobinding(binding)
        y, s = binding.get_outputs()
        assert isinstance(y.held, DeviceTensor) and isinstance(s.held, np.ndarray)
        assert (y.device_name(), s.device_name()) == ("clrt", "cpu")
        same([y.numpy(), y.shape(), y.data_type()], [power * x, [2, 3], "tensor(float)"])
        binding.bind_ortvalue_input("x", y)
    (again,) = made.run(["y"], {"x": y})
    same(again, 8 * x)
    y.update_inplace(x)
    same(made.run_with_ort_values(["y"], {"x": y})[0].numpy(), 2 * x)
    with pytest.raises(RuntimeException, match="no address"):
        y.data_ptr()
    with pytest.raises(NotImplemented, match="cannot be used by OpenCL"):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], 1)


def test_run_with_ortvalues_matches_onnxruntime() -> None:
    def ran(runtime: Any) -> Any:
        made, value = session(runtime, TEXT), runtime.OrtValue.ortvalue_from_numpy(normal(1, 2, 3))
        found = made.run_with_ort_values(["s", "y"], {"x": value})
        mixed = made.run(["s"], {"x": value})
        made_here = made.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
        return [v.numpy() for v in found], mixed, made_here.shape()

    agree(ran)
    made, value = session(ort, TEXT), ort.OrtValue.ortvalue_from_numpy(normal(1, 2, 3))
    vector = made.io_binding().get_outputs_as_ortvaluevector()
    made.run_with_ortvaluevector(None, ["x"], [value], ["y"], vector, [])
    same(vector[0].numpy(), 2 * value.numpy())


def test_sequence_ortvalue_matches_onnxruntime() -> None:
    text = "g (float[n, 3] x) => (seq(float[3]) q) { q = SplitToSequence<keepdims = 0>(x) }"

    def ran(runtime: Any) -> Any:
        value = runtime.OrtValue.ortvalue_from_numpy(normal(1, 2, 3))
        (found,) = session(runtime, text).run_with_ort_values(None, {"x": value})
        return found.is_tensor(), found.is_tensor_sequence(), found.data_type()

    agree(ran)
    assert onnxruntime.OrtValue is not ort.OrtValue
