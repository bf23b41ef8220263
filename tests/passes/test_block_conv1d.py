"""Conv1D of few channels, rewritten to compute adjacent positions as output channels."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

import pytest

from tests.passes.test_channels_last import ops, prepared

# Taps, stride, pads.
Window: TypeAlias = "tuple[int, int, tuple[int, int]]"
WINDOWS = [(28, 2, (13, 15)), (3, 1, (0, 2)), (12, 4, (20, 0)), (40, 8, (0, 0))]


def _found(
    window: Window, maps: int = 1, channels: int = 1, axes: str = "L", more: str = ""
) -> Counter[str]:
    """The ops of a Conv of a signal, along axis L, and of its activation.

    Args:
        more: Attributes.
    """
    taps, stride, pads = window
    across = [",".join(k if a == "L" else "1" for a in axes) for k in (f"{taps}", f"{stride}", "L")]
    ends = [str(p) if a == "L" else "0" for p in pads for a in axes]
    places = f"floordiv(L + {sum(pads) - taps}, {stride}) + 1" if stride > 1 else "L"
    shape = across[2].replace("L", places)
    conv = f"Conv{{pads=[{', '.join(ends)}], strides=[{across[1]}]{more}}}(%x, %w, %b)"
    body = f"""const %w: float32[{maps},{channels},{across[0]}] = ...
      const %b: float32[{maps}] = ...
      %c: float32[N,{maps},{shape}] = {conv}
      %y: float32[N,{maps},{shape}] = Relu(%c)"""
    x = f"%x: float32[N,{channels},{across[2]}]"
    return ops(prepared(body, x, sizes={"N": 2, "L": 101}))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("maps", "channels"), [(1, 1), (3, 1), (1, 2)])
def test_conv1d_positions_become_output_channels(window: Window, maps: int, channels: int) -> None:
    found = _found(window, maps, channels)
    assert found["ChannelsLastConv"] == 1
    assert found["Slice"] == 1


@pytest.mark.parametrize("axes", ["L", "1L", "L1", "1L1"])
def test_conv1d_blocking_ignores_axes_of_size_one(axes: str) -> None:
    assert _found((28, 2, (13, 15)), axes=axes)["Slice"] == 1


KEPT: dict[str, dict[str, Any]] = {
    "many maps": {"maps": 16},
    "a window of few taps": {"window": (2, 4, (0, 0))},
    "padding by its sizes": {"window": (3, 1, (1, 1)), "more": ', auto_pad="SAME_UPPER"'},
}


@pytest.mark.parametrize("why", KEPT)
def test_unsuitable_conv1d_is_not_blocked(why: str) -> None:
    found = _found(**{"window": (28, 2, (13, 15)), **KEPT[why]})
    assert found["ChannelsLastConv"] == 1 and not found["Slice"]
