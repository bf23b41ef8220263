"""Small plans run on a device's twin: PoCL's second driver, on the calling thread."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import clrt
from clrt.cli.convert import app as convert_app
from clrt.errors import ClrtError
from clrt.ir.op import Array
from clrt.ops.base import Op
from clrt.plan.template import InstantiatedPlan
from clrt.plan.twin_choice import TwinCosts, is_faster_on_twin
from clrt.runtime.execution import execution
from clrt.runtime.opencl.devices import devices
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.sub_devices import with_cores
from clrt.tools.twin_costs import measure_twin_costs
from tests.harness import all_devices, plan_graph, run_plan, sample_graph, tolerance
from tests.models.onnx_text import parsed
from tests.ops.samples import samples
from tests.ops.test_ops import ON_DEVICE, feeds_of
from tests.ops.test_ops import check as check_op

TWINNED = [d for d in all_devices() if d.twin is not None]
pytestmark = pytest.mark.skipif(not TWINNED, reason="no device has a twin")
DEVICE = TWINNED[0] if TWINNED else all_devices()[0]
# PoCL of pyopencl's wheel, if that is the one: as the only platform, the loader lists no devices.
LIBRARIES = [*Path(cl.__file__).parent.glob(".libs/libpocl*")]
SOURCE = """
    g (float[n, 8] x, float[8, 8] w) => (float[n, 8] y, float[n, 8] z)
    {
      h = MatMul(x, w)
      y = Softmax(h)
      z = Tanh(h)
    }
"""


def load(**options: Any) -> clrt.Model:
    return clrt.load(parsed(SOURCE), device=DEVICE.index, **options)


def feeds(rows: int) -> dict[str, Array]:
    draw = np.random.default_rng(rows).standard_normal
    return {"x": draw((rows, 8), np.float32), "w": draw((8, 8), np.float32)}


def is_on_twin(model: clrt.Model, rows: int) -> bool:
    return model.plan({n: a.shape for n, a in feeds(rows).items()}).on_twin


def check(model: clrt.Model, rows: int) -> None:
    h = feeds(rows)["x"] @ feeds(rows)["w"]
    found = model.run(feeds(rows))
    exp = np.exp(h - h.max(1, keepdims=True))
    np.testing.assert_allclose(found["y"], exp / exp.sum(1, keepdims=True), 1e-5, 1e-6)
    np.testing.assert_allclose(found["z"], np.tanh(h), 1e-5, 1e-6)


def test_size_decides_where_plan_runs() -> None:
    small, large = 4, 1 << 20
    with load() as model:
        assert is_on_twin(model, small) and not is_on_twin(model, large)
        for rows in (4, 5, 6, 7, 1 << 16, (1 << 16) + 8, (1 << 16) + 16, 8):
            check(model, rows)
        stages = model._runner.planner.kept.values()
        kinds = {(isinstance(s.plan, InstantiatedPlan), s.plan.on_twin) for s in stages}
        assert kinds >= {(True, True), (True, False)}  # a template holds at sizes of its own
        twin = DEVICE.twin
        assert twin is not None
        bound = [(s.plan.on_twin, b) for s in stages for b in s.bound.values()]
        assert {on_twin for on_twin, _ in bound} == {True, False}
        for on_twin, each in bound:
            assert each.lane.on_twin == on_twin
            assert each.programs.cache.device == (twin.handle if on_twin else DEVICE.handle)


@pytest.mark.parametrize("setting", ["off", "on"])
def test_setting_overrides_choice(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_TWINS", setting)
    with load() as model:
        for rows in (4, 1 << 16):
            assert is_on_twin(model, rows) == (setting == "on")
            check(model, rows)


def test_explanation_and_profile_of_twin() -> None:
    with load() as model:
        shapes = {n: a.shape for n, a in feeds(4).items()}
        assert model.explain(shapes).device.endswith("on the calling thread")
        assert len(model.profile(feeds(4), repeat=2).kernels) >= 2
        check(model, 4)


def test_runs_of_several_threads_are_right() -> None:
    failures: list[BaseException] = []
    with load() as model, load() as other:

        def work(start: int) -> None:
            try:
                for i in range(60):
                    check(model if i % 3 else other, 1 + (start + i) % 5)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_submitted_run_computes_in_worker_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    run = execution.Execution._run_on_twin

    def note(self: execution.Execution) -> None:
        threads.append(threading.get_ident())
        run(self)

    monkeypatch.setattr(execution.Execution, "_run_on_twin", note)
    with load() as model:
        check(model, 4)
        assert threads == [threading.get_ident()]
        found = model.submit(feeds(4)).wait()
        np.testing.assert_array_equal(found["z"], model.run(feeds(4))["z"])
        assert threads[1] != threading.get_ident()


def test_run_is_cancelled_between_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    with load() as model:
        check(model, 4)
        enqueue, launched = execution.cl.enqueue_nd_range_kernel, []

        def close_first(*args: Any) -> Any:
            launched.append(args)
            model._runner.stop.requested = True
            return enqueue(*args)

        monkeypatch.setattr(execution.cl, "enqueue_nd_range_kernel", close_first)
        with pytest.raises(ClrtError, match="closed during the run"):
            model.run(feeds(4))
        assert len(launched) == 1
        monkeypatch.undo()
        model._runner.stop.requested = False
        check(model, 4)


def test_tensors_pass_between_device_and_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    with load() as model:
        on_twin = model.run(feeds(4), device_outputs=True)["y"]
        monkeypatch.setenv("CLRT_TWINS", "off")
        with load() as other:
            on_device = other.run({**feeds(4), "x": on_twin}, device_outputs=True)["y"]
            expected = other.run({**feeds(4), "x": on_twin.numpy()})["y"]
            np.testing.assert_allclose(on_device.numpy(), expected, 1e-6, 1e-7)
            again = model.run({**feeds(4), "x": on_device})["z"]
            np.testing.assert_allclose(again, np.tanh(expected @ feeds(4)["w"]), 1e-5, 1e-6)


def test_memory_limit_counts_runs_on_twin() -> None:
    with load() as model:
        model.run(feeds(4))
        needed = model.allocated_bytes
    with load(memory_limit=needed) as model:
        check(model, 4)
    with load(memory_limit=needed - 64) as model, pytest.raises(clrt.OutOfMemoryError):
        model.run(feeds(4))


def test_subset_of_cores_has_no_twin() -> None:
    if DEVICE.caps.compute_units < 2:
        pytest.skip("one core")
    part = with_cores(DEVICE, 1)
    assert part.twin is None and not part.caps.has_twin
    with load(cores=1) as model:
        assert not is_on_twin(model, 4)
        check(model, 4)


def test_twin_is_not_listed_and_environment_is_restored() -> None:
    handles = [d.handle for d in devices()]
    assert DEVICE.twin is not None and DEVICE.twin.handle not in handles
    assert "POCL_DEVICES" not in os.environ


@pytest.mark.parametrize(
    ("variables", "twins"),
    [
        ({"POCL_DEVICES": "pthread"}, "0"),
        ({"POCL_DEVICES": "basic"}, "0"),
        ({"CLRT_TWINS": "off"}, "0"),
        ({}, "1"),
        *(({"OCL_ICD_VENDORS": str(path)}, "1") for path in LIBRARIES),
    ],
)
def test_environment_of_user_prevails(
    variables: dict[str, str], twins: str, tmp_path: Path
) -> None:
    code = (
        "import clrt, numpy as np, sys\n"
        "found = [d for d in clrt.devices() if 'Portable' in d.platform]\n"
        "print(len(found), sum(d.twin is not None for d in found))\n"
        "model = clrt.load(sys.argv[1], device=found[0].index)\n"
        "print(model.run({'x': np.ones((2, 2), np.float32)})['y'].sum())"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(parsed("g (float[n, 2] x) => (float[n, 2] y) { y = Add(x, x) }"))
    environment = {k: v for k, v in os.environ.items() if k != "CLRT_DEVICE"} | variables
    found = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["1", twins, "8.0"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no CPU sets")
@pytest.mark.parametrize(("setting", "units"), [({}, "1"), ({"POCL_MAX_PTHREAD_COUNT": "3"}, "3")])
def test_restricted_process_gets_a_thread_per_usable_cpu(
    setting: dict[str, str], units: str
) -> None:
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "import clrt; found = [d for d in clrt.devices() if 'Portable' in d.platform]\n"
        "print(found[0].caps.compute_units, os.environ.get('POCL_MAX_PTHREAD_COUNT', '1'))"
    )
    others = {k: v for k, v in os.environ.items() if not k.startswith("POCL_")}
    command, environment = [sys.executable, "-c", code], others | setting
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [units, units]


def test_costs_of_launches_move_the_choice() -> None:
    cheap = {"wake_ns": 1, "launch_ns": 1, "delay_ns": 1}
    shapes = {n: a.shape for n, a in feeds(256).items()}
    with load() as model:
        assert model.bind(shapes, {}).plan.on_twin
        assert not model.bind(shapes, {TwinCosts.group: cheap}).plan.on_twin
        one_group = {n: a.shape for n, a in feeds(1).items()}
        assert model.bind(one_group, {TwinCosts.group: cheap}).plan.on_twin


def test_more_threads_make_the_twin_faster_for_more_plans() -> None:
    costs = TwinCosts()
    assert costs.for_threads(costs.threads) == costs
    assert costs.for_threads(16).for_threads(32).delay_ns == costs.for_threads(32).delay_ns
    chosen = dict.fromkeys((2, 16), 0)
    with load() as model:
        for rows in range(1 << 14, 1 << 17, 1 << 14):
            plan = model.plan({n: a.shape for n, a in feeds(rows).items()})
            for threads in chosen:
                caps = replace(DEVICE.caps, compute_units=threads)
                chosen[threads] += is_faster_on_twin(plan, caps, costs)
    assert 0 < chosen[2] < chosen[16] < 7


def test_precompiled_programs_serve_device_and_twin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target, cache = (tmp_path / name for name in ("m.onnx", "m.clrt", "programs"))
    source.write_bytes(parsed(SOURCE))
    options = ["--precompile", str(cache), "--device", str(DEVICE.index), "--shape", "x=4x8"]
    result = CliRunner().invoke(convert_app, [str(source), "-o", str(target), *options])
    assert result.exit_code == 0, result.output
    assert "CLRT_TWINS" not in os.environ
    for setting in ("off", "on"):
        monkeypatch.setenv("CLRT_TWINS", setting)
        with clrt.load(target, device=DEVICE.index, cache_dir=cache) as model:
            before = [programs.builds for programs in model._session.caches]
            assert is_on_twin(model, 4) == (setting == "on")
            check(model, 4)
            assert [programs.builds for programs in model._session.caches] == before


def test_tuner_measures_costs_of_twin() -> None:
    tuned = measure_twin_costs(DEVICE)
    assert tuned is not None and tuned.kernel == TwinCosts.group
    assert tuned.before.keys() == tuned.after.keys()
    TwinCosts.check(tuned.after)
    assert tuned.after["threads"] == DEVICE.caps.compute_units
    assert max(tuned.after.values()) < 10_000_000  # 10 ms
    assert measure_twin_costs(with_cores(DEVICE, 1)) is None


_QUICK = ON_DEVICE[::6]


@pytest.mark.parametrize(
    "cls",
    [pytest.param(c, marks=() if c in _QUICK else pytest.mark.slow) for c in ON_DEVICE],
    ids=lambda c: c.name,
)
def test_op_on_twin_matches_reference(cls: type[Op]) -> None:
    twin = DEVICE.caps.twin
    assert twin is not None
    for sample in samples(cls):
        plan = plan_graph(sample_graph(sample), twin)
        if plan.host_steps:
            continue
        expected = sample.op.reference(*sample.inputs)
        found = run_plan(replace(plan, on_twin=True), feeds_of(sample), DEVICE)
        for array, (name, actual) in zip(expected, found.items(), strict=False):
            check_op(f"{sample.op} {name}", actual, array, tolerance(sample.op, array))
        return
    pytest.skip(f"no sample of {cls.name} has a kernel")
