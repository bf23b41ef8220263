"""GPU lab and portability table, without measurements."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.runtime.model.model import load
from tests.harness import quick_device
from tests.ops import gpu_kernels

# First: ONNX Runtime puts a folder on the path that has a benchmark of its own.
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from benchmark.turns import TooLongError, WorkerError, call_apart
from gpulab import checks, models, products, state, tuning
from gpulab.page import page
from gpulab.portable import PARTS, PortabilityRow, Rows
from gpulab.portable import checks as portability_checks
from gpulab.portable import page as portability_page
from gpulab.state import Found, Item, Place, State
from gpulab.testing import Counts, read_counts

REPORT = {
    "clrt": "1.0",
    "date": "2026-01-01",
    "device": {
        "name": "Fast GPU",
        "platform": "Vendor",
        "driver": "1.2",
        "global_mem_bytes": 8 << 30,
        "compute_units": 64,
    },
    "driver": {"version": "OpenCL 3.0"},
    "takes": {"half arithmetic": True, "double arithmetic": False},
    "deviations": [],
    "self_test": [{"error": 0.0, "limit": 1e-3, "note": ""}],
    "measured": {"gflops": 20000.0, "gbs": 900.0, "launch_us": 3.0},
}


def _time_limit(place: Place) -> Found:
    return {"most_s": place.most_s}


def test_recorded_items_are_not_rerun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def apart(run: object, place: Place, most_s: float) -> Found:
        made.append("ran")
        assert place.most_s < most_s and "models" in place.found
        return {"ms": 1.0}

    monkeypatch.setattr(state, "call_apart", apart)
    item = Item("models", "net", _time_limit)
    for _ in range(2):
        found = State.read(tmp_path / "found.json", 60.0)
        found.run(item, 0, tmp_path, until_s=0.0)
        assert found.found == {"models": {"net": {"ms": 1.0}}} and not found.left_out
    assert made == ["ran"]


def test_failures_are_recorded_and_late_items_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[Exception] = []

    def fail(run: object, place: Place, most_s: float) -> Found:
        raise errors[-1]

    monkeypatch.setattr(state, "call_apart", fail)
    found = State.read(tmp_path / "found.json", 60.0)
    errors.append(WorkerError("Traceback\n  a line\nDeviceError: no room"))
    found.run(Item("models", "a", _time_limit), 0, tmp_path, 0.0)
    errors.append(TooLongError("it hangs"))
    found.run(Item("models", "b", _time_limit, seconds=10.0), 0, tmp_path, 0.0)
    late = [Item("models", "c", _time_limit, seconds=100.0), Item("models", "d", _time_limit)]
    found.run(late[0], 0, tmp_path, 0.0)  # of its 100 s there are 60
    found.run(late[1], 0, tmp_path, 58.0)
    assert found.left_out == late
    wanted = {"a": {"error": "DeviceError: no room"}, "b": {"error": "it hangs", "timed_out": True}}
    assert State.read(tmp_path / "found.json", 1.0).found["models"] == wanted


def test_hanging_process_is_terminated() -> None:
    start = time.perf_counter()
    with pytest.raises(TooLongError, match="more than 0 s"):
        call_apart(time.sleep, 600, most_s=0.1)
    assert time.perf_counter() - start < 30


def test_lab_item_names_are_unique() -> None:
    made = [*checks.items(), *tuning.items(), *models.items(), *products.items()]
    assert len({(i.stage, i.name) for i in made}) == len(made)
    assert {"MiniLM, 8 x 128", "GPT-2, a token", "ResNet-50, batch 1", "8192"} <= {
        i.name for i in made
    }


@pytest.mark.parametrize("name", tuning.CASES)
def test_tuning_cases_load_and_plan(name: str) -> None:
    if name == "products":
        return  # `clrt tune` has it
    case = tuning.CASES[name]
    with load(case.make(), device=quick_device(), strict=True) as model:
        for shapes in case.shapes:
            assert model.plan(shapes).launches


def test_lab_int8_product_is_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = (products._matrix(rng, 40, DType.INT8) for _ in range(2))
    with load(products._graph(b, DType.INT8), device=quick_device(), strict=True) as model:
        found = model.run({"a": a})["y"]
    np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32))


def test_lab_page_shows_all_results() -> None:
    kernel = {"kernel": "gemm_gpu", "before": {"T_RM": 4}, "after": {"T_RM": 8}, "ratio": 0.5}
    text = page(
        {
            "device": {"report": REPORT},
            "tests": {"test_ops 1/40": {**Counts(10, 1, 2, ("a::b",)).__dict__}},
            "tuning": {"products": {"kernels": [kernel]}},
            "models": {
                "MiniLM": {"launches": 43, "gflop": 2.0, "device_ms": 0.5, "torch": {"fp16": 0.4}},
                "ResNet-50": {"error": "DeviceError: no room"},
            },
            "products": {"1024": {"gflops": {"clrt": {"fp32": 9000.4}, "torch": {}}}},
        }
    )
    assert text.startswith("# Fast GPU\n")
    for part in (
        "| measured | 20000 GFLOP/s, 900 GB/s, a launch 3.0 us |",
        "| self-test | 1 of 1 cases right |",
        "1 runs: 10 passed, 1 failed, 2 skipped.",
        "- `a::b`",
        "| products | `gemm_gpu` | RM=4 | RM=8 | 0.50 |",
        "| MiniLM | 43 | 0.5 | 4000 |  |  | 0.4 |",
        "| 1024 | 9000 |  |  |",
        "- models, ResNet-50: DeviceError: no room",
    ):
        assert part in text, part
    assert page({}).startswith("# An unknown device")


def test_pytest_counts_are_parsed() -> None:
    output = "..F.\nFAILED tests/a.py::test_b[x] - assert 0\n1 failed, 12 passed, 3 skipped in 2s\n"
    assert read_counts(output, 1) == Counts(12, 1, 3, ("tests/a.py::test_b[x]",))
    assert "ended with 139" in read_counts("a crash", 139).note


def test_portability_page_names_failures(tmp_path: Path) -> None:
    caps = DeviceCaps("Vendor", "a CPU", "", "3.0", "cpu").to_json()
    rows = Rows(tmp_path / "build" / "rows.json")
    found = PortabilityRow(caps).with_part(3, Counts(5, 1, 0, ("a::b",)), ["gemm_cpu"])
    rows.keep("PoCL", found.with_whole("models", Counts(note="too long"), quick=False))
    rows.keep("rusticl", PortabilityRow())
    gpu = PortabilityRow(caps.replace('"cpu"', '"gpu"'))
    for part in range(PARTS):
        gpu = gpu.with_part(part, Counts(1), ["gemm_gpu"])
    rows.keep("a GPU", gpu)
    assert Rows(rows.path).found == rows.found
    assert [name for name, row in rows.found.items() if row.is_gpu] == ["a GPU"]
    why = {"a_unit": "needs a unit", "another": "needs a unit"}
    text = portability_page(rows.found, {"a GPU": (3, why)})
    ended = "5 passed, 1 failed, 0 skipped in 1 of 20 parts"
    assert f"| PoCL | a CPU, 3.0 | {ended} | did not end |  |" in text
    assert "| rusticl | not here |  |  |  |" in text
    assert "| a GPU | a CPU, 3.0 | 20 passed, 0 failed, 0 skipped |  | 1 of 3 |" in text
    assert "## PoCL\n\n- `a::b` failed\n- too long\n" in text
    assert "## a GPU\n\n- not launched, needs a unit: `a_unit`, `another`\n" in text
    assert found.on(caps) == found and found.on("{}") == PortabilityRow("{}")


def test_portability_checks_need_rusticl_kernels_and_clean_oclgrind() -> None:
    caps = DeviceCaps("rusticl", "llvmpipe", "", "25", "gpu").to_json()
    row = PortabilityRow(caps, dict.fromkeys(range(PARTS), Counts(1)))
    names = ["rusticl 25, fp16", "rusticl 25, fp64"]
    rows = dict.fromkeys(names, row)
    why = {"a": "no test", "b": "no test"}

    def held(of: Mapping[str, PortabilityRow], *left: Mapping[str, str]) -> list[bool | None]:
        missing = {name: (3, x) for name, x in zip(names, left, strict=True)}
        return [check.holds for check in portability_checks(of, missing)]

    assert held(rows, why, {}) == [True, None]
    assert held(rows, why, {"b": "no test"}) == [False, None]
    assert (
        portability_checks(rows, dict.fromkeys(names, (3, why)))[0]
        .shown()
        .endswith("it lacks `a`, `b`")
    )
    assert held(dict.fromkeys(names, PortabilityRow(caps)), {}, {}) == [None, None]
    for counts, clean in ((Counts(1), True), (Counts(1, 1), False), (Counts(note="late"), None)):
        one = {**rows, "Oclgrind": PortabilityRow(caps).with_whole("ops", counts, quick=False)}
        assert held(one, {}, {}) == [True, clean]


def test_gpu_kernels_are_separated_from_cpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    some = [c for c in gpu_kernels.choices() if c.cls.name in ("ArgMax", "Softmax")]
    monkeypatch.setattr(gpu_kernels, "choices", lambda: iter(some))
    found = gpu_kernels.gpu_kernels()
    assert {"argmax", "softmax_group"} <= found.keys() and not {"softmax_cpu"} & found.keys()
    caps = replace(gpu_kernels.GPU, extensions=frozenset())
    launched = set(found) - {"softmax_group", "gemm_unit_gpu"}
    assert gpu_kernels.missing(found, caps, launched) == {
        "gemm_unit_gpu": "no sample of an op leads to it",
        "softmax_group": "no test that ran launches it",
    }
