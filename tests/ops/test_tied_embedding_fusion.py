"""Tied embeddings: Gather reads the packed weight of the product."""

from __future__ import annotations

import numpy as np
import pytest

import clrt
from clrt.ir.dtypes import DType
from clrt.kernels.spec import BufferArg, PackedWeight
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.movement.gather import Gather
from clrt.runtime.opencl.devices import DeviceInfo
from tests.ops.test_split_product import DEVICES, Build, check, floats, planned


def shared(table: tuple[int, int], ids: list[int], stored: DType, axis: int = 0) -> Build:
    """Returns rows of a table, and a product with the table."""
    build = Build()
    weight = build.weight(*table, dtype=stored)
    indices = build.given("ids", np.array(ids, np.int64))
    rows = build.apply(Gather(axis=axis), weight, indices)
    x = build.given("x", floats(3, table[1]))
    build.graph.outputs = [rows, build.apply(FusedMatMul(trans_b=1), x, weight)]
    return build


@DEVICES
@pytest.mark.parametrize("stored", [DType.FLOAT32, DType.FLOAT16], ids=str)
def test_tied_embedding_shares_packed_weight(device: DeviceInfo, stored: DType) -> None:
    for table, ids in (((50, 70), [49, 0, -1]), ((24, 300), [-24]), ((5, 1), [1, 4] * 9)):
        build = shared(table, ids, stored)
        check(build, device, 2)
        if device.caps.is_cpu:
            plan = planned(build.graph, device.caps)
            launches = [launch for step in plan.steps for launch in step.launches]
            given = {a.buffer for la in launches for a in la.args if isinstance(a, BufferArg)}
            weight = build.graph.nodes[0].arg(0)
            assert (
                weight not in given
                and len({b.layout for b in given if isinstance(b, PackedWeight)}) == 1
            )


@DEVICES
def test_gather_on_other_axis_keeps_own_table(device: DeviceInfo) -> None:
    check(shared((9, 20), [3, -20], DType.FLOAT32, 1), device, 2)


@DEVICES
def test_tied_embedding_index_out_of_range_is_refused(device: DeviceInfo) -> None:
    graph = shared((50, 70), [3, 4], DType.FLOAT32).graph
    with clrt.load(graph, device=device, optimize_level=0) as model:
        for index in (50, -51):
            feeds = {"ids": np.array([3, index]), "x": floats(3, 70)}
            with pytest.raises(clrt.InputError, match=f"{index}"):
                model.run(feeds)
        found = model.run({"ids": np.array([3, 3]), "x": floats(3, 70)})
        assert (np.diff(next(iter(found.values())), axis=0) == 0).all()
