"""Failures injected into every driver call: clrt raises its own error and the model recovers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import ClrtError, DeviceError, KernelBuildError, OutOfMemoryError
from clrt.runtime.opencl import programs as programs_module
from clrt.runtime.opencl import session as session_module
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.driver import Guard, cl
from clrt.runtime.opencl.session import TrackedBuffer, session_for
from tests.conftest import let_go
from tests.harness import DRIVERS
from tests.models.onnx_text import normal, parsed

CODES = {
    "OUT_OF_RESOURCES": cl.RuntimeError,
    "OUT_OF_HOST_MEMORY": cl.RuntimeError,
    "INVALID_VALUE": cl.LogicError,
    "DEVICE_NOT_AVAILABLE": cl.RuntimeError,
}
# What clrt calls of pyopencl: (owner, name). Kernels and queues are made where they are looked up.
CALLS: list[tuple[Any, str]] = [
    (cl, "CommandQueue"),
    (cl, "Kernel"),
    (cl, "enqueue_copy"),
    (cl, "enqueue_fill_buffer"),
    (cl, "enqueue_nd_range_kernel"),
    (cl.Buffer, "__init__"),
    (TrackedBuffer, "__init__"),
    (cl.Program, "__init__"),
    (cl.Program, "build"),
    (cl.Kernel, "set_arg"),
    (cl.Kernel, "_set_arg_buf"),
    (cl.Kernel, "get_work_group_info"),
    (cl.CommandQueue, "finish"),
    (cl.CommandQueue, "flush"),
    (cl.Event, "wait"),
    (programs_module, "binary_of"),
    (session_module, "new_context"),
]


class Fault:
    """Makes the n-th driver call fail, with error codes in rotation.

    Args:
        at: Number of the failing call, from 1; 0 for none.
        after: The call takes effect, then fails as if the device were gone.

    Attributes:
        first: Number of the first call from each call stack, in order.
    """

    def __init__(self, at: int, *, after: bool = False) -> None:
        self.at, self.after = at, after
        self.code = "DEVICE_NOT_AVAILABLE" if after else [*CODES][at % len(CODES)]
        self.calls = 0
        self.hit = ""
        self.first: dict[tuple[object, ...], int] = {}

    def error(self, name: str) -> cl.Error:
        record = cl._cl._ErrorRecord(name, getattr(cl.status_code, self.code), "injected")
        return CODES[self.code](record)

    def wrapped(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def attempt(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if not self.at:
                self.first.setdefault((name, *_stack()), self.calls)
            fails = self.calls == self.at
            if fails:
                self.hit = name
            if fails and not self.after:
                raise self.error(name)
            result = call(*args, **options)
            if fails:
                raise self.error(name)
            return result

        return attempt

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Counts driver calls and injects the failure within the context."""
        with pytest.MonkeyPatch.context() as patch:
            for owner, name in CALLS:
                if hasattr(owner, name):
                    # Looked up in the class itself: a method that is inherited stays so.
                    patch.setattr(owner, name, self.wrapped(getattr(owner, name), name))
            yield


def _stack() -> Iterator[tuple[object, int]]:
    """Yields code objects and line numbers of the callers."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        yield frame.f_code, frame.f_lineno


def small() -> bytes:
    """Returns a model of Gather, MatMul, Softmax and Add: [n, m] -> [n, m, 8]."""
    return parsed(
        """
        g (int64[n, m] ids, float[60, 8] table, float[8, 8] w, float[8] b) => (float[n, m, 8] y)
        {
          e = Gather(table, ids)
          p = MatMul(e, w)
          s = Softmax(p)
          y = Add(s, b)
        }
        """
    )


def feeds(n: int, m: int) -> dict[str, Any]:
    ids = np.arange(n * m).reshape(n, m) % 60
    return {"ids": ids, "table": normal(1, 60, 8), "w": normal(2, 8, 8), "b": normal(3, 8)}


FEEDS = (feeds(2, 3), feeds(2, 3), feeds(3, 5))


def use(model: clrt.Model) -> list[Any]:
    """Runs a model twice, with a new shape, and with a device output; returns the results."""
    first = model.run(FEEDS[0])["y"]
    second = model.run(FEEDS[1])["y"]
    other = model.run(FEEDS[2])["y"]
    kept = model.run(FEEDS[2], device_outputs=True)["y"]
    return [first, second, other, kept.numpy()]


def check(model: clrt.Model, wanted: list[Any]) -> None:
    """Asserts that the model still runs, at a known and at another shape."""
    for feed, expected in ((FEEDS[0], wanted[0]), (FEEDS[2], wanted[2])):
        np.testing.assert_array_equal(model.run(feed)["y"], expected)


def forget_programs(device: DeviceInfo) -> None:
    cache = session_for(device).programs
    cache._recent.clear()


def _places(source: bytes, device: DeviceInfo) -> list[int]:
    """Returns numbers of the first call from each call stack, and of the last call."""
    forget_programs(device)
    fault = Fault(0)
    with fault.armed(), clrt.load(source, device=device.index) as model:
        use(model)
    return [*fault.first.values(), fault.calls]


@DRIVERS
@pytest.mark.parametrize("after", [False, True], ids=["refused", "failed_late"])
def test_every_driver_call_failure_is_recoverable(device: DeviceInfo, after: bool) -> None:
    """During load, first run, second run and new shape; before or after the call takes effect."""
    source = small()
    let_go()  # else what other tests compiled is written, too
    with clrt.load(source, device=device.index) as model:
        wanted = use(model)
    session = session_for(device)
    session.programs.save()
    gc.collect()
    session.trim()
    before = session.allocated_bytes
    seen: set[str] = set()
    for at in _places(source, device):
        forget_programs(device)
        fault = Fault(at, after=after)
        model = None
        with fault.armed():
            try:
                model = clrt.load(source, device=device.index)
                results = use(model)
            except ClrtError as error:
                assert isinstance(error, DeviceError), error
                assert fault.code in str(error) and "a batch of" not in str(error)
                assert isinstance(error, OutOfMemoryError) == fault.code.startswith("OUT_OF")
                assert "is gone" in str(error) or fault.code != "DEVICE_NOT_AVAILABLE"
            else:
                for found, expected in zip(results, wanted, strict=True):
                    np.testing.assert_array_equal(found, expected)
        assert fault.hit
        seen.add(fault.hit)
        if model is None:
            model = clrt.load(source, device=device.index)
        with model:
            check(model, wanted)
    model = results = None
    gc.collect()
    session.trim()
    assert session.allocated_bytes == before
    assert {"Kernel", "__init__", "enqueue_nd_range_kernel", "enqueue_copy", "finish"} <= seen


@DRIVERS
def test_first_use_driver_failure_is_recoverable(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """First creation of context, queue and compiled programs."""
    source = parsed("g (float[n] x) => (float[n] y) { y = Exp(x) }")
    feed = {"x": np.ones(3, np.float32)}
    seen: set[str] = set()
    sessions: dict[Any, Any] = {}
    monkeypatch.setattr(session_module, "_SESSIONS", sessions)

    def first_use(fault: Fault, folder: Path) -> None:
        let_go()  # a program that waits to be saved keeps its context
        sessions.clear()
        with fault.armed():
            model = clrt.load(source, device=device.index, cache_dir=folder)
            model.run(feed)
            model.save_programs()

    first_use(counted := Fault(0), tmp_path)
    for at in (*counted.first.values(), counted.calls):
        fault = Fault(at)
        folder = tmp_path / str(at)
        try:
            first_use(fault, folder)
        except ClrtError as error:
            assert isinstance(error, DeviceError) and fault.code in str(error), error
        assert fault.hit
        seen.add(fault.hit)
        model = clrt.load(source, device=device.index, cache_dir=folder)
        assert model.run(feed)["y"].tolist() == pytest.approx([np.e] * 3)
    assert {"new_context", "CommandQueue", "build", "binary_of"} <= seen


@DRIVERS
def test_compiler_out_of_memory_is_not_kernel_build_error(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = parsed("g (float[n] x) => (float[n] y) { y = Cosh(x) }")
    model = clrt.load(source, device=device.index, cache_dir=tmp_path)
    forget_programs(device)
    codes = cl.status_code
    for routine, code, expected in (
        ("build", codes.OUT_OF_HOST_MEMORY, OutOfMemoryError),
        ("build", codes.BUILD_PROGRAM_FAILURE, KernelBuildError),
        ("Kernel", codes.INVALID_KERNEL_NAME, KernelBuildError),
    ):

        def refuse(*args: Any, _code: int = code, **options: Any) -> None:
            raise cl.RuntimeError(cl._cl._ErrorRecord("clBuildProgram", _code, "injected"))

        with monkeypatch.context() as patch:
            patch.setattr(cl.Program if routine == "build" else cl, routine, refuse)
            with pytest.raises(expected):
                model.run({"x": np.zeros(3, np.float32)})
    assert model.run({"x": np.zeros(3, np.float32)})["y"].tolist() == [1, 1, 1]


def test_driver_error_messages_name_call_and_status() -> None:
    guard = Guard("A device", 1000, lambda: 3 << 20)

    def said(code: int, nbytes: int = 0) -> str:
        record = cl._cl._ErrorRecord("clFinish", code, "log")
        return str(guard.translated(cl.RuntimeError(record), nbytes))

    codes = cl.status_code
    assert "not enough memory for 12 bytes: clFinish returned OUT_OF_RES" in said(
        codes.OUT_OF_RESOURCES, 12
    )
    assert "not enough memory: clFinish returned OUT_OF_HOST" in said(codes.OUT_OF_HOST_MEMORY)
    assert "(3.0 MiB are in use by clrt)" in said(codes.OUT_OF_HOST_MEMORY)
    assert "is gone: clFinish returned DEVICE_NOT" in said(codes.DEVICE_NOT_AVAILABLE)
    assert "failed: clFinish returned INVALID_VALUE" in said(codes.INVALID_VALUE)
    assert "returned status -12345" in said(-12345)
    with pytest.raises(OutOfMemoryError, match="host's memory returned MemoryError"), guard:
        raise MemoryError
    with pytest.raises(ZeroDivisionError), guard:
        raise ZeroDivisionError
