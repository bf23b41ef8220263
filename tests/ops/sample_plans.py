"""Samples as graphs, and their plans; no device is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import TensorType
from clrt.kernels.tuned import TUNED
from clrt.kernels.tuning_records import record_for
from clrt.ops.base import Op
from clrt.plan.make_plan import make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.util import env_vars
from tests.ops.samples import Sample


def sample_values(sample: Sample) -> list[Value | None]:
    """Returns the inputs of a sample; inputs needed at planning are constants."""
    assert isinstance(sample.op, Op)
    values: list[Value | None] = []
    for index, array in enumerate(sample.inputs):
        if array is None:
            values.append(None)
            continue
        known = array if index in sample.op.input_traits.plan_time else None
        values.append(Value(f"x{index}", TensorType(DType.of(array.dtype), array.shape, known)))
    return values


def sample_graph(sample: Sample) -> Graph:
    """Returns a graph of one node."""
    assert isinstance(sample.op, Op)
    values = sample_values(sample)
    types = sample.op.infer_with_data([None if v is None else v.type for v in values])
    outputs = [Value(f"y{i}", TensorType(t.dtype, t.shape)) for i, t in enumerate(types)]
    node = Node("node", sample.op, values, outputs)
    inputs = [v for v in values if v is not None and not v.is_constant]
    return Graph("sample", inputs, outputs, [node])


def plan_graph(graph: Graph, caps: DeviceCaps, tunables: Mapping[str, int] | None = None) -> Plan:
    """Returns the plan of a graph with numeric input shapes.

    It is for the device's twin, if there is one, if CLRT_TWINS is "on".

    Args:
        tunables: Replace the tuning records; each kernel uses the ones it declares.
    """

    def lookup(kernel: str) -> Mapping[str, int]:
        if tunables is None:
            return record_for(kernel, caps)
        own = TUNED[kernel].defaults if kernel in TUNED else tunables
        return {name: value for name, value in tunables.items() if name in own}

    twin = caps.twin if env_vars.TWINS.get() == "on" else None
    plan = make_plan(specialise(graph, {}), twin or caps, lookup)
    return replace(plan, on_twin=twin is not None and not plan.host_steps)
