"""ONNX Runtime's classes, enumerations, exceptions and functions exist with equal values."""

from __future__ import annotations

import logging
from typing import Any

import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as theirs

import clrt
import clrt.onnxruntime as ort
from clrt.onnxruntime.capi import onnxruntime_pybind11_state as state

ENUMS = ["ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "OrtAllocatorType"]
CLASSES = [
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtDevice",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
]


def _public(made: Any) -> set[str]:
    return {name for name in dir(made) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_all_onnxruntime_attributes(name: str) -> None:
    assert _public(getattr(onnxruntime, name)) <= _public(getattr(ort, name))


@pytest.mark.parametrize(
    "name", [*ENUMS, "OrtMemType", "OrtHardwareDeviceType", "OrtExecutionProviderDevicePolicy"]
)
def test_enumerations_match_onnxruntime_values(name: str) -> None:
    theirs_by_name = getattr(onnxruntime, name).__members__
    ours_by_name = getattr(ort, name).__members__
    assert {n: int(v) for n, v in theirs_by_name.items()} == dict(ours_by_name)


def test_module_has_all_but_listed_onnxruntime_functions() -> None:
    used = {"capi", "InferenceSession", "get_available_providers", "set_default_logger_severity"}
    assert used <= _public(onnxruntime) & _public(ort)
    missing = _public(onnxruntime) - _public(ort)
    functions = {n for n in missing if callable(getattr(onnxruntime, n)) and n.islower()}
    assert functions == {
        "copy_tensors",
        "create_and_register_allocator_v2",
        "print_debug_info",
        "set_default_logger_callback",
    }
    with pytest.raises(AttributeError, match="no LoraAdapter"):
        _ = ort.LoraAdapter


def test_exceptions_match_onnxruntime_names_and_text() -> None:
    raised = {n for n in _public(theirs) if _is_exception(getattr(theirs, n))}
    assert {"Fail", "InvalidArgument", "NoSuchFile", "NotImplemented"} <= raised
    for name in raised:
        own = getattr(state, name)
        assert issubclass(own, clrt.ClrtError) and own.__name__ == name
        assert str(own("why")).startswith("[ONNXRuntimeError] : ")
        assert str(own("why")).endswith(" : why")


def _is_exception(made: Any) -> bool:
    return isinstance(made, type) and issubclass(made, Exception)


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_options_match_onnxruntime_defaults(name: str) -> None:
    ours, others = getattr(ort, name)(), getattr(onnxruntime, name)()
    for setting in _public(others):
        value = getattr(others, setting)
        if not callable(value):
            is_enum = hasattr(value, "value")
            assert getattr(ours, setting) == (int(value) if is_enum else value)
            setattr(ours, setting, getattr(ours, setting))
    with pytest.raises(AttributeError, match="no attribute 'fast'"):
        ours.fast = True
    with pytest.raises(TypeError, match="log_severity_level"):
        ours.log_severity_level = "loud"


def test_session_options_can_be_subclassed() -> None:
    class Options(ort.SessionOptions):
        pass

    options = Options()
    options.intra_op_num_threads = 2
    assert options.changed() == {"intra_op_num_threads": 2}
    assert ort.SessionOptions().changed() == {}


def test_ignored_session_options_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_mem_pattern = False
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.use_env_allocators", "1")
    with caplog.at_level(logging.DEBUG, "clrt.onnxruntime"):
        options.log_ignored()
    logged = caplog.text
    for name in ("execution_mode", "enable_mem_pattern", "session.use_env_allocators"):
        assert name in logged
    assert "intra_op" not in logged


def test_default_logger_severity_sets_log_level() -> None:
    log = logging.getLogger("clrt.onnxruntime")
    before = log.level
    try:
        ort.set_default_logger_severity(3)
        assert log.level == logging.ERROR
        with pytest.raises(RuntimeError, match="severity"):
            ort.set_default_logger_severity(9)
    finally:
        log.setLevel(before)


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(state.NotImplemented, match="sparse"):
        ort.SparseTensor.sparse_coo_from_numpy([2], [1.0], [0], ort.OrtDevice.make("cpu", 0))
