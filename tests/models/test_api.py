"""Public API around `Model.run`: threads, warm-up, host fallback, memory release and paths."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.errors import ModelError
from clrt.ir.op import Array
from tests.models.fixtures import load_family
from tests.models.oracle import check, session_of, text_feeds

NAMES = ["input_ids", "attention_mask"]


@pytest.fixture(scope="module")
def model() -> Iterator[clrt.Model]:
    with clrt.load(load_family("distilbert_dynamo20"), device="cpu", strict=True) as loaded:
        yield loaded


def test_concurrent_runs_return_independent_results(model: clrt.Model) -> None:
    feeds = [text_feeds(NAMES, 1 + i % 3, 5 + i, True, 200) for i in range(16)]
    alone = [model.run(f)["last_hidden_state"] for f in feeds]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda f: model.run(f)["last_hidden_state"], feeds * 3))
    for left, right in zip(alone * 3, together, strict=True):
        np.testing.assert_array_equal(left, right)


def test_older_plans_stay_correct_after_arena_growth() -> None:
    proto = load_family("distilbert_dynamo20")
    with clrt.load(proto, device="cpu", strict=True) as model:
        for shape in ((1, 4), (4, 64), (1, 4), (2, 30)):
            check(model, session_of(proto), text_feeds(NAMES, *shape, True, 200))


def test_warmup_plans_and_reports_progress(model: clrt.Model) -> None:
    seen: list[tuple[int, int]] = []
    shapes = [dict.fromkeys(NAMES, (1, s)) for s in (71, 72)]
    model.warmup(shapes, lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]
    with pytest.raises(clrt.InputError, match="Missing input"):
        model.warmup([{"input_ids": (1, 4)}])


def test_specs_have_symbolic_dims(model: clrt.Model) -> None:
    assert str(model.inputs[0]) == "input_ids: int64[batch, sequence]"
    assert model.outputs[0].shape == ("batch", "sequence", 32)


def test_shape_division_by_zero_is_refused() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Div", ["n", "eight"], ["frames"]),
        helper.make_node("Div", ["n", "frames"], ["step"]),
        helper.make_node("ConstantOfShape", ["step"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.array([8]), "eight")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with clrt.load(proto, device="cpu") as model:
        assert model.run(np.zeros(17, np.float32))["y"].shape == (8,)
        with pytest.raises(clrt.ShapeError, match=r"With n=4 .* divided by zero"):
            model.run(np.zeros(4, np.float32))


@pytest.mark.parametrize("dims", [[2, 1], []])
def test_wrong_declared_shapes_do_not_change_results(dims: list[int]) -> None:
    """Declared shapes that inference cannot check hold only until a run gives real shapes."""

    def info(name: str, shape: list[int] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [helper.make_node("Exp", ["x"], ["t"]), helper.make_node("Mul", ["t", "b"], ["y"])]
    inputs = [info("x", None), info("b", [2, 3])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", dims)], value_info=[info("t", dims)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    x, b = np.random.default_rng(0).standard_normal((2, 2, 3)).astype(np.float32)
    with clrt.load(proto, device="cpu") as model:
        found = model.run({"x": x, "b": b})["y"]
    np.testing.assert_allclose(found, np.exp(x) * b, rtol=1e-5)


def _without_kernel() -> onnx.ModelProto:
    """Returns a model whose op has a reference but no kernel for its dtype."""

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["b", 2, "s", 8])

    node = helper.make_node("LpNormalization", ["x"], ["y"], "block")
    relu = helper.make_node("Relu", ["y"], ["z"], "after")
    graph = helper.make_graph([node, relu], "g", [info("x")], [info("z")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


def _input() -> Array:
    return np.random.default_rng(0).standard_normal((1, 2, 5, 8))


def test_host_fallback_warns_once() -> None:
    with clrt.load(_without_kernel(), device="cpu", strict=False) as model:
        with pytest.warns(clrt.HostFallbackWarning, match=r"'block'.*no kernel") as told:
            first = model.run(_input())["z"]
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(model.run({"x": _input()})["z"], first)


def test_host_fallback_warning_of_plan_points_at_caller() -> None:
    with clrt.load(_without_kernel(), device="cpu", strict=False) as model:
        with pytest.warns(clrt.HostFallbackWarning) as told:
            model.plan({"x": _input().shape})
        assert told[0].filename == __file__


def test_strict_mode_refuses_host_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(clrt.UnsupportedError, match="LpNormalization 'block'"):
        clrt.load(_without_kernel(), device="cpu", strict=True).run(_input())
    monkeypatch.setenv("CLRT_STRICT", "1")
    with pytest.raises(clrt.UnsupportedError, match="strict=False"):
        clrt.load(_without_kernel(), device="cpu").run(_input())


def test_close_frees_device_memory() -> None:
    model = clrt.load(load_family("distilbert_dynamo20"), device="cpu", strict=True)
    session = model._session
    before = session.allocated_bytes
    model.run(text_feeds(NAMES, 2, 16, False, 200))
    assert session.allocated_bytes > before
    model.close()
    assert session.allocated_bytes <= before


def test_unreferenced_model_is_freed_without_gc() -> None:
    model = clrt.load(load_family("distilbert_dynamo20"), device="cpu")
    model.run(text_feeds(NAMES, 2, 16, False, 200))
    gone = weakref.ref(model._runner)
    gc.disable()
    try:
        del model
        assert gone() is None, "it waits for the garbage collector"
    finally:
        gc.enable()


def test_tilde_in_paths_expands_to_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    node = helper.make_node("Tanh", ["x"], ["y"])
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in "xy"]
    onnx.save(
        helper.make_model(helper.make_graph([node], "g", infos[:1], infos[1:])), tmp_path / "m"
    )
    with clrt.load("~/m", device="cpu", cache_dir="~/programs") as model:
        model.run({"x": np.zeros(3, np.float32)})
        model.save_programs()
    assert list((tmp_path / "programs").iterdir())
    with pytest.raises(ModelError, match=str(tmp_path / "none")):
        clrt.load(Path("~/none"))
