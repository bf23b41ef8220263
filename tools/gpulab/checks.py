"""What the device is, and whether it computes right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from benchmark.runtimes import is_installed

from .state import Found, Item, Place
from .testing import run_tests

# Parts of the op tests, each a process, so that little is lost where one is broken off.
_SHARDS = 40
_FILES = (
    "test_gemm_gpu",
    "test_conv_gpu",
    "test_attention_gpu",
    "test_row_norm",
    "test_indices",
    "test_extremes",
)


def items() -> Iterator[Item]:
    """The device's report, then the op tests."""
    yield Item("device", "report", report)
    for shard in range(_SHARDS):
        name, shown = f"test_ops {shard + 1}/{_SHARDS}", f"{shard}/{_SHARDS}"
        run = partial(test, arguments=("tests/ops/test_ops.py", "--shard", shown))
        yield Item("tests", name, run, 600)
    for name in _FILES:
        yield Item("tests", name, partial(test, arguments=(f"tests/ops/{name}.py",)), 600)


def report(place: Place) -> Found:
    """What `clrt report-device` writes."""
    from clrt.runtime.opencl.devices import choose_device
    from clrt.runtime.opencl.session import session_for
    from clrt.tools.device_report import report_device

    return report_device(session_for(choose_device(place.device)))


def test(place: Place, arguments: tuple[str, ...]) -> Found:
    """The counts of some tests on the device."""
    if not is_installed("pytest"):
        return {"note": "pytest is not installed"}
    environment = {"CLRT_DEVICE": str(place.device)}
    return asdict(run_tests(arguments, environment, place.most_s))
