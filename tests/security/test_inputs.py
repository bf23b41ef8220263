"""Every op with each input omitted, or of another dtype: refused by type inference."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from clrt.errors import ClrtError, KernelBuildError, PassError, PlanError
from clrt.ir.node_errors import NodeErrorContext
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.ml.decision_trees import DecisionTrees
from clrt.plan.steps import DeviceStep
from tests.harness import plan_graph, quick_device, sample_graph, session_for
from tests.ops.samples import Sample, samples

CLASSES = sorted((c for c in REGISTRY.all_classes().values()), key=lambda c: c.__name__)
DTYPES: tuple[Any, ...] = (
    *(np.bool_, np.uint8, np.int32, np.int64, np.float16, np.float32, np.float64, "U4"),
)
_BUGS = (PassError, PlanError, KernelBuildError)


def hostile_inputs(sample: Sample) -> list[Sample]:
    """The sample with each of its inputs replaced."""
    found = []
    for index, array in enumerate(sample.inputs):
        if isinstance(array, np.ndarray):
            others = [np.zeros(array.shape, d) for d in DTYPES if np.dtype(d) != array.dtype]
            for other in (None, *others):
                inputs = [other if i == index else a for i, a in enumerate(sample.inputs)]
                found.append(replace(sample, inputs=tuple(inputs)))
    return found


@pytest.mark.slow  # it compiles 700 kernels
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # zeros where numbers were
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_hostile_input_dtype_never_breaks_kernel_build(cls: type[Op]) -> None:
    """Inputs that pass type inference cause no internal error in reference, plan or compiler."""
    device = quick_device()
    caps, programs = device.caps, session_for(device).programs
    for sample in islice(samples(cls), 3):
        if any(a is not None and not np.size(a) for a in sample.inputs):
            continue
        for hostile in hostile_inputs(sample):
            op = hostile.op
            assert isinstance(op, Op)
            try:
                with NodeErrorContext(op.name):  # as the importer and planning do
                    graph = sample_graph(hostile)
                    if cls is not DecisionTrees:  # follows its tables, which are checked before
                        op.run_reference(*hostile.inputs)
            except (ClrtError, NotImplementedError) as error:
                assert not isinstance(error, _BUGS)
                continue
            try:
                plan = plan_graph(graph, caps)
            except PlanError as error:  # to be driven by the host, which plan_graph cannot
                assert "depends on computed data" in str(error)
            except ClrtError as error:
                assert not isinstance(error, _BUGS)
            else:
                steps = (s for s in plan.steps if isinstance(s, DeviceStep))
                for launch in (x for s in steps for x in s.launches):
                    programs._program(launch.kernel)  # raises KernelBuildError
