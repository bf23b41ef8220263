"""Convolution on GPUs: windows read from the images, tiles, and split K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import ElementwiseInstruction, TensorType
from clrt.kernels.conv_gpu import (
    BY_CHANNEL,
    BY_TAP,
    IN_PLACE,
    ConvGpuCosts,
    ImageWindows,
    best_split,
    conv_tiles,
)
from clrt.kernels.spec import PackedWeight
from clrt.ops.conv.conv import Conv, FusedConv
from clrt.ops.pointwise.table import Add, Relu
from clrt.plan.make_plan import make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from tests.harness import quick_device, run_plan, tolerance
from tests.ops.test_split_product import Build, floats, planned

UNITS = 64
COSTS = ConvGpuCosts.of({})
GPU = DeviceCaps(
    "p", "gpu", "v", "1", "gpu", max_work_group_size=256, local_mem_bytes=1 << 15, compute_units=48
)
# Of kernels that compilers for CPUs take seconds for.
TILE = {"conv_gpu": {"T_RM": 2, "T_RN": 4, "T_TK": 8}}


def gpu_plan(build: Build, units: int, tunables: Mapping[str, Mapping[str, int]]) -> Plan:
    caps = replace(quick_device().caps, kind="gpu", compute_units=units)
    return planned(build.graph, caps, tunables)


@pytest.mark.parametrize(
    ("rows", "tiles"),
    [
        (512, ((8, 8), (4, 4), (2, 2))),
        (64, ((4, 8), (4, 4), (2, 2))),
        (24, ((2, 8), (2, 4), (2, 2))),
        (3, ((1, 8), (1, 4), (1, 2))),
    ],
)
def test_conv_tile_rows_do_not_exceed_output_maps(
    rows: int, tiles: tuple[tuple[int, int], ...]
) -> None:
    assert conv_tiles(rows, 8, 8, COSTS.tile_side) == tiles


@pytest.mark.parametrize(
    ("maps", "columns", "slices", "tile", "parts"),
    [(512, 49, 288, 1, 6), (512, 784, 288, 0, 3), (128, 784, 72, 1, 1), (256, 50176, 4, 0, 1)],
)
def test_conv_split_fills_all_compute_units(
    maps: int, columns: int, slices: int, tile: int, parts: int
) -> None:
    sizes = maps, columns, 1, slices, 16, 1 << 20, 48, 8, 8
    assert best_split(*sizes, costs=COSTS, join_cycles=10_000) == (tile, parts)
    assert best_split(*sizes, costs=COSTS, join_cycles=1 << 30).splits == 1


def test_conv_slice_order_depends_on_channels_and_taps() -> None:
    assert ImageWindows(64, 1, 9, {}).order(16, 125) == IN_PLACE
    assert ImageWindows(64, 9, 9, {"in0": 1}).order(16, 125) == BY_TAP
    assert ImageWindows(3, 49, 9, {"in0": 1}).order(16, 125) == BY_CHANNEL
    assert ImageWindows(3, 1, 9, {"in0": 1}).order(16, 125) == BY_TAP
    assert ImageWindows(0, 9, 9, {"in0": 1}).order(16, 125) == IN_PLACE


RESIDUAL = (ElementwiseInstruction(Add(), (0, 1)), ElementwiseInstruction(Relu(), (2,)))


@pytest.mark.parametrize(
    ("op", "x", "w", "y", "units", "parts"),
    [
        # By tap, channels of whole slices, in parts that end within a tap.
        (FusedConv(pads=(1, 1, 1, 1)), (2, 320, 5, 7), (40, 320, 3, 3), (5, 7), 64, 16),
        # By tap, channels that leave the last slice of a tap short, in groups.
        (FusedConv((3,), (2,), (2,), (3, 1), group=2), (3, 14, 90), (6, 7, 3), (45,), 1, 1),
        # By channel.
        (FusedConv((5, 5), (2, 2), (), (2, 2, 2, 2)), (2, 3, 9, 9), (7, 3, 5, 5), (5, 5), 1, 1),
        # In place: columns of all images in one tile.
        (FusedConv(), (3, 20, 3, 5), (18, 20, 1, 1), (3, 5), 1, 1),
    ],
    ids=["parts", "groups", "few channels", "in place"],
)
def test_conv_reading_windows_matches_reference(
    op: FusedConv,
    x: tuple[int, ...],
    w: tuple[int, ...],
    y: tuple[int, ...],
    units: int,
    parts: int,
) -> None:
    build, op = Build(), replace(op, steps=RESIDUAL)
    images, residual = build.given("x", floats(*x)), build.given("r", floats(x[0], w[0], *y))
    weights, bias = build.weight(*w), build.weight(w[0])
    build.graph.outputs = [build.apply(op, images, weights, bias, residual)]
    plan = gpu_plan(build, units, TILE)
    launches = launches_of(plan.steps)
    entries = [n.kernel.entry for n in launches]
    assert entries == (["conv_gpu"] if parts == 1 else ["conv_gpu", "join_parts"])
    assert launches[0].global_size[2] == parts * op.group
    assert any(isinstance(b, PackedWeight) for b in launches[0].buffers)
    results = run_plan(plan, {v.name: build.known[v] for v in build.graph.inputs}, quick_device())
    for value in build.graph.outputs:
        expected = build.known[value]
        bound = tolerance(op, expected)
        np.testing.assert_allclose(results[value.name], expected, rtol=0, atol=bound)


@pytest.mark.parametrize("window", [1, 3])
def test_conv_new_shape_compiles_nothing(window: int) -> None:
    n, side = symbol("N"), symbol("H")
    weights = np.ones((64, 32, window, window), np.float32)
    x = Value("x", TensorType(DType.FLOAT32, (n, 32, side, side)))
    w = Value("w", TensorType(DType.FLOAT32, weights.shape, weights))
    op = Conv()
    (made,) = op.infer([x.type, w.type])
    graph = Graph("g", [x], [Value("y", made)], [])
    graph.nodes.append(Node("conv", op, [x, w], list(graph.outputs)))
    sizes = [{"N": 1, "H": 9}, {"N": 16, "H": 9}, {"N": 1, "H": 200}, {"N": 1, "H": 3}]
    plans = [make_plan(specialise(graph, s), GPU, lambda _: {}) for s in sizes]
    first, *others = (
        {n.kernel for n in launches_of(p.steps)} | {*p.precompiled_kernels} for p in plans
    )
    # Three tiles, and what joins parts: theirs have no epilogue, as the others here.
    assert len(first) == (3 if window == 1 else 4)
    assert all(kernels == first for kernels in others)
