"""Model text never reaches kernel source: every attribute of every op, set to hostile values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from clrt.device.caps import DeviceCaps
from clrt.errors import ClrtError
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import IrOp
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.plan.steps import DeviceStep
from tests.harness import all_devices, plan_graph, sample_graph
from tests.ops.samples import Sample, samples

CLASSES = sorted(
    (c for c in REGISTRY.all_classes().values() if fields(c) and c.variants),
    key=lambda c: c.__name__,
)
MARK = "planted_text"
CODE = f"1\n#undef IN\n{MARK}) {{ }}"
HOSTILE: tuple[Any, ...] = (
    *(CODE, CODE.encode(), f'"{MARK}', f"{MARK}\\", f"*/{MARK}", "", "\0", f"%{MARK}s{{0}}"),
    *(1 << 63, -(1 << 63), (1 << 63) - 1, 1 << 31, 10**400, -1, 0, 7),
    *(math.nan, math.inf, -math.inf, 1e300, -0.0, 1e-45),
    *((), (CODE,), ((1,),), (1 << 62,) * 4, (math.nan,), [CODE], {"a": 1}, None, True, object()),
    (0,) * 100,
)


def hostile_ops(op: IrOp) -> Iterator[IrOp]:
    """The op with each attribute set to each value that its field takes."""
    for field in fields(op):
        for value in HOSTILE:
            try:
                yield replace(op, **{field.name: value})
            except ClrtError as error:
                assert field.name in str(error)
                assert len(str(error)) < 300


def sources(op: Op, sample: Sample, caps: DeviceCaps) -> list[str]:
    """The kernels' sources for a sample under another op."""
    with NodeErrorContext(op.name):  # as the importer and planning do
        graph = sample_graph(Sample(op, sample.inputs))
    plan = plan_graph(graph, caps)
    steps = (s for s in plan.steps if isinstance(s, DeviceStep))
    return [x.kernel.text for s in steps for x in s.launches]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_attribute_text_never_reaches_kernel_source(cls: type[Op], kind: str) -> None:
    caps = replace(all_devices()[0].caps, kind=kind)
    sample = next(s for s in samples(cls) if all(a is None or a.size for a in s.inputs))
    for op in hostile_ops(sample.op):
        assert isinstance(op, Op)
        try:
            found = sources(op, sample, caps)
        except ClrtError:
            continue
        assert not any(MARK in text for text in found), op


def test_op_fields_refuse_untyped_values() -> None:
    """A field without a checked type would accept any value."""
    for cls in REGISTRY.all_classes().values():
        for field in fields(cls):
            good = next((s.op for s in samples(cls)), None) or (
                cls() if _has_defaults(cls) else None
            )
            if good is not None:
                with pytest.raises(ClrtError, match=f"'{field.name}' is object"):
                    replace(good, **{field.name: object()})


def _has_defaults(cls: type[Op]) -> bool:
    return not any(f.default is MISSING for f in fields(cls))
