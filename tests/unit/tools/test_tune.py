"""Tuner: fastest tunables, interrupts, and saved records."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from clrt.cli.main import app
from clrt.cli.shapes import default_shapes, parse_shapes
from clrt.errors import InputError, OutOfMemoryError
from clrt.kernels.tuning_records import record_for, user_file
from clrt.ops.attention.fused_attention import CPU
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import run_and_hold
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.tools.tune import Tuned, Tuner, encoder_layer
from tests.harness import all_devices, quick_device

PROGRAMS = os.environ["CLRT_CACHE_DIR"]


@pytest.fixture(autouse=True)
def own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))


def _layer(device: DeviceInfo) -> Model:
    """Returns an encoder layer whose programs are those of other tests and runs."""
    return load(encoder_layer(64, 2), device=device.index, strict=True, cache_dir=PROGRAMS)


def _shapes(model: Model) -> list[dict[str, tuple[int, ...]]]:
    return [{"x": (b, s, 64)} for b, s in ((1, 3), (2, 5))]


@pytest.mark.lengthy
def test_tuner_finds_fastest_tunables(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(plan: BoundPlan, entry: str) -> float:
        (launch, *_) = (
            x
            for s in plan.plan.steps
            for x in getattr(s, "launches", ())
            if x.kernel.entry == entry
        )
        defines = dict(launch.kernel.defines)
        if entry != "gemm_cpu":
            return 1e-9
        return 1.0 + abs(int(defines["T_MR"]) - 6) + abs(int(defines["T_NV"]) - 2)

    monkeypatch.setattr(BoundPlan, "seconds", fake)
    with _layer(all_devices()[0]) as model:
        results = {r.kernel: r for r in Tuner(model, _shapes(model), 1e9).run()}
    assert {"gemm_cpu", "fused_attention_cpu", "layer_normalization_cpu"} <= results.keys()
    gemm = results["gemm_cpu"]
    assert (gemm.after["T_MR"], gemm.after["T_NV"]) == (6, 2)
    assert gemm.ratio == pytest.approx(1 / fake_before(gemm.before))
    assert results["fused_attention_cpu"].after == results["fused_attention_cpu"].before
    with _layer(all_devices()[0]) as model:
        kept = results.keys() - {"gemm_cpu"}
        assert [r.kernel for r in Tuner(model, _shapes(model), 1e9, kept=kept).run()] == [
            "gemm_cpu"
        ]


def test_out_of_memory_candidates_are_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def seconds(plan: BoundPlan, entry: str) -> float:
        if plan.weights is not model._runner.room.weights and len(tried) % 2:
            raise OutOfMemoryError("no room", 1, 0)
        tried.append(entry)
        return 1.0

    tried: list[str] = []
    monkeypatch.setattr(BoundPlan, "seconds", seconds)
    with _layer(all_devices()[0]) as model:
        results = Tuner(model, _shapes(model), 1e9).run()
    assert results
    assert all(r.after == r.before for r in results)


def test_interrupted_tuning_keeps_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(tuner: Tuner, entry: str, candidate: object, best: object) -> object:
        tried.append(entry)
        if len(tried) > 1:
            raise KeyboardInterrupt
        return 0.5, best

    tried: list[str] = []
    monkeypatch.setattr(Tuner, "_compare", compare)
    with _layer(all_devices()[0]) as model:
        first, *others = Tuner(model, _shapes(model), 1e9).run()
    assert first.kernel == tried[0] and first.after != first.before and first.ratio == 0.5
    assert others and all(r.after == r.before for r in others)
    assert len(tried) == 2


def fake_before(tunables: object) -> float:
    assert isinstance(tunables, dict)
    return 1.0 + abs(tunables["T_MR"] - 6) + abs(tunables["T_NV"] - 2)


@pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
def test_tune_command_measures_kernels(device: DeviceInfo) -> None:
    result = CliRunner().invoke(app, ["tune", "--device", str(device.index), "--budget", "1"])
    assert result.exit_code == 0, result.output
    assert "gemm_cpu" in result.output


def test_tune_command_saves_faster_tunables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    device, same = all_devices()[0], {"T_VW": 4}
    better = Tuned("gemm_cpu", {"T_MR": 4}, {"T_MR": 6}, 0.9)
    for found, said in (([], "Nothing was faster"), ([better], "Kept in")):
        results = [*found, Tuned("softmax_cpu", same, same, 1.0)]
        monkeypatch.setattr(Tuner, "run", lambda self, results=results: results)
        monkeypatch.setattr("clrt.cli.tune.measure_twin_costs", lambda device: None)
        result = CliRunner().invoke(app, ["tune", "--device", str(device.index)])
        assert said in result.output
        assert user_file().exists() == bool(found)
    assert record_for("gemm_cpu", device.caps) == {"T_MR": 6}
    assert record_for("softmax_cpu", device.caps) != same


def test_tune_command_checks_record_folder_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(Tuner, "run", lambda self: pytest.fail("it measured"))
    result = CliRunner().invoke(app, ["tune"])
    assert result.exit_code == 1
    assert "cannot be created: Not a directory" in result.output


def test_shape_option_is_parsed() -> None:
    with _layer(all_devices()[0]) as model:
        assert parse_shapes("x=2x3x64", model) == {"x": (2, 3, 64)}
        assert default_shapes(model)[1] == {"x": (1, 128, 64)}
        for text in ("x", "x=a", "x=2y3"):
            with pytest.raises(InputError, match="is not a shape"):
                parse_shapes(text, model)
        with pytest.raises(InputError, match="no input 'z'"):
            parse_shapes("z=3", model)


def test_tuner_measures_kernels_that_take_over_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention with another vector width than its products leaves them to separate launches."""
    asked: set[str] = set()

    def seconds(plan: BoundPlan, entry: str) -> float:
        asked.add(entry)
        return 1.0

    device = next(d for d in all_devices() if d.caps.is_cpu)
    entry = "fused_attention_cpu"
    with _layer(device) as model:
        shapes, lanes = _shapes(model)[0], CPU.with_record(record_for(entry, device.caps))["T_VW"]
        monkeypatch.setattr(BoundPlan, "seconds", seconds)
        tuner, same = Tuner(model, [shapes], 1e9), model.bind(shapes, {})
        tuner._compare(entry, {"T_VW": lanes}, [same])
        assert asked == {entry}
        tuner._compare(entry, {"T_VW": 4 if lanes != 4 else 8}, [same])
    assert asked == {entry, "gemm_cpu"}


def test_bound_plan_launches_do_not_overwrite_inputs() -> None:
    """Launches can be repeated for timing."""
    with _layer(quick_device()) as model:
        plan = model.bind(_shapes(model)[0], {}).plan
    assert {s.name for s in model.inputs} <= {v.name for v in plan.external}


def test_measured_plan_keeps_memory_of_its_inputs() -> None:
    """No tensor may take the inputs' memory while launches that read it are repeated."""
    with _layer(quick_device()) as model:
        shapes = _shapes(model)[0]
        bound = model.bind(shapes, {})
        run_and_hold(bound, {s.name: np.ones(shapes[s.name], s.dtype.numpy) for s in model.inputs})
        held = {tensor.buffer.int_ptr for tensor in bound.held}
        others = [bound.session.tensor(shapes[s.name], s.dtype) for s in model.inputs]
        assert len(held) == len(model.inputs)
        assert held.isdisjoint(tensor.buffer.int_ptr for tensor in others)
        assert all((tensor.numpy() == 1).all() for tensor in bound.held)
