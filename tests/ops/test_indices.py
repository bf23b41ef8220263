"""Indices, lengths and positions from data: values out of range raise errors that name them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from clrt.errors import NumberError
from clrt.ir.op import Array
from clrt.ops import REGISTRY
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.tensor_scatter import TensorScatter
from clrt.ops.base import Op
from clrt.ops.matmul.quantized_gather import QuantizedGather
from clrt.ops.matmul.routed_matmul import RoutedMatMul
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.gather_elements import GatherElements
from clrt.ops.movement.gather_nd import GatherND, ScatterND
from clrt.ops.movement.reverse_sequence import ReverseSequence
from clrt.ops.movement.scatter_elements import ScatterElements
from clrt.ops.recurrent.dynamic_quantize_lstm import DynamicQuantizeLSTM
from clrt.ops.recurrent.gru import GRU
from clrt.ops.recurrent.lstm import LSTM
from clrt.ops.recurrent.recurrent import Recurrent
from clrt.ops.recurrent.rnn import RNN
from clrt.ops.tensor.one_hot import OneHot
from clrt.ops.vision.max_roi_pool import MaxRoiPool
from clrt.ops.vision.resize_image import ResizeImage
from clrt.ops.vision.roi_align import RoiAlign
from clrt.plan.steps import DeviceStep
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, plan_graph, run_plan, sample_graph
from tests.ops.samples import Sample
from tests.ops.samples.matmul.quantized_matmul import quantised
from tests.ops.samples.recurrent.dynamic_quantize_lstm import quantized_inputs
from tests.ops.samples.recurrent.recurrent import sample_inputs

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
KERNELS = Path(__file__).parents[2] / "kernels_cl"
# What int64 -> int32 or an addition would make good again is among them.
HUGE = (-(1 << 63), -(1 << 32), -(1 << 31), 1 << 31, 1 << 32, (1 << 32) + 1, (1 << 63) - 1)


@dataclass(frozen=True)
class Follower:
    """An op that indexes by an input, and the values just outside its allowed range."""

    op: Op
    inputs: tuple[Array | None, ...]
    operand: int
    outside: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.op.name}-{self.operand}"

    def bad(self) -> Iterator[tuple[float, tuple[Array | None, ...]]]:
        """Yields each value out of range, and the inputs with it in the last position."""
        given = self.inputs[self.operand]
        assert given is not None
        for number in (*self.outside, *HUGE):
            if given.dtype.kind == "i":
                limits = np.iinfo(given.dtype)
                if not limits.min <= number <= limits.max:
                    continue
            changed = given.copy()
            changed.reshape(-1)[-1] = number
            yield (
                changed.reshape(-1)[-1].item(),
                (*self.inputs[: self.operand], changed, *self.inputs[self.operand + 1 :]),
            )


def _floats(*shape: int) -> Array:
    return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)


def _recurrent(cls: type[Recurrent]) -> Follower:
    return Follower(cls(), sample_inputs(cls, (4, 3, 5, 7), cls(), (True,) * 5), 4, (-1, 5))


def _followers() -> Iterator[Follower]:
    x = _floats(4, 5)
    for dtype in (np.int64, np.int32):
        one = np.array([1, -4], dtype)
        yield Follower(Gather(), (x, one), 1, (-5, 4))
        yield Follower(Gather(), (_floats(4, 32), one), 1, (-5, 4))
        yield Follower(Gather(1), (x, one), 1, (-6, 5))
        yield Follower(GatherElements(), (x, np.zeros((2, 5), dtype)), 1, (-5, 4))
        yield Follower(ScatterElements(), (x, np.zeros((2, 5), dtype), x[:2]), 1, (-5, 4))
        yield Follower(GatherND(), (x, np.zeros((3, 2), dtype)), 1, (-6, 5))
        yield Follower(GatherND(1), (x, np.zeros((4, 1), dtype)), 1, (-6, 5))
        yield Follower(ScatterND("add"), (x, np.zeros((3, 1), dtype), x[:3]), 1, (-5, 4))
    cache = _floats(2, 1, 6, 3), _floats(2, 1, 2, 3)
    yield Follower(TensorScatter(), (*cache, np.array([0, 4])), 2, (-1, 5, 6))
    heads = _floats(2, 1, 1, 4), _floats(2, 1, 6, 4), _floats(2, 1, 6, 4)
    yield Follower(FusedAttention.plain(1, 4), (*heads, None, np.array([0, 6])), 4, (-1, 7))
    yield Follower(ReverseSequence(), (_floats(4, 3, 2), np.array([0, 4, 2])), 1, (-1, 5))
    image = _floats(2, 3, 6, 7)
    regions = np.array([[0, 0, 5, 4], [1, 2, 6, 5]], np.float32)
    yield Follower(RoiAlign(), (image, regions, np.array([0, 1])), 2, (-1, 2))
    rows = quantised(np.random.default_rng(5), "Q8_0", 45, 32)
    yield Follower(QuantizedGather("Q8_0", 32, 45), (np.array([3, -4]), rows), 0, (-46, 45))
    routed = (_floats(2, 6), _floats(3, 4, 6), np.array([[0], [2]]))
    yield Follower(RoutedMatMul(1), routed, 2, (-4, 3))
    yield from _resizes()
    yield from (_recurrent(cls) for cls in (LSTM, GRU, RNN))
    quantized = quantized_inputs(DynamicQuantizeLSTM(), (3, 2, 4, 5), (False, True, *(False,) * 3))
    yield Follower(DynamicQuantizeLSTM(), quantized, 4, (-1, 4))


def _resizes() -> Iterator[Follower]:
    """Of 6 x 9 pixels 4 x 5 of two each, which lie within 6 x 8."""
    weights = np.full((5, 2), 1 << 21, np.int32)
    inputs = (
        _floats(2, 3, 6, 8), np.arange(6 * 9 * 3, dtype=np.uint8).reshape(6, 9, 3),
        np.array([0, 1, 2, 3, 7], np.int32), weights, np.array([0, 1, 2, 4], np.int32),
        weights[:4], np.ones((3, 3), np.float32), np.array([1, 2, 3], np.int32),
    )  # fmt: skip
    for operand, outside in ((2, (-1, 8)), (4, (-1, 5)), (7, (-1, 4))):
        yield Follower(ResizeImage(), inputs, operand, outside)


FOLLOWERS = pytest.mark.parametrize("follower", list(_followers()), ids=str)


def _run(follower: Follower, inputs: Sequence[Array | None], device: DeviceInfo) -> list[Array]:
    graph = sample_graph(Sample(follower.op, tuple(inputs)))
    plan = plan_graph(graph, device.caps)
    assert all(isinstance(step, DeviceStep) for step in plan.steps)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    return list(run_plan(plan, feeds, device).values())


@FOLLOWERS
@DEVICES
def test_index_out_of_range_error_names_value(follower: Follower, device: DeviceInfo) -> None:
    expected = follower.op.reference(*follower.inputs)
    found = 0
    for number, inputs in follower.bad():
        # A simulator takes seconds for large ones; there those just outside are enough.
        if device.caps.simulator and number not in follower.outside:
            continue
        found += 1
        with pytest.raises(NumberError, match=rf" is {number}; allowed are "):
            _run(follower, inputs, device)
        with pytest.raises(NumberError, match=rf" is {number}; allowed are "):
            follower.op.reference(*inputs)
    assert found
    for actual, array in zip(_run(follower, follower.inputs, device), expected, strict=False):
        np.testing.assert_allclose(actual, array, rtol=1e-5, atol=1e-5)


@DEVICES
@pytest.mark.parametrize("number", [-1.0, 2.0, np.nan, np.inf, -np.inf, 3e38])
def test_roi_image_out_of_range_error_names_value(number: float, device: DeviceInfo) -> None:
    rois = np.array([[1, 0, 0, 5, 4], [number, 1, 2, 6, 5]], np.float32)
    follower = Follower(MaxRoiPool((2, 2)), (_floats(2, 3, 6, 7), rois), 1, ())
    said = re.escape(str(np.float32(number).item()))
    with pytest.raises(NumberError, match=f"an image is {said}; allowed are 0..1"):
        _run(follower, follower.inputs, device)
    with pytest.raises(NumberError, match=f"an image is {said}; allowed are 0..1"):
        follower.op.reference(*follower.inputs)


@DEVICES
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e9, -1e9, 2.2e9, 1e6])
def test_rois_far_outside_image_read_only_image(number: float, device: DeviceInfo) -> None:
    x = np.abs(np.sin(_floats(1, 2, 6, 7)))
    rois = [[0, 0, number, 4], [number, 1, 6, 5], [0, number, 5, number]]
    rois.append([0.25 - number, 0, number, 4])  # no sample lies where images end
    regions = np.array(rois, np.float32)
    images = np.zeros(len(rois), np.int64)
    numbered = np.column_stack([images, regions]).astype(np.float32)
    for op, inputs in [
        *((RoiAlign(p, m, 2, 2), (x, regions, images)) for p in ("half_pixel", "output_half_pixel")
          for m in ("avg", "max")),
        (MaxRoiPool((2, 2)), (x, numbered)),
    ]:  # fmt: skip
        with np.errstate(all="ignore"):
            (expected,) = op.reference(*inputs)
        (found,) = _run(Follower(op, inputs, 1, ()), inputs, device)
        if abs(number) == 1e6:  # within what float32 tells apart
            np.testing.assert_allclose(found, expected, atol=1e-3, err_msg=str(op))
        assert np.isfinite(found).all()


@DEVICES
def test_one_hot_ignores_non_index_floats(device: DeviceInfo) -> None:
    indices = np.array([0, np.nan, np.inf, -np.inf, 1e30, -1e30, -1, 2], np.float32)
    inputs = (indices, np.array(3), np.array([0, 1], np.float32))
    plan = plan_graph(sample_graph(Sample(OneHot(), inputs)), device.caps)
    (found,) = run_plan(plan, {"x0": indices, "x2": inputs[2]}, device).values()
    np.testing.assert_array_equal(np.argwhere(found), [[0, 0], [6, 2], [7, 2]])
    np.testing.assert_array_equal(found, OneHot().reference(*inputs)[0])


def test_kernels_with_index_inputs_have_status_output() -> None:
    """A kernel with an input of an index type has a status output.

    Exceptions only compare the index and never compute addresses from it.
    """
    only_compares = {
        *("one_hot.cl", "recurrent.clh", "recurrent_steps.cl"),
        *("dynamic_quantize_linear.cl", "round_rows.cl"),
    }
    for path in sorted(KERNELS.rglob("*.cl*")):
        text = path.read_text()
        follows = re.search(r"IN\((INDEX_T|LENS_T), ", text)
        assert not follows or path.name in only_compares or "OUT(long, status)" in text, path.name


def test_ops_with_index_inputs_are_tested_for_range() -> None:
    """Their kernels have a status in the plan, and `infer_with_data` refuses other dtypes."""
    followers = {(f.op.name, f.operand) for f in _followers()}
    for cls in REGISTRY.all_classes().values():
        if cls.variants:  # others are taken apart before they are planned
            assert {(cls.name, i) for i in cls.input_traits.index} <= followers, cls.name
    for cls in (Gather, GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter):
        assert cls.input_traits.index, cls.name
