"""Runs the cases of the self-test on a device and compares the results with NumPy's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import numpy as np

from clrt.errors import ClrtError, KernelBuildError, NumberError
from clrt.ir.builder import Builder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.kernels.tuning_records import record_for
from clrt.ops.base import Accuracy
from clrt.plan.make_plan import make_plan
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.weight_store import WeightStore
from clrt.runtime.selftest.cases import Case, cases
from clrt.util.accuracy import max_difference
from clrt.util.fast_dataclass import dataclass

# Allowed error as a multiple of the tests' tolerance, since drivers round differently and wrong
# results are off by far more; and maximum relative error whatever the dtype.
_SLACK, _MAX_ERROR = 16, 0.02
# Error recorded for NaN and infinite results, which JSON cannot represent.
_NOT_FINITE = 1e30


@dataclass(frozen=True)
class Outcome:
    """Result of a self-test case: the error of its kernels on a device against NumPy.

    Attributes:
        family: Kernel family of the case.
        kernels: Entry points of the kernels that the case launches.
        error: Largest absolute difference, divided by the largest expected absolute value; 0 if
            the case did not run.
        limit: Maximum `error` allowed.
        note: Why the case did not run or failed; "" if it ran to its end.
        lasting: Whether the outcome can be cached; False if the driver failed.
    """

    family: str
    kernels: tuple[str, ...]
    error: float
    limit: float
    note: str = ""
    lasting: bool = True

    @property
    def is_wrong(self) -> bool:
        """Whether the case found wrong results: `error` exceeds `limit`."""
        return self.error > self.limit

    def __str__(self) -> str:
        kernels = f"{self.family} ({', '.join(self.kernels)})"
        if self.error >= _NOT_FINITE:
            return f"{kernels}: no numbers, or others than could be"
        return (
            f"{kernels}: off by {self.error:.2g} of the largest element, where {self.limit:.2g} is "
            "allowed"
        )


def check_device(
    session: DeviceSession, given: Iterable[Case] | None = None
) -> tuple[Outcome, ...]:
    """Runs self-test cases on a device and returns the outcome of each, in order.

    Args:
        given: Cases to run; None for all of the self-test.
    """
    return tuple(_outcome(case, session) for case in (cases() if given is None else given))


def graph_of(case: Case) -> Graph:
    """Builds a graph with the op of a self-test case as its only node.

    The case's weights, and inputs whose elements planning needs, are constants. The other inputs
    are named x0, x1, … by their index in the op, and the outputs y0, y1, ….
    """
    build = Builder()
    known = {*case.weights, *case.op.input_traits.plan_time}
    values = [
        None
        if array is None
        else build.constant(array)
        if index in known
        else build.input(f"x{index}", DType.of(array.dtype), array.shape)
        for index, array in enumerate(case.inputs)
    ]
    outputs = build.add_all(case.op, *values)
    inputs = [v for v in values if v is not None and not v.is_constant]
    return build.graph("self-test", inputs, outputs, [f"y{i}" for i in range(len(outputs))])


def _outcome(case: Case, session: DeviceSession) -> Outcome:
    """Runs a case on the device and compares its outputs with the reference."""
    expected = case.op.reference(*case.inputs)
    limit = _limit(case, expected)
    caps = session.device.caps
    plan = make_plan(specialise(graph_of(case), {}), caps, partial(record_for, caps=caps))
    kernels = tuple(dict.fromkeys(x.kernel.entry for x in launches_of(plan.steps)))
    outcome = Outcome(case.family, kernels, 0.0, limit)
    if plan.host_steps:
        return replace(outcome, note=f"on the host: {plan.host_steps[0].reason}")
    try:
        outputs = _run(replace(plan, precompiled_kernels=()), case, session)
    except NumberError as error:  # wrong, since all indices of the case are in range
        return replace(outcome, error=_NOT_FINITE, note=str(error))
    except KernelBuildError as error:
        return replace(outcome, note=str(error))
    except ClrtError as error:
        return replace(outcome, note=str(error), lasting=False)
    pairs = zip(outputs, expected, strict=True)
    worst = max((max_difference(a, b)[1] for a, b in pairs), default=0.0)
    return replace(outcome, error=min(worst, _NOT_FINITE))


def _limit(case: Case, expected: tuple[Array, ...]) -> float:
    """Returns the maximum relative error allowed for a self-test case.

    0 for integer results and for ops whose accuracy class is exact.

    Args:
        expected: Outputs of the op's NumPy reference.
    """
    dtypes = [a.dtype for a in expected if a.dtype.kind == "f"]
    if not dtypes or case.op.accuracy is Accuracy.EXACT:
        return 0.0
    epsilon = max(float(np.finfo(d).eps) for d in dtypes)
    return min(float(_SLACK * case.op.accuracy.value * epsilon), _MAX_ERROR)


def _run(plan: Plan, case: Case, session: DeviceSession) -> list[Array]:
    """Runs a plan on the inputs of a self-test case and returns its outputs in order.

    Raises:
        NumberError: A kernel reports an index or length out of range.
        KernelBuildError: A program does not compile.
        ClrtError: The driver fails.
    """
    constants = frozenset(plan.graph.constants())
    lane = session.connection.lane
    bound = BoundPlan(plan, session, WeightStore(session), ArenaMemory(session), constants, lane)
    names = {v.name for v in plan.graph.inputs}
    feeds = {f"x{i}": np.ascontiguousarray(a) for i, a in enumerate(case.inputs) if a is not None}
    feeds = {name: array for name, array in feeds.items() if name in names}
    results = Execution(bound, feeds, dict.fromkeys(plan.graph.output_names, False)).run()
    return [np.asarray(results[name]) for name in plan.graph.output_names]
