"""Measures the costs of launches on a device and on its twin, for `clrt tune`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.kernels.tuning_records import device_thresholds
from clrt.ops.norm.softmax import Softmax
from clrt.plan.twin_choice import TwinCosts
from clrt.runtime.execution.execution import Execution
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.tools.tune import Tuned
from clrt.util import env_vars

# Number of launches of the longer of two compared runs.
_LAUNCHES = 20
# Shapes of a launch that ends at once, and of one that several cores share (0.3 ms on one core).
_SMALL, _LARGE = (16, 64), (1024, 512)
# Number of timed runs of each model.
_RUNS = 100
# Values of `TwinCosts` with which planning chooses the device, and its twin.
_FREE = {"wake_ns": 1, "launch_ns": 1, "delay_ns": 1}
_DEAR = {"wake_ns": 1_000_000_000}
_MIN_NS = 100


def measure_twin_costs(device: DeviceInfo) -> Tuned | None:
    """Measures `TwinCosts` by runs of Softmax on a device and on its twin, in about 1.5 s.

    Args:
        device: The device; otherwise idle.

    Returns:
        Values of `TwinCosts` before and after, in nanoseconds, with the group's name in place of a
        kernel's; None if the device has no twin, or only one core, or if CLRT_TWINS decides where
        plans run.

    Raises:
        ClrtError: A run fails.
    """
    cores, is_chosen = device.caps.cores, env_vars.TWINS.get() == "auto"
    if device.caps.twin is None or cores < 2 or not is_chosen:
        return None
    one, launch_s = _run_and_launch_seconds(device, _SMALL)
    _, large_s = _run_and_launch_seconds(device, _LARGE)
    # The other cores join after a delay: shared_s = delay + (alone_s - delay) / cores.
    shared_s, alone_s = (total - s for total, s in zip(large_s, launch_s, strict=True))
    delay_s = (shared_s - alone_s / cores) / (1 - 1 / cores)
    found = {
        "wake_ns": one[0] - launch_s[0] - one[1] + launch_s[1],
        "launch_ns": launch_s[0] - launch_s[1],
        "delay_ns": min(delay_s, alone_s),
    }
    threads = device.caps.compute_units
    costs = device_thresholds(TwinCosts, device.caps).for_threads(threads)
    before = {name: int(getattr(costs, name)) for name in found}
    after = {name: max(_MIN_NS, round(seconds * 1e9)) for name, seconds in found.items()}
    number = {"threads": threads}
    return Tuned(TwinCosts.group, before | number, after | number, 1.0)


def _run_and_launch_seconds(
    device: DeviceInfo, shape: tuple[int, int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns median durations in seconds, each as (on a device, on its twin).

    Launches follow each other, as in a net: between long ones the device's threads fall asleep.

    Args:
        shape: Shape of the tensor.

    Returns:
        The durations of a run of one Softmax, and of each further Softmax of the run.
    """
    one, many = _seconds(device, shape, 1), _seconds(device, shape, _LAUNCHES)
    return one, tuple((m - o) / (_LAUNCHES - 1) for o, m in zip(one, many, strict=True))


def _seconds(device: DeviceInfo, shape: tuple[int, int], launches: int) -> tuple[float, float]:
    """Returns the median duration of a run in seconds: (on a device, on its twin).

    Args:
        shape: Shape of the tensor.
        launches: Number of launches of the run, each a Softmax.
    """
    with load(_chain(shape, launches), device=device) as model:
        device_s, twin_s = (_measure(model, costs) for costs in (_FREE, _DEAR))
    return device_s, twin_s


def _measure(model: Model, costs: Mapping[str, int]) -> float:
    """Returns the median duration in seconds of a model's runs, planned with given `TwinCosts`."""
    (spec,) = model.inputs
    assert spec.shape is not None
    shape = tuple(int(n) for n in spec.shape)
    bound = model.bind({spec.name: shape}, {TwinCosts.group: costs})
    feeds = {spec.name: bound.session.tensor_of(np.zeros(shape, np.float32), DType.FLOAT32)}
    found = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        Execution(bound, feeds, {"y": False}).run()
        found.append(time.perf_counter() - start)
    return median(found)


def _chain(shape: tuple[int, int], launches: int) -> Graph:
    build = Builder()
    x = value = build.input("x", DType.FLOAT32, shape)
    for _ in range(launches):
        value = build.add(Softmax(), value)
    return build.graph("chain", [x], [value], ["y"])
