"""Device capabilities that planning reads, and driver quirks."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.device.quirks import quirks_of


def test_small_compute_units_are_grouped_into_cores() -> None:
    for platform, cores in (("Intel(R) OpenCL Graphics", 64), ("NVIDIA CUDA", 512)):
        plain = DeviceCaps(platform, "gpu", "v", "1", "gpu", compute_units=512)
        caps = DeviceCaps.from_json(plain.to_json())
        assert caps.cores == 512
        quirky = DeviceCaps(**{**vars(plain), "quirks": quirks_of(plain)})
        assert quirky.cores == cores
    assert "counts-small-units" not in quirks_of(
        DeviceCaps("Intel(R) OpenCL", "cpu", "v", "1", "cpu")
    )


def test_quirk_depends_on_driver_version() -> None:
    for driver, has in (("22.3.6", True), ("25.0.7", False)):
        caps = DeviceCaps("rusticl", "llvmpipe", "v", driver, "gpu")
        assert ("widens-unsigned" in quirks_of(caps)) is has
