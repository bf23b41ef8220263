"""Work-item placement on GPUs: flat global sizes, and tiles for transposes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from math import prod

import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import Dim, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.kernels.spec import Launch
from clrt.kernels.strided import _tile_width
from clrt.ops.base import Op
from clrt.ops.conv.conv import Conv
from clrt.ops.movement.gather_elements import GatherElements
from clrt.ops.movement.gather_nd import GatherND
from clrt.ops.movement.pad import Pad
from clrt.ops.movement.reverse_sequence import ReverseSequence
from clrt.ops.movement.scatter_elements import ScatterElements
from clrt.ops.movement.transpose import Transpose
from clrt.ops.movement.trilu import Trilu
from clrt.ops.norm.batch_normalization import BatchNormalization
from clrt.ops.pointwise.table import Add
from clrt.ops.vision.pooling import MaxPool
from clrt.plan.make_plan import make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices, name_of, plan_graph, run_plan, sample_graph, tolerance
from tests.ops.samples import samples
from tests.ops.test_ops import SMALL, check, feeds_of

CPU, GPU, SMALL_GPU = (
    DeviceCaps("Test", "test", "Test", "1", kind, compute_units=64, max_work_group_size=items)
    for kind, items in (("cpu", 4096), ("gpu", 256), ("gpu", 128))
)

# How many samples run, which are as many kernels, about.
PLACED: dict[type[Op], int] = {
    Add: 2,
    BatchNormalization: 2,
    GatherElements: 1,
    GatherND: 2,
    MaxPool: 2,
    Pad: 3,
    ReverseSequence: 1,
    ScatterElements: 1,
    Transpose: 5,
    Trilu: 2,
}


def _plan(op: Op, caps: DeviceCaps, *shapes: tuple[Dim, ...], **sizes: int) -> Plan:
    inputs = [Value(f"x{i}", TensorType(DType.FLOAT32, s)) for i, s in enumerate(shapes)]
    (y,) = (Value("y", t) for t in op.infer([v.type for v in inputs]))
    graph = Graph("g", inputs, [y], [Node("n", op, inputs, [y])])
    return make_plan(specialise(graph, sizes), caps, lambda _: {})


def _launches(op: Op, caps: DeviceCaps, *shapes: tuple[Dim, ...], **sizes: int) -> list[Launch]:
    return [x for x in launches_of(_plan(op, caps, *shapes, **sizes).steps) if prod(x.global_size)]


def test_pool_of_short_rows_uses_flat_global_size() -> None:
    (found,) = _launches(MaxPool((3, 3), pads=(1, 1, 1, 1)), GPU, (2, 960, 7, 7))
    assert found.global_size == (2 * 960 * 7 * 7,)


def test_depthwise_conv_work_item_computes_column_rows() -> None:
    """One work-item per column block of a depthwise convolution; the last block may be smaller."""
    window = Conv(kernel_shape=(3, 3), pads=(1, 1, 1, 1), group=960)
    (found,) = _launches(window, GPU, (2, 960, 7, 7), (960, 1, 3, 3))
    assert (found.kernel.entry, found.global_size) == ("conv_depthwise_gpu", (2 * 960 * 4 * 7,))
    line = Conv(kernel_shape=(5,), group=8)
    (found,) = _launches(line, GPU, (1, 8, 104), (8, 1, 5))
    assert (found.kernel.entry, found.global_size) == ("conv_depthwise_gpu", (8 * 100,))
    (found,) = _launches(window, CPU, (2, 960, 7, 7), (960, 1, 3, 3))
    assert found.kernel.entry == "conv_depthwise_cpu"


@pytest.mark.parametrize(("rows", "columns"), [(4, 600), (600, 4), (49, 40), (1000, 1000)])
def test_transpose_tile_width_follows_matrix_shape(rows: int, columns: int) -> None:
    width = _tile_width(rows, columns, 1024)
    height = 1024 // width
    assert width * height == 1024 and min(width, height) >= 4
    assert width <= 32 or height < 2 * columns
    assert height <= 32 or width < 2 * rows


def test_transpose_kernel_depends_on_device() -> None:
    entries = [
        [x.kernel.entry for x in _launches(Transpose((1, 0)), caps, (40, 50))]
        for caps in (GPU, SMALL_GPU, CPU)
    ]
    assert entries == [["copy_tiled"], ["copy_strided"], ["copy_strided_cpu"]]


def test_transpose_new_shape_compiles_nothing() -> None:
    """Small matrices use no tiles; the choice depends on sizes."""
    m, n = symbol("M"), symbol("N")
    kernels = []
    for sizes in ({"M": 40, "N": 50}, {"M": 3, "N": 5}, {"M": 1000, "N": 2}):
        plan = _plan(Transpose((0, 2, 1)), GPU, (2, m, n), **sizes)
        kernels.append({x.kernel for x in launches_of(plan.steps)} | {*plan.precompiled_kernels})
    assert len(kernels[0]) == 2
    assert kernels[1] == kernels[2] == kernels[0]


@pytest.mark.parametrize("device", all_devices(), ids=name_of)
@pytest.mark.parametrize(("cls", "count"), PLACED.items(), ids=lambda v: getattr(v, "name", ""))
def test_gpu_plans_match_reference(cls: type[Op], count: int, device: DeviceInfo) -> None:
    """Ops whose variant also runs on CPUs, with a different work-item layout."""
    caps = replace(device.caps, kind="gpu")
    tiles = SMALL["copy_tiled"] if caps.simulator else {"T_ITEMS": 64}
    every = [s for s in samples(cls) if all(a is None or a.size for a in s.inputs)]
    for sample in islice(reversed(every), 0, None, max(len(every) // count, 1)):
        plan = plan_graph(sample_graph(sample), caps, tiles)
        expected = sample.op.reference(*sample.inputs)
        actual = run_plan(plan, feeds_of(sample), device)
        for array, (name, found) in zip(expected, actual.items(), strict=True):
            check(f"{sample.op} {name}", found, array, tolerance(sample.op, array))
