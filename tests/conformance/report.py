"""CONFORMANCE.md report: passed cases per op and dtype, where they ran, and reasons of failures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import onnx
from onnx.backend.test.case.test_case import TestCase

from tests.conformance.suite import Outcome, cases, dtypes_of, is_numeric, model_of

Results: TypeAlias = "dict[str, Outcome]"

_HEAD = """\
# Conformance

Results of clrt on ONNX's backend suite (onnx {version}, {total} cases), on PoCL. Written by
`pytest tests/conformance`; `tests/conformance/expected.toml` has the cases that do not pass, with
their reasons.

- **{passed} of {total} cases pass.**
- Of the {numeric} that pass and are arithmetic on tensors (no text, no sequences), {on_device}
  ({share:.1%}) run every node on the device; the others run a node on the host, because the size of
  its output depends on the data, or because no kernel supports it.

"""


@dataclass(frozen=True)
class Summary:
    """Counts of a whole run.

    Attributes:
        numeric: Cases that pass and are arithmetic on tensors.
        on_device: Numeric cases that ran every node on the device.
    """

    passed: int
    numeric: int
    on_device: int


@dataclass
class _Row:
    passed: int = 0
    total: int = 0
    host: int = 0


def write_report(
    results: Mapping[str, Outcome], reasons: Mapping[str, str], path: Path | None
) -> Summary:
    """Counts the results of all cases, and writes the report if a path is given.

    Args:
        reasons: Why cases are expected not to pass.
    """
    protos = {name: model_of(cases()[name]) for name in results}
    passed = [name for name, outcome in results.items() if outcome.passed]
    numeric = [name for name in passed if is_numeric(protos[name])]
    on_device = [name for name in numeric if not results[name].host_nodes]
    summary = Summary(len(passed), len(numeric), len(on_device))
    if path is not None:
        head = _HEAD.format(
            version=onnx.__version__,
            total=len(results),
            passed=summary.passed,
            numeric=summary.numeric,
            on_device=summary.on_device,
            share=summary.on_device / max(summary.numeric, 1),
        )
        missing = _missing(results, reasons)
        path.write_text("\n".join([head + missing, *_tables(results, protos)]) + "\n")
    return summary


def _missing(results: Mapping[str, Outcome], reasons: Mapping[str, str]) -> str:
    lines = ["## What does not pass", "", "| case | reason |", "|---|---|"]
    failed = sorted((name, o) for name, o in results.items() if not o.passed)
    rows = [(name, reasons.get(name, o.reason)) for name, o in failed]
    lines += [f"| {name} | {_cell(reason)} |" for name, reason in rows]
    return "\n".join(lines) + "\n"


def _tables(results: Mapping[str, Outcome], protos: Mapping[str, onnx.ModelProto]) -> Iterable[str]:
    by_op: dict[str, _Row] = defaultdict(_Row)
    dtypes: dict[str, dict[str, _Row]] = defaultdict(lambda: defaultdict(_Row))
    by_dtype: dict[str, _Row] = defaultdict(_Row)
    for name, outcome in results.items():
        op = _op_of(cases()[name], protos)
        rows = [by_op[op]]
        for dtype in dtypes_of(protos[name]):
            rows += [dtypes[op][dtype], by_dtype[dtype]]
        for row in rows:
            row.total += 1
            row.passed += outcome.passed
            row.host += outcome.passed and bool(outcome.host_nodes)
    yield "## By dtype of the inputs and outputs\n"
    yield "| dtype | pass | cases | with nodes on the host |\n|---|--:|--:|--:|"
    for dtype, row in sorted(by_dtype.items()):
        yield f"| {dtype} | {row.passed} | {row.total} | {row.host or ''} |"
    yield "\n## By op\n"
    yield "| op | pass | cases | with nodes on the host | dtypes |\n|---|--:|--:|--:|---|"
    for op, row in sorted(by_op.items()):
        found = ", ".join(
            name if r.passed == r.total else f"{name} ({r.passed} of {r.total})"
            for name, r in sorted(dtypes[op].items())
        )
        yield f"| {op} | {row.passed} | {row.total} | {row.host or ''} | {found} |"


def _op_of(case: TestCase, protos: Mapping[str, onnx.ModelProto]) -> str:
    """Returns the op that a case tests; for an expanded function body, the function's op."""
    name = case.name.partition("_expanded")[0]
    nodes = protos.get(name, protos[case.name]).graph.node
    if case.kind != "node" or len(nodes) != 1:
        return f"({case.kind} of several ops)" if len(nodes) != 1 else nodes[0].op_type
    return str(nodes[0].op_type)


def _cell(text: str) -> str:
    short = text if len(text) < 200 else text[:197] + "..."
    return short.replace("|", "\\|").replace("\n", " ")
