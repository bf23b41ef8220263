"""InferenceSession against ONNX Runtime: loading, inputs, outputs, options and errors."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import clrt
import clrt.onnxruntime as ort
from clrt.onnxruntime import providers
from clrt.onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NotImplemented
from tests.models.onnx_text import normal, parsed
from tests.onnxruntime.side_by_side import CPU, agree, same, session

TWO = """
    g (float[n, 3] x, int64[k] y) => (float[n, 3] z, int64[k] w) { z = Add(x, x)  w = Mul(y, y) }
"""
MIXED = """
    g (string[n] s, float16[n] h, bool[n] b, seq(float[m]) q, optional(float[m]) o)
    => (string[n] s2, float16[n] h2, bool[n] b2, seq(float[m]) q2, optional(float[m]) o2)
    { s2 = Identity(s)  h2 = Add(h, h)  b2 = Not(b)  q2 = Identity(q)  o2 = Identity(o) }
"""
WITH_DEFAULT = "g (float[2] x, float[2] b) => (float[2] y) <float[2] b = {1, 2}> { y = Add(x, b) }"
TWO_NAMES = "g (float[n] x, float[n] y) => (float[n] z) { z = Add(x, y) }"
LOOKUP = "g (float[a, b] x, int64[c] i) => (float[c, b] y) { y = Gather(x, i) }"
PRODUCT = "g (float[a, b] x, float[c, d] y) => (float[a, d] z) { z = MatMul(x, y) }"
X, Y = np.float32([[1, 2, 3], [4, 5, 6]]), np.arange(4)
FEED: dict[str, Any] = {"x": X, "y": Y}
FEEDS: list[Any] = [
    {},
    {"x": X},
    {"q": X},
    {**FEED, "q": X},
    {**FEED, "x": X.astype(np.float64)},
    {**FEED, "x": X.astype(np.float16)},
    {**FEED, "y": Y.astype(np.int32)},
    {**FEED, "y": np.array([True])},
    {**FEED, "y": np.array([1, 2], object)},
    {**FEED, "y": np.array(["1"])},
    {**FEED, "x": X[0]},
    {**FEED, "x": X[None]},
    {**FEED, "x": X[:, :2]},
    {**FEED, "x": X[:0]},
    {**FEED, "x": np.asfortranarray(X)},
    {**FEED, "x": X.tolist()},
    {**FEED, "x": [X[0], X[1]]},
    {**FEED, "y": [1.5, 2.5]},
    {**FEED, "y": ["a"]},
    {**FEED, "y": []},
    {**FEED, "y": (1, 2)},
    {**FEED, "y": 3},
    {**FEED, "y": np.int64(3)},
    {**FEED, "y": None},
    {**FEED, "y": "text"},
]


@pytest.mark.parametrize("names", [None, [], ["w", "z"], ["w"], ("z",), ["w", "w"], ["q"], "w"])
def test_session_outputs_by_name_match_onnxruntime(names: Any) -> None:
    agree(lambda runtime: session(runtime, TWO).run(names, FEED))


def test_session_input_checks_match_onnxruntime() -> None:
    runs = {runtime: session(runtime, TWO) for runtime in (ort, onnxruntime)}
    for feed in FEEDS:
        agree(lambda runtime, feed=feed: runs[runtime].run(None, feed))


def test_session_string_sequence_and_optional_inputs_match_onnxruntime() -> None:
    half, truth = np.float16([1, 2]), np.array([True, False])
    items = [normal(1, 2), normal(2, 3)]
    base = {"h": half, "b": truth, "q": items}
    runs = {runtime: session(runtime, MIXED) for runtime in (ort, onnxruntime)}
    for texts in (np.array(["a", "ä"]), np.array(["a", b"b"], object), ["a", "b"], [1, 2.5], [[]]):
        for optional in (normal(3, 2), None):
            feed = {**base, "s": texts, "o": optional}
            agree(lambda runtime, feed=feed: runs[runtime].run(None, feed))
    agree(lambda runtime: runs[runtime].run(None, {**base, "s": ["a", "b"]}))
    with pytest.raises(InvalidArgument, match="data type"):
        runs[ort].run(["q2"], {**base, "s": ["a"], "q": [X.astype(int)]})
    agree(lambda runtime: [str(a) for a in runs[runtime].get_inputs()])
    agree(lambda runtime: [(a.name, a.type, a.shape) for a in runs[runtime].get_outputs()])


def test_session_map_outputs_match_onnxruntime() -> None:
    maker = onnx.helper
    node = maker.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]
    )
    element = maker.make_map_type_proto(
        onnx.TensorProto.STRING, maker.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    graph = maker.make_graph(
        [node],
        "g",
        [maker.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])],
        [maker.make_value_info("y", maker.make_sequence_type_proto(element))],
    )
    opsets = [maker.make_opsetid("ai.onnx.ml", 1), maker.make_opsetid("", 17)]
    model = maker.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()

    def run(runtime: Any) -> Any:
        made = runtime.InferenceSession(model, providers=CPU)
        return made.run(None, {"x": X[:, :2]}), made.get_outputs()[0].type

    agree(run)


def test_session_metadata_and_shapes_match_onnxruntime() -> None:
    model = onnx.load_from_string(parsed(TWO))
    model.producer_name, model.domain, model.model_version = "me", "here", 7
    model.doc_string, model.graph.doc_string = "a model", "a graph"
    onnx.helper.set_model_props(model, {"names": "{0: 'cat'}", "stride": "32"})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch-size"
    model.graph.output[0].type.tensor_type.ClearField("shape")
    content = model.SerializeToString()

    def told(runtime: Any) -> Any:
        made = runtime.InferenceSession(content, providers=CPU)
        meta = made.get_modelmeta()
        fields = ("producer_name", "domain", "version", "description", "graph_name")
        shapes = [a.shape for a in (*made.get_inputs(), *made.get_outputs())]
        texts = [getattr(meta, f) for f in (*fields, "graph_description", "custom_metadata_map")]
        return texts, shapes, made.get_providers(), made.get_provider_options()

    agree(told)


def test_session_invalid_model_errors_match_onnxruntime(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is no model")
    (tmp_path / "empty.onnx").touch()
    for name in ("missing.onnx", "text.onnx", "empty.onnx"):
        agree(lambda runtime, name=name: runtime.InferenceSession(tmp_path / name, providers=CPU))
    for content in (b"", b"no model", 3, None, bytearray(parsed(TWO))):
        agree(lambda runtime, c=content: runtime.InferenceSession(c, providers=CPU))
    agree(lambda runtime: session(runtime, TWO, opset=99))
    (tmp_path / "model.onnx").write_bytes(parsed(TWO))
    agree(lambda r: r.InferenceSession(str(tmp_path / "model.onnx"), providers=CPU).run(None, FEED))
    (tmp_path / "own.ort").write_bytes(b"\x1c\0\0\0ORTM" + bytes(64))
    with pytest.raises(NotImplemented, match="own format"):
        ort.InferenceSession(tmp_path / "own.ort")
    with pytest.raises(NotImplemented, match="Unheard"):
        session(ort, "g (float[n] x) => (float[n] y) { y = Unheard(x) }")


def test_session_overridable_initializers_match_onnxruntime() -> None:
    def given(runtime: Any, *feeds: Any, ir_version: int = 8) -> Any:
        made = session(runtime, WITH_DEFAULT, ir_version=ir_version)
        names = [a.name for a in made.get_inputs()]
        others = [(a.name, a.type, a.shape) for a in made.get_overridable_initializers()]
        return names, others, [made.run(None, feed) for feed in feeds]

    x, b = normal(1, 2), normal(2, 2)
    agree(lambda runtime: given(runtime, {"x": x}, {"x": x, "b": b}, {"x": x}))
    agree(lambda runtime: given(runtime, {"x": x, "b": normal(3, 3)}))
    agree(lambda runtime: given(runtime, {"x": x, "b": b.astype(np.float64)}))
    agree(lambda runtime: given(runtime, {"b": b}))
    agree(lambda runtime: given(runtime, {"x": x}, ir_version=3))
    agree(lambda runtime: given(runtime, {"x": x, "b": b}, ir_version=3))


def test_session_inputs_with_same_dim_name_may_differ() -> None:
    runs = {runtime: session(runtime, TWO_NAMES) for runtime in (ort, onnxruntime)}
    for sizes in ((3, 3), (3, 1), (1, 4), (2, 2), (3, 2)):
        feed = {name: normal(n, n) for name, n in zip("xy", sizes, strict=True)}
        agree(lambda runtime, feed=feed: runs[runtime].run(None, feed))


def test_session_run_errors_match_onnxruntime() -> None:
    agree(lambda r: session(r, LOOKUP).run(None, {"x": X, "i": np.array([0, 5])}))
    agree(lambda r: session(r, PRODUCT).run(None, {"x": X, "y": X}))


def test_session_options_that_change_model_match_onnxruntime(tmp_path: Path) -> None:
    def options(runtime: Any, **settings: Any) -> Any:
        made = runtime.SessionOptions()
        for name, value in settings.items():
            setattr(made, name, value)
        return made

    def overridden(runtime: Any, rows: int) -> Any:
        made = options(runtime)
        made.add_free_dimension_override_by_name("n", 2)
        ran = session(runtime, TWO, made)
        shapes = [a.shape for a in (*ran.get_inputs(), *ran.get_outputs())]
        return shapes, ran.run(None, {**FEED, "x": X[:rows]})

    agree(lambda runtime: overridden(runtime, 2))
    agree(lambda runtime: overridden(runtime, 1))

    def replaced(runtime: Any, value: Any, name: str = "b") -> Any:
        made = options(runtime)
        held = runtime.OrtValue.ortvalue_from_numpy(value)  # theirs crashes unless it is kept
        made.add_initializer(name, held)
        text = WITH_DEFAULT.replace(", float[2] b)", ")")
        return session(runtime, text, made).run(None, {"x": X[0, :2]})

    agree(lambda runtime: replaced(runtime, normal(1, 2)))
    with pytest.raises(InvalidArgument, match="is tensor\\(float\\)"):
        replaced(ort, normal(1, 3))
    with pytest.raises(InvalidArgument, match="no initializer 'c'"):
        replaced(ort, normal(1, 2), "c")
    saved = tmp_path / "saved.onnx"
    session(ort, PRODUCT, options(ort, optimized_model_filepath=str(saved)))
    theirs = onnxruntime.InferenceSession(saved, providers=CPU)
    same(theirs.run(None, {"x": X, "y": X.T.copy()}), [X @ X.T])
    cancelled = options(ort)
    cancelled.set_load_cancellation_flag(True)
    with pytest.raises(clrt.CancelledError, match="MODEL_LOAD_CANCELED"):
        session(ort, TWO, cancelled)
    plain = options(ort, graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    same(session(ort, TWO, plain).run(None, FEED), [2 * X, Y * Y])


def test_intra_op_num_threads_limits_compute_units() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    made = session(ort, PRODUCT, options)
    assert made._loaded.model.device.caps.compute_units == 1
    x, y = normal(1, 70, 80), normal(2, 80, 90)
    np.testing.assert_allclose(made.run(None, {"x": x, "y": y})[0], x @ y, 1e-4, 1e-4)


def test_session_profiling_writes_trace_events(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    made = session(ort, TWO, options)
    for _ in range(3):
        made.run(None, FEED)
    name = made.end_profiling()
    events = json.loads(Path(name).read_text("utf-8"))
    assert name.startswith(str(tmp_path / "profile_")) and made.end_profiling() == ""
    runs = [e for e in events if e["name"] == "model_run"]
    assert len(runs) == 3 and runs[0]["args"]["shapes"] == {"x": [2, 3], "y": [4]}
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(events))
    assert session(ort, TWO).end_profiling() == ""


def test_session_providers_select_device() -> None:
    available = ort.get_available_providers()
    assert available[0] == "ClrtExecutionProvider" and available[-1] == CPU[0]
    assert set(available) <= set(ort.get_all_providers())
    has_gpu = ort.get_device() == "GPU"
    assert has_gpu == ("CUDAExecutionProvider" in available)
    made = ort.InferenceSession(parsed(TWO))
    assert made.get_providers() == ["ClrtExecutionProvider", CPU[0]]
    first = next(d.index for d in clrt.devices() if d.usable)
    made.set_providers([("ClrtExecutionProvider", {"device": first})])
    assert made._loaded.model.device.index == first
    assert made.get_provider_options()["ClrtExecutionProvider"] == {"device": str(first)}
    same(made.run(None, FEED), [2 * X, Y * Y])
    with pytest.raises(clrt.DeviceError, match="EP_FAIL"):
        ort.InferenceSession(parsed(TWO), providers=[("ClrtExecutionProvider", {"device": "none"})])


@pytest.mark.parametrize(
    "providers", [["FooExecutionProvider"], ["QNNExecutionProvider", *CPU], CPU[0], [3], [("a",)]]
)
def test_unavailable_providers_warn_and_fall_back_to_cpu(providers: Any) -> None:
    with pytest.warns(UserWarning, match="provider"):
        made = ort.InferenceSession(parsed(TWO), providers=providers)
    assert made.get_providers() == CPU


def test_gpu_provider_names_select_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU device stands in for a GPU and runs GPU kernels."""
    own = clrt.devices()
    cpu = next(d for d in own if d.is_default)
    caps = replace(cpu.caps, kind="gpu", compute_units=cpu.caps.compute_units + 1)
    monkeypatch.setattr(providers, "devices", lambda: [*own, replace(cpu, caps=caps)])
    assert ort.get_device() == "GPU"
    assert {"CUDAExecutionProvider", "DmlExecutionProvider"} < set(ort.get_available_providers())
    for name in ("CUDAExecutionProvider", "DmlExecutionProvider"):
        made = ort.InferenceSession(parsed(TWO), providers=[(name, {"device_id": 0}), *CPU])
        assert made.get_providers() == [name, *CPU]
        assert made._loaded.model.device.kind == "gpu"
        same(made.run(None, FEED), [2 * X, Y * Y])
        with pytest.raises(clrt.DeviceError, match="no GPU 1"):
            ort.InferenceSession(parsed(TWO), providers=[(name, {"device_id": "1"})])
    value = ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0)
    assert (value.device_name(), value.data_type()) == ("cuda", "tensor(float)")
    same(made.run(["z"], {"x": value, "y": Y}), [2 * X])
    on_cpu = ort.InferenceSession(parsed(TWO), providers=CPU)
    same(on_cpu.run(["z"], {"x": value, "y": Y}), [2 * X])


def test_terminate_flag_stops_running_session() -> None:
    """Another thread terminates a run of at least 0.3 s, a quarter of the way through."""
    body = " ".join(f"a{i + 1} = MatMul(a{i}, w)" for i in range(64))
    text = f"g (float[n, n] a0, float[n, n] w) => (float[n, n] a64) {{ {body} }}"
    made = session(ort, text)
    size, whole_s = 256, 0.0
    while whole_s < 0.3:
        size = size * 3 // 2
        # Products keep their size: Intel's CPUs take twenty times as long for subnormal numbers.
        feed = {"a0": normal(1, size, size), "w": normal(2, size, size) / np.float32(size**0.5)}
        made.run(None, feed)
        start = time.perf_counter()
        expected = made.run(None, feed)
        whole_s = time.perf_counter() - start
    options = ort.RunOptions()
    timer = threading.Timer(whole_s / 4, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(Fail, match="terminate flag"):
        made.run(None, feed, options)
    with pytest.raises(Fail, match="terminate flag"):
        made.run(None, feed, options)
    options.terminate = False
    same(made.run(None, feed, options), expected)
    with pytest.raises(TypeError, match="RunOptions"):
        made.run(None, feed, "options")


def test_run_async_matches_onnxruntime() -> None:
    def run(runtime: Any, feed: Any, names: Any = None) -> Any:
        done, found = threading.Event(), []

        def callback(results: Any, data: Any, error: str) -> None:
            found.append((results, data, bool(error)))
            done.set()

        options = runtime.SessionOptions()
        options.intra_op_num_threads = 2  # with one ONNX Runtime refuses
        session(runtime, TWO, options).run_async(names, feed, callback, "data")
        assert done.wait(30)
        return found

    agree(lambda runtime: run(runtime, FEED))
    agree(lambda runtime: run(runtime, {**FEED, "x": X.astype(np.float64)}))
    agree(lambda runtime: run(runtime, FEED, ["q"]))
    agree(lambda runtime: run(runtime, {"x": X}))
