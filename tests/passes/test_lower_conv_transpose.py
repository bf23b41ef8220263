"""Lowering of ConvTranspose to a convolution that computes the phases of its stride."""

from __future__ import annotations

from itertools import product
from typing import TypeAlias

import pytest

from tests.passes.test_channels_last import ops, prepared

# Window, stride, pads, output padding.
Window: TypeAlias = "tuple[int, int, tuple[int, int], int]"
WINDOWS = [
    (2, 2, (0, 0), 0),
    (4, 2, (1, 1), 0),
    (3, 2, (1, 1), 1),
    (3, 2, (1, 1), 0),
    (3, 2, (0, 2), 0),
    (3, 1, (1, 1), 0),
    (5, 3, (2, 0), 2),
    (8, 4, (2, 2), 0),
    (7, 3, (3, 3), 1),
    (6, 2, (5, 5), 1),
]
X = "%x: float32[N,8,H,W]"


def _result(name: str, window: Window) -> str:
    size, stride, pads, more = window
    return f"{stride}*{name} + {size - stride + more - sum(pads)}"


def _body(*windows: Window) -> str:
    names = ("N", "H", "W")[-len(windows) :] if len(windows) < 3 else ("D", "H", "W")
    sizes, strides, pads, padding = zip(*windows, strict=True)
    befores, behinds = zip(*pads, strict=True)
    attributes = (
        f"kernel_shape={list(sizes)}, strides={list(strides)}, "
        f"pads={[*befores, *behinds]}, output_padding={list(padding)}"
    )
    shape = ",".join(_result(n, w) for n, w in zip(names, windows, strict=True))
    return (
        f"const %w: float32[8,12,{','.join(map(str, sizes))}] = ...\n"
        "const %b: float32[12] = ...\n"
        f"%y: float32[N,12,{shape}] = ConvTranspose{{{attributes}}}(%x, %w, %b)"
    )


@pytest.mark.parametrize("rows", WINDOWS)
@pytest.mark.parametrize("columns", WINDOWS[:5])
def test_lowered_conv_transpose_becomes_one_channels_last_conv(
    rows: Window, columns: Window
) -> None:
    found = ops(prepared(_body(rows, columns), X))
    if not found["ConvTranspose"]:
        assert found["ChannelsLastConv"] == 1


def test_most_conv_transpose_windows_are_lowered() -> None:
    taken = [
        not ops(prepared(_body(r, c), X))["ConvTranspose"] for r, c in product(WINDOWS, WINDOWS[:2])
    ]
    assert sum(taken) > 0.8 * len(taken)


def test_conv_transpose_of_one_axis_is_lowered() -> None:
    body = _body((16, 8, (4, 4), 0))
    assert not ops(prepared(body, "%x: float32[N,8,W]"))["ConvTranspose"]


def test_unsupported_conv_transpose_is_kept() -> None:
    window = (2, 2, (0, 0), 0)
    plain = _body(window, window)
    larger = plain.replace("2*H + 0,2*W + 0", "2*H + 1,2*W + 1")
    for text in (
        larger.replace("kernel_shape", "dilations=[2, 2], kernel_shape"),
        plain.replace("[N,12,", "[N,24,")
        .replace("[12]", "[24]")
        .replace("kernel", "group=2, kernel"),
        plain.replace("kernel_shape", 'auto_pad="SAME_UPPER", kernel_shape'),
        _body((2, 5, (0, 0), 0), (1, 2, (0, 0), 0)),
    ):
        assert ops(prepared(text, X))["ConvTranspose"] == 1, text


def test_conv_transpose_chain_stays_channels_last() -> None:
    """Ops after a lowered ConvTranspose read it channels-last, as after a convolution."""
    body = f"""
      {_body((2, 2, (0, 0), 0), (2, 2, (0, 0), 0)).replace("%y", "%u")}
      const %v: float32[8,12,3,3] = ...
      %t: float32[N,12,2*H,2*W] = Relu(%u)
      %y: float32[N,8,2*H,2*W] = Conv{{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}}(%t, %v)
    """
    found = ops(prepared(body, X))
    assert found["ChannelsLastConv"] == 2
    assert found["Transpose"] == 3  # of x, of the phases, of y
