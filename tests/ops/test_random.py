"""Random ops: generator, distributions, and seeding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.ir.op import Array
from clrt.ops.random.multinomial import Multinomial
from clrt.ops.random.philox import words
from clrt.ops.random.random_tensor import RandomNormal, RandomUniform
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import all_devices

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=lambda d: d.platform.split()[0])
X = np.full((40, 50), 0.25, np.float32)


def _run(
    device: DeviceInfo,
    op: str,
    feeds: dict[str, Array],
    outputs: int = 1,
    name: str = "n",
    **a: Any,
) -> list[Array]:
    made = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, list(feeds), made, name=name, **a)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for k, v in feeds.items()
    ]
    kinds = [TensorProto.FLOAT, TensorProto.BOOL]
    results = [helper.make_tensor_value_info(n, k, None) for n, k in zip(made, kinds, strict=False)]
    graph = helper.make_graph([node], "g", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    return [np.asarray(v) for v in clrt.load(model, device=device.index).run(feeds).values()]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ],
)
def test_philox_matches_random123_vectors(key: int, expected: list[int]) -> None:
    """Source: kat_vectors of Random123, philox4x32 10."""
    assert words(key, 4).tolist() == expected


def test_random_op_distributions_have_expected_moments() -> None:
    normal = RandomNormal(3, 2.0, 0.5, shape=(100_000,)).reference()[0].astype(np.float64)
    assert abs(normal.mean() - 2) < 0.01 and abs(normal.std() - 0.5) < 0.01
    assert abs(((normal - 2) ** 4).mean() / 0.5**4 - 3) < 0.1
    uniform = RandomUniform(3, -1.0, 3.0, shape=(100_000,)).reference()[0].astype(np.float64)
    assert abs(uniform.mean() - 1) < 0.02 and abs(uniform.std() - 4 / 12**0.5) < 0.02
    assert uniform.min() >= -1 and uniform.max() <= 3
    chances = np.array([[0.5, 0.3, 0.2]])
    drawn = Multinomial(3, 100_000).reference(np.log(chances).astype(np.float32))[0]
    np.testing.assert_allclose(np.bincount(drawn[0]) / drawn.size, chances[0], atol=0.01)


@DEVICES
def test_random_numbers_depend_on_seed_and_node_name(device: DeviceInfo) -> None:
    def draw(**kind: Any) -> Array:
        return _run(device, "RandomUniformLike", {"x": X}, **kind)[0]

    assert (draw() == draw()).all()
    assert (draw(seed=1.0) == draw(seed=1.0, name="other")).all()
    for other in (draw(name="other"), draw(seed=1.0), draw(seed=2.0)):
        assert 0.45 < (draw() < other).mean() < 0.55


@DEVICES
def test_bernoulli_mean_matches_probability(device: DeviceInfo) -> None:
    for kind in ({}, {"seed": 3.0}):
        drawn = _run(device, "Bernoulli", {"x": X}, **kind)[0]
        assert set(np.unique(drawn)) == {0, 1} and 0.2 < drawn.mean() < 0.3


@DEVICES
def test_dropout_drops_only_in_training_mode(device: DeviceInfo) -> None:
    feeds = {"x": X, "ratio": np.array(0.75, np.float32), "training": np.array(True)}
    y, mask = _run(device, "Dropout", feeds, 2)
    assert 0.2 < mask.mean() < 0.3
    np.testing.assert_array_equal(y, np.where(mask, X / 0.25, 0))
    y, mask = _run(device, "Dropout", {**feeds, "training": np.array(False)}, 2)
    assert mask.all() and (y == X).all()
