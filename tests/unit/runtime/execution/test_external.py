"""Caller-owned buffers bound as kernel arguments."""

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


def test_unchanged_buffer_sets_kernel_argument_once() -> None:
    kernel: Any = _Kernel()
    external = _External([(kernel, 2), (kernel, 4)])
    first: Any = _Buffer()
    second: Any = _Buffer()
    for buffer in (first, first, second, first):
        external.set(buffer)
        assert external.buffer is buffer
    expected = [(index, b) for b in (first, second, first) for index in (2, 4)]
    assert kernel.calls == expected


def test_external_does_not_keep_buffer_alive() -> None:
    kernel: Any = _Kernel()
    external = _External([(kernel, 0)])
    gone: Any = _Buffer()
    external.set(gone)
    kernel.calls.clear()
    external.buffer = None
    del gone
    assert external.known is not None and external.known() is None


def test_kernel_argument_is_set_again_after_failure() -> None:
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
