"""Rows of small launches become one launch each, once a plan has run often."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.errors import DeviceError, InputError
from clrt.ir.op import Array
from clrt.kernels.spec import KernelSpec
from clrt.runtime.execution import bound_plan, launch_rows
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.launch_rows import RowLimits
from clrt.runtime.opencl.background_compiler import BackgroundCompiler, CompileJob
from clrt.runtime.opencl.programs import ProgramCache
from clrt.util.background import BACKGROUND
from tests.harness import all_devices, name_of
from tests.models.onnx_text import parsed

CPUS = pytest.mark.parametrize("device", [d for d in all_devices() if d.caps.is_cpu], ids=name_of)
SOURCE = """
    g (int64[n] ids, float[60, 8] table, float[8, 8] w) => (float[n, 8] y, float[n, 1] z)
    <int64[1] axes = {-1}>
    {
      e = Gather(table, ids)
      p = MatMul(e, w)
      y = Softmax(p)
      z = ReduceSum <keepdims = 1> (p, axes)
    }
"""
WAIT_S = 100.0


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_plan, "_RUNS_BEFORE_ROWS", 3)
    monkeypatch.setattr(bound_plan, "_MAX_ROWS_S", 100.0)
    monkeypatch.setattr(RowLimits, "launch_ns", 1 << 40)  # the machine may be busy
    monkeypatch.setattr(launch_rows, "_MAX_SLOWDOWN", 1e9)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[CompileJob]:
    """Jobs that would go to compiler processes."""
    submitted: list[CompileJob] = []
    monkeypatch.setattr(BackgroundCompiler, "submit", lambda self, jobs: submitted.extend(jobs))
    return submitted


def feeds(n: int) -> dict[str, Array]:
    draw = np.random.default_rng(n)
    return {
        "ids": draw.integers(0, 60, n),
        "table": draw.standard_normal((60, 8), np.float32),
        "w": draw.standard_normal((8, 8), np.float32),
    }


def load(device: clrt.DeviceInfo, folder: Path, **options: Any) -> clrt.Model:
    """Loads the model with all its programs compiled, except those of rows."""
    model = clrt.load(parsed(SOURCE), device=device.index, cache_dir=folder, tiers=True, **options)
    model.warmup({name: array.shape for name, array in feeds(4).items()})
    return model


def cache_of(model: clrt.Model) -> ProgramCache:
    return model._session.caches[-1]


def finish(model: clrt.Model, jobs: list[CompileJob]) -> None:
    """Takes over the programs of jobs, as if compiler processes had built them."""
    for job in jobs:
        cache_of(model)._finish(job, True)


def bound_plans(model: clrt.Model) -> list[BoundPlan]:
    stages = model._runner.planner.kept.values()
    return [bound for s in stages for bound in s.bound.values() if bound.ready]


def is_joined(model: clrt.Model) -> bool:
    return any(len(bound.commands) < len(bound.steps) for bound in bound_plans(model))


def run_until(model: clrt.Model, condition: Callable[[], Any]) -> None:
    """Runs a model until a condition holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        check(model, 4)
        time.sleep(0.01)


def expected(n: int) -> dict[str, Array]:
    given = feeds(n)
    p = given["table"][given["ids"]] @ given["w"]
    exp = np.exp(p - p.max(1, keepdims=True))
    return {"y": exp / exp.sum(1, keepdims=True), "z": p.sum(1, keepdims=True)}


def check(model: clrt.Model, n: int) -> None:
    """Asserts that results are right, of arrays and of tensors on the device."""
    for name, array in model.run(feeds(n)).items():
        np.testing.assert_allclose(array, expected(n)[name], 1e-5, 1e-5)
    inputs = {k: clrt.tensor(a, device=model.device.index) for k, a in feeds(n).items()}
    for name, tensor in model.run(inputs, device_outputs=True).items():
        np.testing.assert_allclose(tensor.numpy(), expected(n)[name], 1e-5, 1e-5)


@CPUS
def test_launches_are_joined_once_programs_are_compiled(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with load(device, tmp_path) as model:
        run_until(model, lambda: jobs)
        assert not is_joined(model)
        finish(model, jobs)
        run_until(model, lambda: is_joined(model))
        # Each size has rows of its own; plans of one template hand their kernels on.
        for n in (4, 5, 6, 1, 4):
            for _ in range(4):
                check(model, n)
        run_until(model, lambda: is_joined(model))
        bad = {**feeds(4), "ids": np.array([0, 60, 0, 0])}
        with pytest.raises(InputError, match="an index of input 'ids' is 60"):
            model.run(bad)
        check(model, 4)
        assert len(model.profile(feeds(4), repeat=2).kernels) > 1


@CPUS
def test_compiler_process_compiles_rows(device: clrt.DeviceInfo, tmp_path: Path) -> None:
    with load(device, tmp_path) as model:
        run_until(model, lambda: is_joined(model))
        check(model, 4)


@CPUS
def test_failed_compilation_of_row_is_silent(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with load(device, tmp_path) as model, warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run_until(model, lambda: jobs)
        for job in jobs:
            cache_of(model)._fail(job, "no")
        for _ in range(8):
            check(model, 4)
        assert not is_joined(model)


@CPUS
def test_rows_with_which_runs_are_slower_are_dropped(
    device: clrt.DeviceInfo,
    tmp_path: Path,
    jobs: list[CompileJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(device, tmp_path) as model:
        run_until(model, lambda: jobs)
        finish(model, jobs)
        run_until(model, lambda: is_joined(model))
        monkeypatch.setattr(launch_rows, "_MAX_SLOWDOWN", 0.0)
        run_until(model, lambda: not is_joined(model))
        check(model, 4)


@CPUS
def test_row_that_cannot_be_bound_is_left_out(
    device: clrt.DeviceInfo,
    tmp_path: Path,
    jobs: list[CompileJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(device, tmp_path) as model:
        run_until(model, lambda: jobs)
        failed = []
        kernel = ProgramCache.kernel

        def fail(cache: ProgramCache, spec: KernelSpec, *rest: Any) -> Any:
            if spec.is_optional:
                failed.append(spec)
                raise DeviceError("out of resources")
            return kernel(cache, spec, *rest)

        monkeypatch.setattr(ProgramCache, "kernel", fail)
        finish(model, jobs)
        run_until(model, lambda: failed)
        check(model, 4)
        assert not is_joined(model)


def test_models_in_background_have_no_rows(tmp_path: Path, jobs: list[CompileJob]) -> None:
    source = """
        g (float[n, 8] x) => (float[n, 8] y)
        {
          a = Tanh(x)
          b = Add(a, x)
          y = Mul(b, a)
        }
    """
    with clrt.load(parsed(source), cache_dir=tmp_path, priority="background") as model:
        model.warmup({"x": (2, 8)})
        for _ in range(8):
            model.run({"x": np.ones((2, 8), np.float32)})
        assert not jobs and not is_joined(model)


@CPUS
def test_rows_are_found_while_threads_run_other_shapes(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    failures: list[BaseException] = []
    with load(device, tmp_path) as model:

        def work(start: int) -> None:
            try:
                for number in range(60):
                    check(model, 1 + (start + number // 6) % 5)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(start,)) for start in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


@CPUS
def test_models_without_background_compilation_keep_launches(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with clrt.load(parsed(SOURCE), device=device.index, cache_dir=tmp_path, tiers=False) as model:
        for _ in range(8):
            check(model, 4)
        assert not jobs and not is_joined(model)


@CPUS
def test_launches_of_gpus_are_not_joined(
    device: clrt.DeviceInfo,
    tmp_path: Path,
    jobs: list[CompileJob],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with load(device, tmp_path) as model:
        model.run(feeds(4))
        monkeypatch.setattr(DeviceCaps, "is_cpu", property(lambda caps: False))
        for _ in range(8):
            check(model, 4)
        end = time.monotonic() + WAIT_S
        while BACKGROUND._is_running:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not jobs and not is_joined(model)
