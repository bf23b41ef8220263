"""Matrix products by CLBlast, if installed, on clrt's own queue."""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from benchmark.lab import Lab

_ROW_MAJOR, _AS_IT_IS = 101, 111
_ONE_IN_HALF, _ZERO_IN_HALF = 0x3C00, 0


class ClBlastError(RuntimeError):
    """CLBlast refused a product; the message has its status."""


@cache
def _library() -> ctypes.CDLL | None:
    for name in ("libclblast.so.1", ctypes.util.find_library("clblast")):
        with suppress(OSError):
            if name is not None:
                return ctypes.CDLL(name)
    return None


def is_there() -> bool:
    """Returns whether CLBlast's library loads."""
    return _library() is not None


def time_product(lab: Lab, size: int, kind: str, seconds: float) -> float:
    """Measures the seconds of a product of square matrices on the device.

    Args:
        kind: "fp32" or "fp16".

    Raises:
        ClBlastError: It has no such product for this device.
    """
    half = kind == "fp16"
    matrix = np.ones((size, size), np.float16 if half else np.float32)
    buffers = [lab.session.upload(matrix) for _ in range(3)]
    enqueue = _product(lab.session.queue, buffers, size, half)
    return lab.time_launches(enqueue, 1, seconds)


def _product(queue: Any, buffers: list[Any], size: int, half: bool) -> Callable[[], None]:
    library = _library()
    assert library is not None
    function = library.CLBlastHgemm if half else library.CLBlastSgemm
    number: Any = ctypes.c_uint16 if half else ctypes.c_float
    one, zero = (_ONE_IN_HALF, _ZERO_IN_HALF) if half else (1.0, 0.0)
    handle = ctypes.c_void_p(queue.int_ptr)
    wide = ctypes.c_size_t
    a, b, c = ((ctypes.c_void_p(buffer.int_ptr), wide(0), wide(size)) for buffer in buffers)
    sizes = [wide(size)] * 3

    def enqueue() -> None:
        status = function(
            *(_ROW_MAJOR, _AS_IT_IS, _AS_IT_IS, *sizes, number(one), *a, *b, number(zero), *c),
            *(ctypes.byref(handle), None),
        )
        if status:
            raise ClBlastError(f"CLBlast gave status {status}.")

    return enqueue
