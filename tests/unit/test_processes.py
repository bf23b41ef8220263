"""Number of test worker processes, and their memory limits."""

from __future__ import annotations

import os

import numpy as np
import pytest

from clrt.ops.pointwise.table import Relu
from clrt.runtime.opencl.session import session_for
from tests import conftest
from tests.harness import quick_device, run_graph, sample_graph
from tests.ops.samples import Sample

GIB = 1 << 30


@pytest.mark.parametrize(
    ("available", "cores", "workers"),
    [(16 * GIB, 4, 4), (16 * GIB, 64, 8), (5 * GIB, 4, 2), (GIB, 4, 1), (16 * GIB, 1, 1)],
)
def test_worker_count_follows_cores_and_memory(
    available: int, cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "_available_bytes", lambda: available)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores), raising=False)
    assert conftest.pytest_xdist_auto_num_workers() == workers


def test_process_memory_is_read_in_bytes() -> None:
    assert 16 << 20 < conftest._available_bytes() < 1 << 50
    assert 16 << 20 < conftest._resident_bytes() < 1 << 50
    assert conftest._peak_bytes() > conftest._resident_bytes() // 2
    assert conftest._shared_bytes() < conftest._resident_bytes()


def test_programs_are_released_past_memory_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "_held", 0)
    device, x = quick_device(), np.ones(4, np.float32)
    run_graph(sample_graph(Sample(Relu(), (x,))), {"x0": x}, device)
    programs = session_for(device).programs
    for held, left in ((conftest.LEFT_BYTES - 1, True), (conftest.LEFT_BYTES + 1, False)):
        monkeypatch.setattr(conftest, "_resident_bytes", lambda held=held: held)
        conftest.pytest_runtest_setup()
        assert bool(programs._recent) == left  # models of other tests may hold programs


def test_excess_process_memory_fails_one_test(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(conftest, "_reported", conftest.MOST_BYTES)
    monkeypatch.setattr(conftest, "_peak_bytes", lambda: 4 * GIB)
    monkeypatch.setattr(conftest, "_shared_bytes", lambda: GIB)
    with pytest.raises(pytest.fail.Exception, match="hold 3072 of at most 2048 MiB"):
        conftest.pytest_runtest_teardown(request.node)
    conftest.pytest_runtest_teardown(request.node)
