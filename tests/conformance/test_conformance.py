"""ONNX's backend suite on every device; expected failures are listed in expected.toml."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clrt.runtime.opencl.devices import DeviceInfo
from tests.conformance.report import Results, write_report
from tests.conformance.suite import cases, run_case
from tests.harness import SWEEP, all_devices

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTED = Path(__file__).with_name("expected.toml")
REPORT = Path(__file__).parents[2] / "CONFORMANCE.md"
_FAILING: dict[str, dict[str, str]] = tomllib.loads(EXPECTED.read_text())

_RESULTS: dict[int, Results] = {}


@SWEEP
@pytest.mark.parametrize("name", cases())
def test_onnx_backend_case_has_expected_outcome(name: str, device: DeviceInfo) -> None:
    outcome = run_case(cases()[name], device)
    _RESULTS.setdefault(device.index, {})[name] = outcome
    entry = _FAILING.get(name, {})
    expected = entry.get(device.platform.split()[0].lower(), entry.get("reason"))
    if expected is None:
        assert outcome.passed, outcome.reason
    else:
        assert not outcome.passed, f"passes now: take it out of {EXPECTED.name} ({expected})"


def test_expected_failures_name_cases_and_reasons() -> None:
    assert not _FAILING.keys() - cases().keys()
    assert all(entry and all(entry.values()) for entry in _FAILING.values())


@SWEEP
def test_most_numeric_cases_run_on_device(device: DeviceInfo) -> None:
    """Runs after the cases; writes the report if all of them ran on the first device."""
    results = _RESULTS.get(device.index, {})
    if len(results) < len(cases()):
        pytest.skip("only some of the cases ran")
    reasons = {name: entry.get("reason", "") for name, entry in _FAILING.items()}
    path = REPORT if device is all_devices()[0] else None
    summary = write_report(results, reasons, path)
    assert summary.passed >= 1960
    assert summary.on_device >= 0.95 * summary.numeric
