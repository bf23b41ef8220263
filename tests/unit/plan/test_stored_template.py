"""Templates of CPUs and GPUs are the same after they were stored."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.kernels.spec import Launch
from clrt.kernels.tuning_records import record_for
from clrt.models.onnx.importer import import_model
from clrt.passes.device_pipeline import optimize_for
from clrt.plan.make_plan import make_plan
from clrt.plan.stored_template import Constant, StoredTemplate, TemplateWriter
from clrt.plan.template import PlanTemplate
from clrt.plan.trace_plan import trace_plan
from tests.models.onnx_text import parsed
from tests.plans import CPU
from tools.gpus.profiles import profiles

# Convolutions, attention, resampling: the kernels whose sizes are searched for.
NET = """g (float[n, 3, h, h] x) => (float[n, 64, s, 64] y, float[n, 64, v, u] z) {
           c0 = Conv <pads = [1, 1, 1, 1]> (x, w0)
           r0 = Relu (c0)
           c1 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (r0, w1)
           r1 = Relu (c1)
           z = Resize <mode = "linear"> (r1, , scales)
           flat = Reshape (r1, dims)
           q = MatMul (flat, w2)
           k = MatMul (flat, w3)
           kt = Transpose <perm = [0, 1, 3, 2]> (k)
           p = MatMul (q, kt)
           a = Softmax (p)
           y = MatMul (a, flat)
         }"""
DEVICES = [CPU, *(profile.caps for profile in profiles())]


def _net() -> Graph:
    proto = onnx.load_from_string(parsed(NET))
    noise = np.random.default_rng(1)
    shapes = {"w0": (64, 3, 3, 3), "w1": (64, 64, 3, 3), "w2": (64, 64), "w3": (64, 64)}
    arrays = {name: noise.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    arrays |= {"dims": np.array([0, 64, -1, 64]), "scales": np.array([1, 1, 2, 1.5], np.float32)}
    tensors = [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()]
    proto.graph.initializer.extend(tensors)
    return import_model(proto)


def _stored(template: PlanTemplate, graph: Graph) -> StoredTemplate:
    """Returns a template after it was stored and read."""
    constants: list[Constant] = []

    def index_of(constant: Constant) -> int:
        constants.append(constant)
        return len(constants) - 1

    record = TemplateWriter(template, index_of).record()
    text = json.dumps(record)
    return StoredTemplate(template.plan.device_io, lambda: json.loads(text), constants, graph)


def _facts(launch: Launch) -> tuple[Any, ...]:
    numbers = [(type(a), a) for a in launch.args if isinstance(a, np.generic)]
    return launch.kernel, launch.global_size, launch.local_size, numbers, launch.flops


@pytest.mark.parametrize("caps", DEVICES, ids=lambda caps: caps.name)
def test_stored_template_gives_same_launches(caps: DeviceCaps) -> None:
    graph = _net()
    optimize_for(graph, caps, 2)
    make = partial(make_plan, caps=caps, record=lambda kernel: record_for(kernel, caps))
    dims = [d for v in graph.inputs for d in v.shape or () if not isinstance(d, int)]
    names = {symbol for dim in dims for symbol in dim.symbols}
    small, large = ({name: size * (1 + (name == "h")) for name in names} for size in (64, 96))
    small["n"] = large["n"] = 2
    template = trace_plan(graph, small, {}, {}, make)
    assert template is not None
    again = _stored(template, graph)
    for sizes in (small, large):
        plans = [t.instantiate(sizes, caps.max_alloc_bytes) for t in (template, again)]
        assert all(plan is not None for plan in plans) or sizes is large
        if None not in plans:
            found = [[_facts(x) for s in p.steps for x in s.launches] for p in plans]  # type: ignore[union-attr]
            assert found[0] == found[1]
            assert plans[0].arena == plans[1].arena  # type: ignore[union-attr]
