"""A model in another process: its answers, its errors, and the fallback after a driver's abort."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import DeviceError, InputError
from clrt.runtime.model.worker import Worker
from clrt.runtime.opencl import driver
from tests.harness import quick_device
from tests.models.onnx_text import parsed

NEG = parsed("g (float[n] x) => (float[n] y) { y = Neg(x) }")
FEED = {"x": np.array([1, 2], np.float32)}
QUICK = quick_device().index
REFUSED = ("aborts", "hangs")


def load(source: bytes, device: str | int | None) -> Any:
    """Loads a model; a device of a name in `REFUSED` has a driver that aborts or hangs."""
    model = clrt.load(source, device=QUICK if device in REFUSED else device)
    if device in REFUSED:

        def fail(*_: Any, **__: Any) -> None:
            os.abort() if device == "aborts" else time.sleep(60)

        driver.cl.enqueue_nd_range_kernel = fail
    return model


def load_on_crash(source: bytes, device: str | int | None) -> Any:
    """Crashes for any device."""
    os.abort()


def test_a_driver_that_aborts_or_hangs_is_left_for_the_fallback() -> None:
    for device, said in (("aborts", "ended .SIGABRT."), ("hangs", "hangs for 3.0 s")):
        with Worker(load, NEG, device=device, fallback=QUICK, timeout_s=3.0) as worker:
            assert worker.device == device
            with pytest.warns(UserWarning, match=f"{said}; the model goes on with device={QUICK}"):
                assert worker.run(FEED)["y"].tolist() == [-1, -2]
            assert worker.device == QUICK
            with pytest.raises(InputError, match="'z'"):  # the other process goes on
                worker.run({"z": FEED["x"]})
            assert worker.call("run", FEED)["y"].tolist() == [-1, -2]
        with pytest.raises(clrt.ClrtError, match="closed"):
            worker.run(FEED)


def test_a_device_that_is_not_there_is_replaced_with_a_word() -> None:
    with (
        pytest.warns(UserWarning, match="No OpenCL device matches 'absent'.*goes on with"),
        Worker(clrt.load, NEG, device="absent", fallback=QUICK) as worker,
    ):
        assert worker.run(FEED)["y"].tolist() == [-1, -2]
    with pytest.raises(DeviceError, match="absent"):
        Worker(clrt.load, NEG, device="absent", fallback=None)


def test_a_crash_without_another_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match=r"SIGABRT.*no other device"):
        Worker(load_on_crash, NEG, device=QUICK, fallback=None)
