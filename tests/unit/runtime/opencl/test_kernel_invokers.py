"""Cache of pyopencl's generated kernel invokers, one per kernel signature."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
import pytest
from pyopencl import invoker

from clrt.runtime.opencl import kernel_invokers
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.session import session_for
from tests.harness import all_devices

SOURCE = "__kernel void seven(__global int *y, const int at) { y[at] = 7; }"


def test_invoker_code_is_generated_once_per_signature() -> None:
    made: list[tuple[object, ...]] = []

    def make(name: str, count: int, *, devs: list[str], strict: bool) -> str:
        made.append((name, count, strict))
        return f"{name} of {count}"

    remembered = kernel_invokers._cached(make)
    for _ in range(2):
        assert remembered("f", 2, devs=["a"], strict=False) == "f of 2"
    assert remembered("f", 3, devs=["a"], strict=False) == "f of 3"
    assert remembered("f", 3, devs=["a"], strict=True) == "f of 3"
    assert made == [("f", 2, False), ("f", 3, False), ("f", 3, True)]


def test_unhashable_arguments_bypass_invoker_cache() -> None:
    made: list[list[str]] = []

    def make(devs: list[str]) -> str:
        made.append(devs)
        return "code"

    remembered = kernel_invokers._cached(make)
    assert [remembered(["a"]), remembered(["a"])] == ["code", "code"]
    assert made == [["a"], ["a"]]


def test_pyopencl_without_invoker_function_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(invoker, "generate_enqueue_and_set_args")
    kernel_invokers.remember_invokers()
    assert not hasattr(invoker, "generate_enqueue_and_set_args")


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_cached_invokers_call_kernels(device: DeviceInfo) -> None:
    session = session_for(device)
    program = session.programs._compile(cl.Program(session.context, SOURCE), [])
    result = np.zeros(2, np.int32)
    buffer = session.upload(result)
    for at in range(2):
        cl.Kernel(program, "seven")(session.queue, (1,), None, buffer, np.int32(at))
    cl.enqueue_copy(session.queue, result, buffer)
    assert result.tolist() == [7, 7]
