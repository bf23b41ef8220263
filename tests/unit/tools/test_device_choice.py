"""Choice of the fastest device, and its cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import clrt
from clrt.tools import device_choice as picker
from tests.harness import all_devices
from tests.models.onnx_text import parsed

SHAPES = {"x": (3, 4)}


def source() -> bytes:
    return parsed("g (float[n, m] x) => (float[n, m] y) { y = Softmax(x) }")


class Measured:
    """Records measured devices; `milliseconds` overrides their times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.devices: list[str] = []
        self.milliseconds: dict[str, float | None] = {}
        real = picker._measure

        def measure(source: Any, shapes: Any, device: clrt.DeviceInfo, folder: Any) -> Any:
            self.devices.append(str(device))
            found = real(source, shapes, device, folder)
            assert found.milliseconds is not None and found.milliseconds > 0
            if str(device) in self.milliseconds:
                return picker.DeviceTime(str(device), self.milliseconds[str(device)], "no room")
            return found

        monkeypatch.setattr(picker, "_measure", measure)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    monkeypatch.setattr(picker, "_MIN_MEASURED_S", 0.0)
    return Measured(monkeypatch)


def test_fastest_device_is_picked_and_cached(measured: Measured, tmp_path: Path) -> None:
    candidates = [str(d) for d in all_devices()]
    for fastest in candidates:
        measured.milliseconds = {d: 1.0 if d == fastest else 2.0 for d in candidates}
        folder = tmp_path / fastest.replace("/", "_")
        choice = clrt.pick_device(source(), SHAPES, cache_dir=folder)
        assert str(choice.device) == fastest and not choice.from_cache
        assert choice.times[0].device == fastest
        assert measured.devices == candidates
        assert "measured now" in str(choice) and "1.000 ms" in str(choice)
        again = clrt.pick_device(source(), {"x": (4, 3)}, cache_dir=folder)
        assert again.from_cache and again.times == choice.times
        assert again.device == choice.device and measured.devices == candidates
        clrt.pick_device(source(), {"x": (5, 4)}, cache_dir=folder)  # of another power of two
        assert len(measured.devices) == 2 * len(candidates)
        measured.devices.clear()


def test_failing_device_is_ranked_last(measured: Measured, tmp_path: Path) -> None:
    first, *others = (str(d) for d in all_devices())
    if not others:
        pytest.skip("there is one device")
    measured.milliseconds = {first: None}
    choice = clrt.pick_device(source(), SHAPES, cache_dir=tmp_path)
    assert choice.times[-1] == picker.DeviceTime(first, None, "no room")
    assert str(choice.device) in others and "no room" in str(choice)
    measured.milliseconds = dict.fromkeys([first, *others])
    with pytest.raises(clrt.DeviceError, match=r"cannot run on any device.*no room"):
        clrt.pick_device(source(), {"x": (64, 64)}, cache_dir=tmp_path)


@pytest.mark.parametrize("damage", ["not json", '[{"device": "x"}]', "[]", "null", "open"])
def test_damaged_device_cache_is_remeasured(
    measured: Measured, tmp_path: Path, damage: str
) -> None:
    clrt.pick_device(source(), SHAPES, cache_dir=tmp_path)
    (file,) = (tmp_path / "devices").iterdir()
    if damage == "open":
        if os.name != "posix":
            pytest.skip("modes are POSIX's")
        file.chmod(0o666)
    else:
        file.write_text(damage)
    measured.devices.clear()
    assert not clrt.pick_device(source(), SHAPES, cache_dir=tmp_path).from_cache
    assert measured.devices


def test_invalid_shapes_are_refused(tmp_path: Path) -> None:
    for shapes in ({"y": (3, 4)}, {"x": (3,)}, [(3, 4)]):
        with pytest.raises(clrt.InputError):
            clrt.pick_device(source(), shapes, cache_dir=tmp_path)  # type: ignore[arg-type]
