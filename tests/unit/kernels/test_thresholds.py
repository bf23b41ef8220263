"""Kernel thresholds: tuning records override them, and unknown names are refused."""

from __future__ import annotations

import pytest

import clrt.runtime.model.model  # noqa: F401  (declares every group)
from clrt.device.caps import DeviceCaps
from clrt.kernels.gemm_cpu import GemmPartitionThresholds
from clrt.kernels.gemm_tile import GemmTiles
from clrt.kernels.tuning_records import check_values
from clrt.kernels.variant import Lowering

CPU = DeviceCaps("Test", "test", "Test", "1", "cpu")


def test_record_overrides_only_named_thresholds() -> None:
    default = GemmPartitionThresholds.of({})
    ctx = Lowering(CPU, lambda group: {"stripe": 5} if group == "gemm_shares" else {})
    assert ctx.thresholds(GemmPartitionThresholds).stripe == 5
    assert ctx.thresholds(GemmPartitionThresholds).split == default.split
    assert ctx.thresholds(GemmTiles) is GemmTiles.of({})
    # Fewer blocks to a work-group are more work-groups.
    assert GemmPartitionThresholds.of({"stripe": 5}).height(64, 1, 4, CPU) <= default.height(
        64, 1, 16, CPU
    )


def test_unknown_threshold_is_refused() -> None:
    check_values("gemm_shares", {"stripe": 5})
    with pytest.raises(ValueError, match="gemm_shares sets stripes"):
        check_values("gemm_shares", {"stripes": 5})
    with pytest.raises(ValueError, match="gemm_tiles sets speeds"):
        check_values("gemm_tiles", {"speeds": 5})


def test_gemm_tiles_list_alternative_tiles() -> None:
    assert (14, 1, 0.82) in GemmTiles.of({}).others(8, 3, 16)
    assert GemmTiles.of({}).others(2, 2, 2) == []


def test_thresholds_are_immutable_values() -> None:
    default = GemmPartitionThresholds.of({})
    assert GemmPartitionThresholds(stripe=default.stripe) == default
    assert hash(GemmPartitionThresholds(stripe=default.stripe)) == hash(default)
    other = GemmPartitionThresholds(stripe=default.stripe + 1)
    assert other != default != GemmTiles.of({})
    assert (other.stripe, other.split) == (default.stripe + 1, default.split)
    with pytest.raises(AttributeError, match="immutable"):
        other.stripe = 3
    with pytest.raises(TypeError, match="no field stripes"):
        GemmPartitionThresholds(stripes=3)
