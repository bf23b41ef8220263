"""Model in a worker process: results, errors, and fallback after a driver crash."""

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
    """Loads a model; for a device name in `REFUSED` it aborts or hangs."""
    model = clrt.load(source, device=QUICK if device in REFUSED else device)
    if device in REFUSED:

        def fail(*_: Any, **__: Any) -> None:
            os.abort() if device == "aborts" else time.sleep(60)

        driver.cl.enqueue_nd_range_kernel = fail
    return model


def load_on_crash(source: bytes, device: str | int | None) -> Any:
    """Crashes for any device."""
    os.abort()


def test_aborting_or_hanging_driver_switches_to_fallback() -> None:
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


def test_missing_device_falls_back_with_warning() -> None:
    with (
        pytest.warns(UserWarning, match="No OpenCL device matches 'absent'.*goes on with"),
        Worker(clrt.load, NEG, device="absent", fallback=QUICK) as worker,
    ):
        assert worker.run(FEED)["y"].tolist() == [-1, -2]
    with pytest.raises(DeviceError, match="absent"):
        Worker(clrt.load, NEG, device="absent", fallback=None)


def test_crash_without_fallback_raises_device_error() -> None:
    with pytest.raises(DeviceError, match=r"SIGABRT.*no other device"):
        Worker(load_on_crash, NEG, device=QUICK, fallback=None)
