"""Tuning records: nearest device, unknown tunables, precedence of the user's file."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from clrt.device.caps import DeviceCaps
from clrt.kernels import tuning_records as records
from clrt.kernels.thresholds import GROUPS
from clrt.kernels.tuned import TUNED, TunedKernel
from clrt.kernels.tuning_records import check, check_values, new_record, record_for, save
from clrt.ops.module_index import import_all

import_all()  # declares every kernel's tunables
AVX512 = DeviceCaps("Portable Computing Language", "cpu", "v", "1", "cpu", float_lanes=16)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))


def test_shipped_records_set_known_tunables_only() -> None:
    shipped = check(json.loads(files("clrt.kernels").joinpath("tuning_records.json").read_text()))
    assert {r["kernel"] for r in shipped} <= TUNED.keys() | GROUPS.keys()
    for record in shipped:
        kernel, tunables = record["kernel"], record["tunables"]
        assert isinstance(kernel, str) and isinstance(tunables, dict)
        check_values(kernel, tunables)


@pytest.mark.parametrize("kernel", TUNED.values(), ids=lambda k: k.entry)
def test_tunables_are_macros_of_kernel_source(kernel: TunedKernel) -> None:
    texts = [f.read_text() for f in Path("kernels_cl").rglob("*.cl")]
    (text,) = (t for t in texts if f"void {kernel.entry}(" in t or f" {kernel.entry}(" in t)
    # The lanes are VW in the sources that common/math.clh serves.
    macros = {"VW" if m == "T_VW" else m for m in kernel.defaults}
    assert all(re.search(rf"\b{m}\b", text) for m in macros)


def test_unknown_tunable_is_refused() -> None:
    with pytest.raises(ValueError, match="gemm_cpu sets VW"):
        check_values("gemm_cpu", {"VW": 16})


def test_nearest_device_record_is_used() -> None:
    assert record_for("gemm_cpu", AVX512)["T_VW"] == 16
    assert record_for("gemm_cpu", replace(AVX512, float_lanes=8))["T_VW"] == 8
    assert record_for("gemm_cpu", replace(AVX512, float_lanes=4)) == {}
    assert record_for("gemm_cpu", replace(AVX512, platform="another"))["T_VW"] == 16


def test_user_record_precedes_more_specific_shipped_record() -> None:
    records.user_file().write_text('[{"kernel": "gemm_cpu", "tunables": {"T_MR": 2}}]')
    assert record_for("gemm_cpu", AVX512) == {"T_MR": 2}


def test_saved_record_applies_to_its_device_only() -> None:
    save([new_record("gemm_cpu", AVX512, {"T_MR": 5})])
    save([new_record("gemm_cpu", AVX512, {"T_MR": 6}), new_record("softmax_cpu", AVX512, {})])
    assert record_for("gemm_cpu", AVX512) == {"T_MR": 6}
    assert record_for("gemm_cpu", replace(AVX512, driver="2"))["T_MR"] == 8
    assert len(json.loads(records.user_file().read_text())) == 2


def test_save_keeps_records_of_other_processes() -> None:
    save([new_record("gemm_cpu", AVX512, {"T_MR": 5})])
    text = records.user_file().read_text().replace("gemm_cpu", "gemm_blocks_cpu")
    records.user_file().write_text(text)
    save([new_record("softmax_cpu", AVX512, {})])
    assert record_for("gemm_blocks_cpu", AVX512) == {"T_MR": 5}


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '[{"kernel": "gemm_cpu"}]'])
def test_damaged_record_file_warns_and_is_replaced(text: str) -> None:
    records.user_file().write_text(text)
    with pytest.warns(UserWarning, match=r"tuning.json.*clrt tune"):
        assert record_for("gemm_cpu", AVX512)["T_MR"] == 8
        save([new_record("gemm_cpu", AVX512, {"T_MR": 6})])
    assert record_for("gemm_cpu", AVX512) == {"T_MR": 6}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        f'[{{"kernel": "gemm_cpu", "tunables": {{"T_MR": {"9" * 5000}}}}}]',
        '[{"kernel": [], "tunables": {}}]',
        '[{"kernel": "gemm_cpu", "tunables": {"T_MR": "2"}}]',
    ],
    ids=lambda text: text[:60],
)
def test_malformed_record_file_warns_and_is_ignored(text: str) -> None:
    records.user_file().write_text(text)
    with pytest.warns(UserWarning, match=r"tuning.json.*clrt tune"):
        assert record_for("gemm_cpu", AVX512)["T_MR"] == 8


@pytest.mark.parametrize(
    ("kernel", "macro", "value"),
    [
        ("gemm_cpu", "T_MR", 0),
        ("gemm_cpu", "T_MR", -1),
        ("gemm_cpu", "T_MR", 1 << 40),
        ("gemm_cpu", "T_VW", 3),
        ("gemm_cpu", "T_VW", 64),
        ("gemm_cpu", "T_OTHER", 1),
        ("softmax_group", "T_ITEMS", 100),
        ("gather_cpu", "T_BYTES", 1 << 40),
        ("gemm_shares", "stripe", 0),
        ("gemm_shares", "split", 1 << 40),
        ("quantize_shares", "elems", 1 << 13),
    ],
)
def test_implausible_records_of_kernel_warn_and_are_ignored(
    kernel: str, macro: str, value: int
) -> None:
    shipped = record_for(kernel, AVX512)
    good = {"kernel": "topk_cpu", "tunables": {}}
    records.user_file().write_text(
        json.dumps([good, {"kernel": kernel, "tunables": {macro: value}}])
    )
    records._load.cache_clear()
    records._fitting.cache_clear()
    with pytest.warns(UserWarning, match=r"tuning.json.*clrt tune"):
        assert record_for(kernel, AVX512) == shipped


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners")
@pytest.mark.parametrize("who", ["file of another", "open file", "open folder", "link"])
def test_records_writable_by_others_are_ignored(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = records.user_file()
    path.write_text('[{"kernel": "gemm_cpu", "tunables": {"T_MR": 2}}]')
    if who == "file of another":
        real = os.fstat

        def fstat(number: int) -> os.stat_result:
            return os.stat_result([*real(number)[:4], os.getuid() + 1, *real(number)[5:]])

        monkeypatch.setattr(os, "fstat", fstat)
    elif who == "link":
        path.rename(tmp_path / "other.json")
        path.symlink_to(tmp_path / "other.json")
    else:
        (path if who == "open file" else tmp_path).chmod(0o777)
    with pytest.warns(UserWarning, match=r"tuning.json. are ignored"):
        assert record_for("gemm_cpu", AVX512)["T_MR"] == 8
