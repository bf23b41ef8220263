"""Buffers of the caller as arguments of kernels."""

from typing import Any

import pytest

from clrt.runtime.execution.bound_plan import _External


class _Buffer:
    pass


class _Kernel:
    def __init__(self) -> None:
        self.calls: list[tuple[int, object]] = []
        self.fails = False

    def set_arg(self, index: int, buffer: object) -> None:
        if self.fails:
            raise RuntimeError
        self.calls.append((index, buffer))


def test_an_argument_is_set_once_for_a_buffer() -> None:
    kernel: Any = _Kernel()
    external = _External([(kernel, 2), (kernel, 4)])
    first: Any = _Buffer()
    second: Any = _Buffer()
    for buffer in (first, first, second, first):
        external.set(buffer)
        assert external.buffer is buffer
    expected = [(index, b) for b in (first, second, first) for index in (2, 4)]
    assert kernel.calls == expected


def test_a_buffer_that_is_gone_is_not_known() -> None:
    kernel: Any = _Kernel()
    external = _External([(kernel, 0)])
    gone: Any = _Buffer()
    external.set(gone)
    kernel.calls.clear()
    external.buffer = None
    del gone
    assert external.known is not None and external.known() is None


def test_what_failed_is_set_anew() -> None:
    kernel: Any = _Kernel()
    buffer: Any = _Buffer()
    external = _External([(kernel, 0)])
    external.set(buffer)
    other: Any = _Buffer()
    kernel.fails = True
    with pytest.raises(RuntimeError):
        external.set(other)
    kernel.fails = False
    external.set(buffer)
    assert [b for _, b in kernel.calls] == [buffer, buffer]
