"""Every op of the registry, called as a function on its samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from clrt.errors import ClrtError, UnsupportedError
from clrt.functional import calls
from clrt.functional.operators import DOMAINS, function_of, names_in
from clrt.ir.graph import Graph
from clrt.ir.op import IrOp, TensorType
from clrt.models.onnx.functions import schema_of
from clrt.models.onnx.op_schemas import OWN_DOMAIN, OpSchemaInfo, op_schemas
from clrt.models.onnx.read import normal_domain
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.decompositions.import_rules.microsoft.nchwc import NCHWC
from clrt.ops.decompositions.registry import imported_ops
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul
from clrt.ops.matmul.quantized_product import ROUNDED_BITS
from clrt.ops.reference_interpreter import evaluate
from clrt.runtime.opencl.devices import DeviceInfo
from tests.conformance import suite
from tests.harness import quick_device, tolerance
from tests.ops.onnx_cases import attribute
from tests.ops.onnx_cases import node_tests as onnx_tests
from tests.ops.samples import Sample, samples
from tests.ops.test_ops import check

CLASSES = sorted(REGISTRY.all_classes().values(), key=lambda c: (c.domain, c.name))
# Fields that tell an old form of an op.
OLD = frozenset({"per_group", "mask_like_x"})
MOST_SAMPLES = 3
CONTROL_FLOW = ("If", "Loop", "Scan")


class _Evaluated:
    """A model of the references, without a device."""

    def __init__(self, graph: Graph, device: int) -> None:
        self.graph = graph

    def run(self, feeds: Mapping[str, Any], device_outputs: bool) -> dict[str, Any]:
        return evaluate(self.graph, feeds)


def attributes_of(op: Op) -> dict[str, Any] | None:
    """Returns the attributes as a user passes them; None for a form that the newest opset lacks."""
    form = op_schemas()[op.domain, op.name]
    if op.domain == OWN_DOMAIN:
        return op.attributes
    lost = (
        op.attributes.keys() - form.attributes.keys() - (op.onnx_traits.non_attribute_fields - OLD)
    )
    if (lost and type(op).to_onnx is Op.to_onnx) or lost & OLD:
        return None
    try:
        given = op.to_onnx()
    except UnsupportedError:
        return None
    seeds = set() if type(op).is_random is Op.is_random else {"seed"}  # of these, samples have keys
    wanted = form.attributes.keys() - seeds
    return {k: v for k, v in given.items() if k in wanted and not _is_nothing(v)}


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, tuple) and not value)


def calls_of(cls: type[Op]) -> list[tuple[Sample, dict[str, Any]]]:
    """Returns the callable samples of an op, with their attributes."""
    found = []
    for sample in samples(cls):
        assert isinstance(sample.op, Op)
        # No seed gives the key of a sample.
        drawn = sample.op.is_random(
            [None if x is None else TensorType.of(x) for x in sample.inputs]
        )
        attributes = None if drawn else attributes_of(sample.op)
        if attributes is not None:
            found.append((sample, attributes))
    return found


def as_run(op: IrOp, device: DeviceInfo) -> IrOp:
    """Returns the op that a device runs instead of another: see QuantizeActivations."""
    if isinstance(op, QuantizedMatMul) and device.caps.int8_dot_isa:
        return replace(op, a_bits=ROUNDED_BITS)
    return op


def compare(sample: Sample, attributes: dict[str, Any], device: DeviceInfo) -> None:
    """Compares one call with the op's reference."""
    op = sample.op
    assert isinstance(op, Op)
    expected = op.run_reference(*sample.inputs)
    own = op.domain == OWN_DOMAIN
    found = function_of(op.domain, op.name)(
        *op.onnx_inputs(sample.inputs),  # type: ignore[arg-type]  (it only moves them)
        outputs=None if own else len(expected),
        device=device.index,
        **attributes,
    )
    results = found if isinstance(found, tuple) else (found,)
    for array, wanted in zip(results, expected, strict=True):
        if wanted.dtype.kind == "U":
            assert array.tolist() == wanted.tolist()
        else:
            check(f"{op} {attributes}", np.asarray(array), wanted, tolerance(op, wanted))


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes functions compute with the references, without a device."""
    calls.clear_cache()
    monkeypatch.setattr(calls, "load", _Evaluated)
    yield
    calls.clear_cache()


CALLED = [cls for cls in CLASSES if calls_of(cls)]


@pytest.mark.parametrize("cls", CALLED, ids=lambda c: f"{c.domain}.{c.name}")
def test_function_calls_match_references(cls: type[Op], on_host: None) -> None:
    """Checks the conversion of calls to graphs, without a device, for some samples of each op."""
    found = calls_of(cls)
    for sample, attributes in found[:: max(1, len(found) // MOST_SAMPLES)]:
        compare(sample, attributes, quick_device())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::clrt.errors.HostFallbackWarning")
@pytest.mark.parametrize("cls", CALLED, ids=lambda c: f"{c.domain}.{c.name}")
def test_function_calls_run_on_device(cls: type[Op]) -> None:
    for sample, attributes in calls_of(cls)[:MOST_SAMPLES]:
        run = replace(sample, op=as_run(sample.op, quick_device()))
        compare(run, attributes, quick_device())


def test_every_registry_op_is_a_function() -> None:
    """Every op with samples is called, except random ops; the others exist as functions."""
    listed = {(d, n) for d in ("", *DOMAINS.values()) for n in names_in(d)}
    assert set(REGISTRY.all_classes()) - listed == {("", n) for n in CONTROL_FLOW}
    assert imported_ops() - listed == {k for k in imported_ops() if k[0] == NCHWC}
    with_samples = {c for c in CLASSES if next(iter(samples(c)), None) is not None}
    assert with_samples - set(CALLED) <= {c for c in CLASSES if c.is_random is not Op.is_random}
    assert len(CALLED) > 150


@pytest.mark.slow
def test_onnx_node_tests_pass_by_function_calls(on_host: None) -> None:
    """ONNX's node tests of the newest version of each op, without a device."""
    run, wrong = 0, []
    for case in onnx_tests():
        node = case.model.graph.node[0]
        form = op_schemas().get((normal_domain(node.domain), node.op_type))
        if form is None or form.has_graphs or not _is_newest(case.model, form):
            continue
        run += 1
        try:
            _run_case(case, node, form)
        except (ClrtError, AssertionError) as error:
            wrong.append(f"{case.name}: {error}")
    assert run > 1200
    assert [
        w for w in wrong if not re.match("test_(bernoulli|training_dropout|dft_inverse)", w)
    ] == []


def _is_newest(model: onnx.ModelProto, form: OpSchemaInfo) -> bool:
    opset = next(o.version for o in model.opset_import if normal_domain(o.domain) == form.domain)
    if len(model.graph.node) > 1 or model.graph.initializer:
        return False
    schemas = [schema_of(form.domain, form.name, v) for v in (opset, form.opset)]
    return all(schemas) and schemas[0].since_version == schemas[1].since_version


def _run_case(case: Any, node: onnx.NodeProto, form: OpSchemaInfo) -> None:
    names = [info.name for info in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        feeds = dict(zip(names, map(suite._array, inputs), strict=True))
        found = function_of(form.domain, form.name)(
            *(feeds[n] if n else None for n in node.input),
            outputs=len(node.output),
            **{a.name: attribute(a) for a in node.attribute},
        )
        results = dict(
            zip(node.output, found if isinstance(found, tuple) else (found,), strict=True)
        )
        for info, wanted in zip(case.model.graph.output, outputs, strict=True):
            suite._compare(results[info.name], suite._array(wanted), info.name, case)
