"""Runs one op or graph on a device, the way a model would."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, IrOp, TensorType
from clrt.kernels.tuned import TUNED
from clrt.knobs import DEVICE
from clrt.ops.base import Accuracy, Op
from clrt.plan.plan import Plan, make_plan
from clrt.plan.specialise import specialise
from clrt.runtime.bound_plan import BoundPlan
from clrt.runtime.devices import DeviceInfo, choose_device, devices
from clrt.runtime.execution import Execution
from clrt.runtime.session import session_for
from clrt.runtime.slabs import Slabs
from clrt.runtime.weights import Weights
from clrt.tuning.records import record_for
from tests.ops.samples import Sample


@cache
def all_devices() -> tuple[DeviceInfo, ...]:
    """The device that CLRT_DEVICE names, else every usable device but simulators."""
    if DEVICE.get() != DEVICE.default:
        return (choose_device(),)
    return tuple(d for d in devices() if d.usable and not d.caps.simulator)


@cache
def quick_device() -> DeviceInfo:
    """The device with the quickest compiler: PoCL takes three times as long as Intel's runtime."""
    pocl = "Portable Computing Language"
    return next((d for d in all_devices() if d.platform != pocl), all_devices()[0])


def _sweep() -> pytest.MarkDecorator:
    others = [d for d in all_devices() if d is not quick_device()]
    slow = [pytest.param(d, marks=pytest.mark.slow) for d in others]
    return pytest.mark.parametrize("device", [*slow, quick_device()], ids=name_of)


def name_of(device: DeviceInfo) -> str:
    """A device in the name of a test."""
    return device.platform.split()[0]


# Of tests that compile many programs: other devices than the quickest are left to `make test-all`.
SWEEP = _sweep()


def sample_values(sample: Sample) -> list[Value | None]:
    """The inputs of a sample; those that planning must know are constants."""
    assert isinstance(sample.op, Op)
    values: list[Value | None] = []
    for index, array in enumerate(sample.inputs):
        if array is None:
            values.append(None)
            continue
        known = array if index in sample.op.host_inputs else None
        values.append(Value(f"x{index}", TensorType(DType.of(array.dtype), array.shape, known)))
    return values


def sample_graph(sample: Sample) -> Graph:
    """A graph of one node."""
    assert isinstance(sample.op, Op)
    values = sample_values(sample)
    types = sample.op.infer_with_data([None if v is None else v.type for v in values])
    outputs = [Value(f"y{i}", TensorType(t.dtype, t.shape)) for i, t in enumerate(types)]
    node = Node("node", sample.op, values, outputs)
    inputs = [v for v in values if v is not None and not v.is_constant]
    return Graph("sample", inputs, outputs, [node])


def plan_graph(graph: Graph, caps: DeviceCaps, tunables: Mapping[str, int] | None = None) -> Plan:
    """The plan of a graph whose input shapes are numbers.

    Args:
        tunables: In place of the tuning records; each kernel takes those that it has.
    """

    def lookup(kernel: str) -> Mapping[str, int]:
        if tunables is None:
            return record_for(kernel, caps)
        own = TUNED[kernel].defaults if kernel in TUNED else tunables
        return {name: value for name, value in tunables.items() if name in own}

    return make_plan(specialise(graph, {}), caps, lookup)


# Oclgrind takes a new buffer in the place of a freed one to be as initialised as that one was.
_never_freed: list[BoundPlan] = []


def run_plan(plan: Plan, feeds: Mapping[str, Array], device: DeviceInfo) -> dict[str, Array]:
    """The outputs of a plan of `plan_graph`."""
    session = session_for(device)
    constants = frozenset(plan.graph.constants())
    bound = BoundPlan(
        plan, session, Weights(session), Slabs(session), constants, session.connection.lane
    )
    if device.caps.simulator:
        _never_freed.append(bound)
    results = Execution(bound, feeds, dict.fromkeys(plan.graph.output_names, False)).run()
    return {k: np.asarray(v) for k, v in results.items()}


def run_graph(
    graph: Graph,
    feeds: Mapping[str, Array],
    device: DeviceInfo,
    tunables: Mapping[str, int] | None = None,
) -> tuple[dict[str, Array], Plan]:
    """Outputs of a graph whose input shapes are numbers, and the plan that made them."""
    plan = plan_graph(graph, device.caps, tunables)
    return run_plan(plan, feeds, device), plan


def tolerance(op: IrOp, expected: Array) -> float:
    """The largest difference allowed: the op's accuracy class in the dtype's epsilon."""
    assert isinstance(op, Op)
    if expected.dtype.kind != "f" or expected.size == 0 or op.accuracy is Accuracy.EXACT:
        return 0.0
    finite = np.abs(expected[np.isfinite(expected)].astype(np.float64))
    largest = float(finite.max()) if finite.size else 0.0
    return op.accuracy.value * float(np.finfo(expected.dtype).eps) * max(largest, 1e-30)
