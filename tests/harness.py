"""Runs one op or graph on a device, the way a model would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from clrt.ir.graph import Graph
from clrt.ir.op import Array, IrOp
from clrt.ops.base import Accuracy, Op
from clrt.plan.plan import Plan
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.devices import DeviceInfo, choose_device, devices
from clrt.runtime.opencl.session import session_for
from clrt.runtime.opencl.weight_store import WeightStore
from clrt.util.env_vars import DEVICE
from tests.ops.sample_plans import plan_graph as plan_graph
from tests.ops.sample_plans import sample_graph as sample_graph
from tests.ops.sample_plans import sample_values as sample_values


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


def _driver_row(device: DeviceInfo, setting: str) -> ParameterSet:
    suffix = "-twin" if setting == "on" else ""
    mark = pytest.mark.twins(setting)
    return pytest.param(device, marks=mark, id=name_of(device) + suffix)


# Of tests of runs, for a decorator or a fixture: every device, and the twin of each that has one.
DRIVER_ROWS = [
    _driver_row(device, setting)
    for device in all_devices()
    for setting in (["off"] if device.twin is None else ["off", "on"])
]
DRIVERS = pytest.mark.parametrize("device", DRIVER_ROWS)
# Of tests that compile many programs: other devices than the quickest are left to `make test-all`.
SWEEP = _sweep()


# Oclgrind takes a new buffer in the place of a freed one to be as initialised as that one was.
_never_freed: list[BoundPlan] = []


def run_plan(plan: Plan, feeds: Mapping[str, Array], device: DeviceInfo) -> dict[str, Array]:
    """Returns the outputs of a plan of `plan_graph`.

    Kernels that the graph launches at other shapes only are not compiled: tests run those shapes.
    """
    session = session_for(device)
    constants = frozenset(plan.graph.constants())
    lane = session.new_lane(on_twin=True) if plan.on_twin else session.connection.lane
    bound = BoundPlan(
        replace(plan, precompiled_kernels=()),
        session,
        WeightStore(session),
        ArenaMemory(session),
        constants,
        lane,
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
