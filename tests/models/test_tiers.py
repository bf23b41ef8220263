"""Programs in two tiers: quickly compiled ones are replaced between runs by optimized ones."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.ir.op import Array
from clrt.plan.template import InstantiatedPlan
from clrt.runtime.opencl import background_compiler, program_files, tiers
from clrt.runtime.opencl import session as sessions
from clrt.runtime.opencl.background_compiler import BackgroundCompiler, CompileJob, SampleLaunch
from clrt.runtime.opencl.programs import ProgramCache
from tests.harness import all_devices, name_of, quick_device
from tests.models.onnx_text import DEVICES, parsed

ROOT = Path(__file__).parents[2]
CPUS = pytest.mark.parametrize("device", [d for d in all_devices() if d.caps.is_cpu], ids=name_of)
QUICKEST = pytest.mark.parametrize("device", [quick_device()], ids=name_of)
# Longest wait for a compiler process, in seconds.
WAIT_S = 120.0


def small() -> bytes:
    """Returns a model with several kernels, constants, a status word and two outputs."""
    return parsed(
        """
        g (int64[n, m] ids, float[60, 8] table, float[8, 8] w) => (float[n, m, 8] y, float[n, m] z)
        <int64[1] axes = {-1}>
        {
          e = Gather(table, ids)
          p = MatMul(e, w)
          y = Softmax(p)
          z = ReduceSum <keepdims = 0> (p, axes)
        }
        """
    )


def feeds(n: int, m: int) -> dict[str, Array]:
    rng = np.random.default_rng(n * 100 + m)
    return {
        "ids": rng.integers(0, 60, (n, m)),
        "table": rng.standard_normal((60, 8), np.float32),
        "w": rng.standard_normal((8, 8), np.float32),
    }


SIZES = ((2, 3), (2, 4), (3, 5), (4, 4), (2, 3), (5, 7))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[CompileJob]:
    """Jobs that would go to compiler processes: tests finish them when they want."""
    submitted: list[CompileJob] = []
    monkeypatch.setattr(BackgroundCompiler, "submit", lambda self, jobs: submitted.extend(jobs))
    return submitted


def load(device: clrt.DeviceInfo, folder: Path, **options: Any) -> clrt.Model:
    options = {"tiers": True, **options}
    return clrt.load(small(), device=device.index, cache_dir=folder, **options)


def cache_of(model: clrt.Model) -> ProgramCache:
    """Returns the cache of the model's programs: on the device's twin, if there is one."""
    return model._session.caches[-1]


def tiers_of(model: clrt.Model) -> tiers.ModelTiers:
    return model._all_tiers[-1]


def quick_launches(model: clrt.Model) -> int:
    """Returns the number of launches of quickly compiled kernels in the plans that are bound."""
    stages = model._runner.planner.kept.values()
    return sum(len(b.quick_launches) for s in stages for b in s.bound.values() if b.ready)


def await_true(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def _no_sessions_left(tmp_path: Path) -> Iterator[None]:
    """Drops the sessions of temporary cache folders, which no other test uses."""
    yield
    for key in [k for k in sessions._SESSIONS if tmp_path in (k[1], *k[1].parents)]:
        del sessions._SESSIONS[key]


def check(model: clrt.Model, wanted: dict[tuple[int, int], dict[str, Array]]) -> None:
    """Asserts that results at all sizes are right, of arrays and of tensors on the device."""
    for size in SIZES:
        for name, array in model.run(feeds(*size)).items():
            np.testing.assert_allclose(array, wanted[size][name], 1e-5, 1e-6)
        inputs = {
            n: model.session.tensor_of(a, model_dtype(model, n)) for n, a in feeds(*size).items()
        }
        found = model.run(inputs, device_outputs=True)
        for name, tensor in found.items():
            np.testing.assert_allclose(tensor.numpy(), wanted[size][name], 1e-5, 1e-6)


def model_dtype(model: clrt.Model, name: str) -> Any:
    return next(s.dtype for s in model.inputs if s.name == name)


@DEVICES
def test_launches_change_to_optimized_programs_one_kernel_at_a_time(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    """At several sizes, in plans of templates, which share kernels, and with external tensors."""
    with load(device, tmp_path / "good", tiers=False) as model:
        wanted = {size: model.run(feeds(*size)) for size in SIZES}
        assert not cache_of(model).quick_builds and not jobs
    with load(device, tmp_path / "tiers") as model:
        cache = cache_of(model)
        check(model, wanted)
        kinds = [type(stage.plan) for stage in model._runner.planner.kept.values()]
        assert InstantiatedPlan in kinds
        shapes = {n: a.shape for n, a in feeds(*SIZES[0]).items()}
        assert len(model.explain(shapes).unoptimized) > 1
        assert "without optimization so far" in str(model.explain(shapes))
        assert quick_launches(model) and cache.quick_builds and not cache.builds
        assert len({job.key for job in jobs}) == len(jobs) > 2
        assert not list((tmp_path / "tiers").glob("*"))  # no quick program is kept
        for done, job in enumerate(jobs, 1):
            cache._finish(job, False)
            check(model, wanted)
            assert cache.builds == done
        assert not quick_launches(model) and not tiers_of(model).pending
        assert not model.explain(shapes).unoptimized
        cache.save()
        assert {p.stem for p in (tmp_path / "tiers").glob("*.clbin")} == {j.key for j in jobs}


@DEVICES
@pytest.mark.filterwarnings("error")  # threads do not change each other's filters of warnings
def test_optimized_programs_replace_quick_ones_during_threaded_runs(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with load(device, tmp_path / "good", tiers=False) as model:
        wanted = model.run(feeds(2, 3))
    failures: list[BaseException] = []
    ended = threading.Event()

    def repeat(model: clrt.Model) -> None:
        try:
            while not ended.is_set():
                found = model.run(feeds(2, 3))
                np.testing.assert_allclose(found["y"], wanted["y"], 1e-5, 1e-6)
        except BaseException as error:
            failures.append(error)

    with load(device, tmp_path) as one, load(device, tmp_path) as two:
        threads = [threading.Thread(target=repeat, args=(m,)) for m in (one, one, two)]
        for thread in threads:
            thread.start()
        await_true(lambda: len({job.key for job in jobs}) > 2 or failures)

        def is_optimized() -> bool:
            while jobs:  # one model may ask after the other's jobs are done
                cache_of(one)._finish(jobs.pop(), False)
            return not (quick_launches(one) or quick_launches(two))

        await_true(lambda: is_optimized() or failures)
        ended.set()
        for thread in threads:
            thread.join()
        assert not failures and not tiers_of(one).pending and not tiers_of(two).pending


@DEVICES
def test_warmup_returns_with_optimized_programs(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    shapes = {n: a.shape for n, a in feeds(2, 3).items()}
    with load(device, tmp_path) as model:
        before = model.run(feeds(2, 3))
        assert quick_launches(model)
        model.warmup(shapes)
        assert not quick_launches(model) and not model.explain(shapes).unoptimized
        np.testing.assert_allclose(model.run(feeds(2, 3))["y"], before["y"], 1e-5, 1e-6)
        assert cache_of(model).builds >= len({job.key for job in jobs}) - 1
    with load(device, tmp_path) as model:  # all programs are in memory or in the folder
        jobs.clear()
        model.run(feeds(2, 3))
        assert not jobs and not quick_launches(model)


@QUICKEST
def test_profile_counts_unoptimized_launches(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with load(device, tmp_path) as model:
        profile = model.profile(feeds(2, 3), repeat=1)
        assert profile.unoptimized == len(profile.kernels)
        assert "compiled without optimization" in " ".join(str(profile).split())
        for job in jobs:
            cache_of(model)._finish(job, False)
        profile = model.profile(feeds(2, 3), repeat=1)
        assert not profile.unoptimized and "without optimization" not in str(profile)


@QUICKEST
def test_failed_optimization_warns_once_and_keeps_the_quick_program(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with load(device, tmp_path) as model:
        before = model.run(feeds(2, 3))
        for _ in range(2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                cache_of(model)._fail(jobs[0], "the log of the compiler")
            texts = [str(w.message) for w in caught]
            assert len(texts) == (_ == 0)
            assert all("the log of the compiler" in t and jobs[0].spec.entry in t for t in texts)
        for job in jobs[1:]:
            cache_of(model)._finish(job, False)
        found = model.run(feeds(2, 3))
        np.testing.assert_allclose(found["y"], before["y"], 1e-5, 1e-6)
        assert not tiers_of(model).pending
        shapes = {n: a.shape for n, a in feeds(2, 3).items()}
        assert set(model.explain(shapes).unoptimized) <= {jobs[0].spec.entry}


@QUICKEST
def test_tuner_measures_optimized_programs(
    device: clrt.DeviceInfo, tmp_path: Path, jobs: list[CompileJob]
) -> None:
    with load(device, tmp_path) as model:
        model.run(feeds(2, 3))
        quick = cache_of(model).quick_builds
        bound = model.bind({n: a.shape for n, a in feeds(2, 3).items()}, {})
        bound.bind()
        assert not bound.quick_launches and cache_of(model).quick_builds == quick


@CPUS
def test_compiler_process_replaces_quick_programs(
    device: clrt.DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent compiles nothing itself on Intel's runtime; the next session finds all."""
    monkeypatch.setattr(tiers, "_PROGRESS_S", 0.0)
    seen: list[tuple[int, int]] = []
    with load(device, tmp_path, on_progress=lambda *numbers: seen.append(numbers)) as model:
        before = model.run(feeds(2, 3))
        assert quick_launches(model)
        await_true(lambda: not tiers_of(model).pending)
        found = model.run(feeds(2, 3))
        np.testing.assert_allclose(found["y"], before["y"], 1e-5, 1e-6)
        assert not quick_launches(model) and not cache_of(model).builds
        total = seen[-1][1]
        assert seen == [(done, total) for done in range(1, total + 1)]
        await_true(lambda: len(list(tmp_path.glob("*.clbin"))) == total)
        cache = cache_of(model)
        other = ProgramCache(cache.context, cache.device, cache.caps, tmp_path)
        for spec in tiers_of(model).programs:
            other.kernel(spec)
        assert not other.builds


def test_user_error_in_on_progress_is_a_warning() -> None:
    def fail(done: int, total: int) -> None:
        raise KeyError("mine")

    model = tiers.ModelTiers({}, on_progress=fail, _began_s=-1e9)
    with pytest.warns(UserWarning, match="on_progress raised KeyError"):
        model.report()
    model.report()


class Outcome:
    """Records what a `BackgroundCompiler` reports."""

    def __init__(self) -> None:
        self.finished: dict[str, bool] = {}
        self.failed: dict[str, str] = {}

    def compiler(self, device: clrt.DeviceInfo, folder: Path) -> BackgroundCompiler:
        return BackgroundCompiler(
            device.caps,
            folder,
            lambda job, compiled: self.finished.update({job.key: compiled}),
            lambda job, reason: self.failed.update({job.key: reason}),
        )

    def __len__(self) -> int:
        return len(self.finished) + len(self.failed)


def _job(key: str, source: str = "__kernel void f() {}", value: float = 0.0) -> CompileJob:
    return CompileJob(SimpleNamespace(), key, source, (), value)  # type: ignore[arg-type]


def test_background_compile_error_reports_compiler_log(tmp_path: Path) -> None:
    outcome = Outcome()
    compiler = outcome.compiler(quick_device(), tmp_path)
    compiler.submit([_job("wrong", "nonsense"), _job("right")])
    await_true(lambda: len(outcome) == 2)
    assert outcome.finished == {"right": True}
    assert "nonsense" in outcome.failed["wrong"] and not compiler.jobs


@pytest.mark.parametrize("device", all_devices(), ids=name_of)
def test_compiler_process_runs_kernels_on_aligned_buffers(
    device: clrt.DeviceInfo, tmp_path: Path
) -> None:
    """A kernel that writes to address 8 unless both buffers have the alignment of arenas."""
    source = (
        "__kernel void f(__global int *x, __global int *y) {\n"
        "  if (((size_t)x | (size_t)y) % 128) *(__global volatile int *)8 = 1;\n}"
    )
    launches = tuple(SampleLaunch("f", (n, 1 << 18), (1,), (1,)) for n in range(4, 260, 4))
    outcome = Outcome()
    job = replace(_job("right", source), launches=launches)
    outcome.compiler(device, tmp_path).submit([job])
    await_true(lambda: len(outcome) == 1)
    assert outcome.finished == {"right": True} and not outcome.failed


def test_jobs_of_killed_compiler_are_done_by_another_process(tmp_path: Path) -> None:
    outcome = Outcome()
    compiler = outcome.compiler(quick_device(), tmp_path)
    compiler.submit([_job(f"{n}", f"__kernel void f{n}() {{}}", -n) for n in range(20)])
    await_true(lambda: len(outcome) > 1)
    compiler._processes[0].popen.kill()
    await_true(lambda: len(outcome) == 20)
    assert len(outcome.failed) <= 1
    assert all("ended with code -9" in reason for reason in outcome.failed.values())
    assert all(outcome.finished.values()) or "0" in outcome.finished


def test_program_that_another_process_compiles_is_awaited(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    outcome = Outcome()
    compiler = outcome.compiler(quick_device(), tmp_path)
    lock = (tmp_path / ".busy.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    left = tmp_path / ".left.lock"  # of a process that was killed
    left.touch()
    jobs = [("busy", 9), ("left", 2), ("free", 1)]
    compiler.submit([_job(n, f"__kernel void {n}() {{}}", value) for n, value in jobs])
    await_true(lambda: len(outcome) == 2)
    assert set(outcome.finished) == {"left", "free"} and not outcome.failed
    time.sleep(0.3)
    assert "busy" not in outcome.finished
    lock.close()
    await_true(lambda: len(outcome) == 3)
    assert outcome.finished["busy"]
    await_true(lambda: not list(tmp_path.glob(".*.lock")))  # it goes after the reply


def test_program_stored_meanwhile_is_not_compiled(tmp_path: Path) -> None:
    device = quick_device()
    if "compiles-at-launch" in device.caps.quirks:
        pytest.skip("the driver's own cache has the program")
    program_files.prepare(tmp_path)
    program_files.write(tmp_path, "known", b"of another process")
    outcome = Outcome()
    outcome.compiler(device, tmp_path).submit([_job("known", "no OpenCL C")])
    await_true(lambda: len(outcome) == 1)
    assert outcome.finished == {"known": True}


def test_job_submitted_during_binary_writing_is_compiled(tmp_path: Path) -> None:
    device = next((d for d in all_devices() if "compiles-at-launch" in d.caps.quirks), None)
    if device is None:
        pytest.skip("no device with costly binaries")
    outcome = Outcome()
    compiler = outcome.compiler(device, tmp_path)
    compiler.submit([_job(f"{n}", f"__kernel void w{n}() {{}}") for n in range(4)])
    await_true(lambda: len(outcome) == 4)
    await_true(lambda: list(tmp_path.glob("*.clbin")))
    compiler.submit([_job("late", "__kernel void late() {}")])
    await_true(lambda: len(outcome) == 5)
    assert outcome.finished["late"] and not outcome.failed


def test_missing_compiler_process_leaves_jobs_to_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    false = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr(background_compiler, "_START", false[2])
    outcome = Outcome()
    compiler = outcome.compiler(quick_device(), tmp_path)
    compiler.submit([_job("one"), _job("two")])
    await_true(lambda: len(outcome) == 2)
    assert outcome.finished == {"one": False, "two": False}
    monkeypatch.setattr(background_compiler, "interpreter", lambda: tmp_path / "absent")
    other = outcome.compiler(quick_device(), tmp_path)
    other.submit([_job("three")])
    await_true(lambda: len(outcome) == 3)
    assert outcome.finished["three"] is False


def test_cancelled_program_is_not_compiled(tmp_path: Path) -> None:
    outcome = Outcome()
    compiler = outcome.compiler(quick_device(), tmp_path)
    compiler.submit([_job(f"{n}", f"__kernel void f{n}() {{}}", -n) for n in range(8)])
    await_true(lambda: compiler.jobs)
    compiler.cancel("7")
    await_true(lambda: not compiler.jobs)
    assert "7" not in outcome.finished and len(outcome) == 7


@CPUS
def test_early_process_exit_leaves_complete_program_cache(
    device: clrt.DeviceInfo, tmp_path: Path
) -> None:
    script = (
        "import sys; from tests.models.test_tiers import *; from pathlib import Path\n"
        "device = clrt.devices()[int(sys.argv[1])]\n"
        "model = load(device, Path(sys.argv[2]))\n"
        "model.run(feeds(2, 3))\n"
        "print(tiers_of(model)._total)\n"
    )
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    ended = subprocess.run(
        [sys.executable, "-c", script, str(device.index), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=WAIT_S,
        check=True,
    )
    programs = int(ended.stdout)
    assert programs > 1 and not ended.stderr
    await_true(lambda: len(list((tmp_path / "cache").glob("*.clbin"))) >= programs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_process_compiles_optimized_programs_itself(tmp_path: Path) -> None:
    device = next((d for d in all_devices() if "stays-behind-in-forks" not in d.caps.quirks), None)
    if device is None or not device.caps.is_cpu:
        pytest.skip("no driver that works in forks")
    script = (
        "import sys; from tests.models.test_tiers import *; from pathlib import Path\n"
        "device = clrt.devices()[int(sys.argv[1])]\n"
        "model = load(device, Path(sys.argv[2]))\n"
        "wanted = model.run(feeds(2, 3))['y']\n"
        "assert quick_launches(model)\n"
        "if (child := os.fork()) == 0:\n"
        "    found = model.run(feeds(2, 3))['y']\n"
        "    right = np.allclose(found, wanted) and not quick_launches(model)\n"
        "    os._exit(not (right and cache_of(model).builds))\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "await_true(lambda: not tiers_of(model).pending)\n"
        "model.run(feeds(2, 3))\n"
        "assert not quick_launches(model)\n"
    )
    command = [sys.executable, "-c", script, str(device.index), str(tmp_path)]
    subprocess.run(command, cwd=ROOT, timeout=WAIT_S, check=True)


@pytest.mark.parametrize(
    ("kind", "quirks", "setting", "requested", "expected"),
    [
        ("cpu", {"slow-optimizer"}, "auto", None, True),
        ("cpu", set(), "auto", None, False),
        ("gpu", {"slow-optimizer"}, "auto", None, False),
        ("gpu", set(), "on", None, True),
        ("gpu", set(), "off", True, True),
        ("cpu", {"slow-optimizer"}, "off", None, False),
        ("cpu", {"slow-optimizer"}, "on", False, False),
    ],
)
def test_tiers_depend_on_device_setting_and_request(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    quirks: set[str],
    setting: str,
    requested: bool | None,
    expected: bool,
) -> None:
    monkeypatch.setenv("CLRT_TIERS", setting)
    caps: Any = SimpleNamespace(is_cpu=kind == "cpu", quirks=quirks, simulator=False)
    assert tiers.uses_tiers(caps, requested) is expected
    caps.simulator = True
    assert not tiers.uses_tiers(caps, requested)
    caps.simulator = False
    monkeypatch.setattr(sys, "frozen", True, raising=False)  # cannot start a compiler process
    assert not tiers.uses_tiers(caps, requested)
    monkeypatch.delattr(sys, "frozen")
    monkeypatch.setattr(sys, "executable", "/opt/blender/blender")
    assert not tiers.uses_tiers(caps, requested)
