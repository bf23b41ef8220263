"""Tunables: each is declared with unit and reason, and the user's record changes plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clrt.cli.main import app
from clrt.device.caps import DeviceCaps
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.kernels.thresholds import GROUPS, Thresholds, Tunable, tunable
from clrt.kernels.tunables import declarations, list_tunables
from clrt.kernels.tuned import TUNED, tuned
from clrt.kernels.tuning_records import save, user_file
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.plan.steps import launches_of
from tests.plans import plan

AVX512 = DeviceCaps("Test", "test", "Test", "1", "cpu", compute_units=4, float_lanes=16)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize(("kernel", "declared"), declarations().items(), ids=lambda x: str(x)[:30])
def test_tunables_have_unit_and_reason(kernel: str, declared: Mapping[str, Tunable]) -> None:
    assert declared, kernel
    for name, each in declared.items():
        assert each.unit and each.unit == each.unit.strip(), name
        assert len(each.reason.split()) >= 3 and each.reason.endswith("."), name
        assert each.default > 0, name


def test_thresholds_group_names_differ_from_kernel_names() -> None:
    assert not TUNED.keys() & GROUPS.keys()


def test_undeclared_tunable_default_is_refused() -> None:
    with pytest.raises(KeyError, match="T_OTHER"):
        tuned("some_kernel", T_OTHER=3)
    assert "some_kernel" not in TUNED


def test_second_thresholds_class_of_same_group_is_refused() -> None:
    with pytest.raises(TypeError, match="two classes of thresholds have the group 'gemm_shares'"):

        class Other(Thresholds):
            stripe: int = tunable(1, "row blocks", "None of its own.")
            group = "gemm_shares"


def test_tunables_list_has_value_and_source() -> None:
    found = {f"{t.kernel}.{t.name}": t for t in list_tunables(AVX512)}
    assert (found["gemm_cpu.T_VW"].value, found["gemm_cpu.T_VW"].source) == (16, "shipped")
    assert (found["gemm_cpu.T_KC"].value, found["gemm_cpu.T_KC"].source) == (768, "default")
    save([{"kernel": "gemm_cpu", "tunables": {"T_KC": 512}}])
    (mine,) = list_tunables(AVX512, "Gemm_CPU.t_kc")
    assert (mine.value, mine.source, mine.declared.default) == (512, "user", 768)
    assert str(user_file()) in mine.record


def _product() -> Graph:
    build = Builder()
    x, w = (
        build.input(name, DType.FLOAT32, shape)
        for name, shape in (("x", (256, 64)), ("w", (64, 96)))
    )
    return build.graph("product", [x, w], [build.add(FusedMatMul(), x, w)], ["y"])


def test_user_record_changes_plan() -> None:
    def groups() -> list[tuple[int, ...]]:
        launches = launches_of(plan(_product()).steps)
        return [x.global_size for x in launches if x.kernel.entry == "gemm_cpu"]

    (before,) = groups()
    save([{"kernel": "gemm_shares", "tunables": {"stripe": 1}}])
    (after,) = groups()
    assert max(after) > max(before)


def test_tunables_command_lists_user_record() -> None:
    save([{"kernel": "gemm_shares", "tunables": {"stripe": 5}}])
    shown = CliRunner().invoke(app, ["tunables", "gemm_shares"])
    assert "stripe = 5 row blocks  (your record; default 16)" in shown.stdout, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 100
    (row,) = json.loads(CliRunner().invoke(app, ["tunables", "shares.stripe", "--json"]).stdout)
    assert row["value"] == 5 and row["source"] == "user" and row["unit"] == "row blocks"
    missing = CliRunner().invoke(app, ["tunables", "no such"])
    assert missing.exit_code == 1 and "'no such'" in missing.stderr
