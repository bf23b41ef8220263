"""Device self-test: wrong results refuse a device; outcomes are cached."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.kernels.spec import KernelSpec
from clrt.kernels.tuning_records import record_for
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.session import session_for
from clrt.runtime.selftest import gate, result_cache, runner
from clrt.runtime.selftest.cases import Case, cases
from clrt.runtime.selftest.runner import Outcome, check_device, graph_of
from tests.harness import quick_device
from tests.models.onnx_text import parsed
from tools.gpus.profiles import profiles

SOFTMAX = "g (float[n, m] x) => (float[n, m] y) { y = Softmax(x) }"
# Compilers for CPUs take a second for each of the others, which tests/ops has.
FEW = ("softmax", "reductions", "copies")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceInfo]:
    """CPU device with kind "gpu", and a reduced set of self-test cases."""
    monkeypatch.setenv("CLRT_SELF_TEST", "auto")
    monkeypatch.setattr(runner, "cases", lambda: [c for c in cases() if c.family in FEW])
    monkeypatch.setattr(gate, "_seen", set())
    device = quick_device()
    yield replace(device, caps=replace(device.caps, kind="gpu"))


def _miscompute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patches the Softmax kernel to give wrong results, as a faulty driver may."""
    text = KernelSpec.text.fget  # type: ignore[attr-defined]
    wrong = property(lambda spec: text(spec).replace("* inverse", "* inverse * 1.25f"))
    monkeypatch.setattr(KernelSpec, "text", wrong)


def _load(device: DeviceInfo, folder: Path) -> None:
    clrt.load(parsed(SOFTMAX), device=device, cache_dir=folder).close()


def _forbid_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(session: object) -> None:
        raise AssertionError("it is tested again")

    monkeypatch.setattr(result_cache, "check_device", fail)
    monkeypatch.setattr(gate, "_seen", set())


def test_correct_device_is_self_tested_once(
    gpu: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _load(gpu, tmp_path)
    (file,) = (tmp_path / "self-tests").iterdir()
    found = result_cache.recall(file)
    assert found is not None and {o.family for o in found} == set(FEW)
    assert all(o.kernels and not o.is_wrong and not o.note for o in found)
    assert any(o.error > 0 for o in found)
    _forbid_self_test(monkeypatch)
    _load(gpu, tmp_path)
    other = replace(gpu.caps, driver="another")
    assert (
        result_cache.path_for(other, tmp_path) != result_cache.path_for(gpu.caps, tmp_path) == file
    )


def test_miscomputing_device_is_refused(
    gpu: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _miscompute(monkeypatch)
    message = (
        rf"computes wrong results with its driver {re.escape(gpu.caps.driver)}: softmax "
        r"\(softmax_group\): off by 0\.25 .*another device.*clrt devices.*report-device"
        r".*CLRT_SELF_TEST=never"
    )
    with pytest.raises(clrt.DeviceError, match=message):
        _load(gpu, tmp_path)
    _forbid_self_test(monkeypatch)
    with pytest.raises(clrt.DeviceError, match=message):
        _load(gpu, tmp_path)
    monkeypatch.setenv("CLRT_SELF_TEST", "never")
    _load(gpu, tmp_path)


@pytest.mark.parametrize("damage", ["not json", "[1]", '[{"family": "x"}]', "{}", "null", "open"])
def test_damaged_self_test_cache_is_retested(
    gpu: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    path = result_cache.path_for(gpu.caps, tmp_path)
    path.parent.mkdir()
    outcome = Outcome("softmax", ("softmax_group",), 0.5, 0.0)
    path.write_text(json.dumps([outcome.__dict__]) if damage == "open" else damage, "utf-8")
    if damage == "open":
        if os.name != "posix":
            pytest.skip("modes are POSIX's")
        path.chmod(0o666)
    monkeypatch.setattr(
        result_cache, "check_device", lambda session: (replace(outcome, error=0.0),)
    )
    _load(gpu, tmp_path)
    assert result_cache.recall(path) == (replace(outcome, error=0.0),)


def test_driver_failures_in_self_test_are_not_cached(
    gpu: DeviceInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Outcome("softmax", (), 0.0, 0.0, "gone", lasting=False)
    monkeypatch.setattr(result_cache, "check_device", lambda session: (failed,))
    _load(gpu, tmp_path)
    assert not (tmp_path / "self-tests").exists()


def test_cpu_self_test_runs_only_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[DeviceCaps] = []
    monkeypatch.setattr(gate, "_seen", set())
    monkeypatch.setenv("CLRT_SELF_TEST", "auto")

    def check(session: object) -> tuple[Outcome, ...]:
        tested.append(quick_device().caps)
        return (Outcome("softmax", (), 0.0, 0.0),)

    monkeypatch.setattr(result_cache, "check_device", check)
    _load(quick_device(), tmp_path)
    assert not tested
    monkeypatch.setenv("CLRT_SELF_TEST", "always")
    for _ in range(2):
        _load(quick_device(), tmp_path)
    assert len(tested) == 1  # once in a process, whatever is remembered
    monkeypatch.setattr(gate, "_seen", set())
    _load(quick_device(), tmp_path)
    assert len(tested) == 2


def test_all_self_test_cases_pass_on_cpu(tmp_path: Path) -> None:
    for outcome in check_device(session_for(quick_device())):
        assert outcome.kernels and not outcome.note, outcome
        assert 16 * outcome.error <= outcome.limit, outcome


def test_self_test_covers_gpu_kernel_families() -> None:
    for profile in profiles():
        caps = profile.caps
        entries = {k for case in cases() for k in _kernels(case, caps)}
        if profile.name == "Least of OpenCL 1.2":
            continue  # its local memory has no room for the tiles of others
        wanted = {"gemm_gpu", "conv_gpu", "few_rows_gpu", "paged_attention_gpu", "softmax_group"}
        wanted |= {"fused_attention_gpu", "layer_normalization_group", "reduce_group"}
        wanted |= {"gemm_unit_gpu"} if caps.matrix_shapes else set()
        assert wanted <= entries, profile.name


def _kernels(case: Case, caps: DeviceCaps) -> set[str]:
    plan = make_plan(specialise(graph_of(case), {}), caps, partial(record_for, caps=caps))
    assert not plan.host_steps, (case, caps.name)
    return {x.kernel.entry for x in launches_of(plan.steps)}
