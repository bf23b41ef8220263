"""Gradient rules of every op against finite differences of the references, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.errors import ShapeError, UnsupportedError
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.decompositions.registry import DecompositionStage, of_class
from clrt.ops.gradients.transform import add_gradients
from clrt.ops.matmul.einsum import Einsum
from clrt.ops.op_builder import OpBuilder
from clrt.ops.reference_interpreter import evaluate
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP
from tests.ops.samples import Sample, samples

RULES = sorted(
    (
        c
        for c in REGISTRY.all_classes().values()
        if c.domain != "clrt"
        and not c.host_traits.host_driven
        and (c.has_gradient() or c is Einsum or of_class(c, DecompositionStage.GRADIENT))
    ),
    key=lambda c: (c.domain, c.name),
)
# Limits that keep a test below a second: elements of a sample, and samples with a result.
_MAX_ELEMS, _MAX_SAMPLES = 1500, 8
# Inputs that are parameters, not arguments, of a function.
_PARAMETERS = {"Dropout": 1}
# Ops that need numbers among the dims that the test makes symbols.
_STATIC = {"Attention", "Conv", "ConvTranspose"}
# Ops whose results are not floating point, or whose derivative is 0 almost everywhere.
_FLAT = {
    "Sign", "Floor", "Ceil", "Round", "BitCast", "Hardmax",
    "EyeLike", "RandomNormalLike", "RandomUniformLike",
}  # fmt: skip


def _float64_samples(cls: type[Op]) -> Iterator[Sample]:
    """Yields the small samples of an op with float32 or float64 inputs, as float64."""
    for sample in samples(cls):
        floats = [a for a in sample.inputs if a is not None and a.dtype.kind == "f"]
        if not floats or any(a.dtype.itemsize < 4 for a in floats):
            continue
        if sum(a.size for a in sample.inputs if a is not None) > _MAX_ELEMS:
            continue
        wide = {
            f.name: DType.FLOAT64
            for f in fields(sample.op)
            if getattr(sample.op, f.name) is DType.FLOAT32
        }
        op = replace(sample.op, **wide) if wide else sample.op
        yield Sample(op, tuple(map(_as_float64, sample.inputs)))


def _is_float(array: Array | None) -> bool:
    return array is not None and array.dtype.kind == "f"


def _as_float64(array: Array | None) -> Array | None:
    if array is None or not _is_float(array):
        return array
    wide = array.astype(np.float64)
    return np.where(np.isfinite(wide) & (abs(wide) < 50), wide, 0.7)


class _Loss:
    """A weighted sum of an op's outputs, and its gradients by the float inputs.

    Args:
        sample: The op and its inputs; integers become constants.
        symbolic: Whether the dims of float inputs are symbols.
        rng: Source of the weights.
        dtype: Dtype of the float inputs and results.
    """

    def __init__(
        self,
        sample: Sample,
        symbolic: bool,
        rng: np.random.Generator,
        dtype: DType = DType.FLOAT64,
    ) -> None:
        build = OpBuilder()
        inputs: list[Value | None] = []
        for k, array in enumerate(sample.inputs):
            if _is_float(array) and _PARAMETERS.get(sample.op.name) != k:
                assert array is not None
                dims: tuple[Any, ...] = array.shape
                if symbolic:
                    dims = tuple(symbol(f"x{k}_{i}") for i in range(array.ndim))
                inputs.append(build.feed(f"x{k}", dtype, *dims))
            else:
                inputs.append(None if array is None else build.constant(array))
        outputs = build.add_all(sample.op, *inputs)
        self.inputs = build.inputs
        self.feeds = {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}
        terms = []
        results = _reference(sample)
        for value, result in zip(outputs, results, strict=False):
            if value.dtype is dtype:
                weights = rng.standard_normal(result.shape).astype(dtype.numpy)
                product = build("Mul", value, weights)
                terms.append(build("ReduceSum", product, keepdims=0))
        loss = terms[0] if len(terms) == 1 else build("Sum", *terms)
        self.forward = Graph("loss", build.inputs, [loss], list(build.nodes))
        nodes, gradients = add_gradients(build.nodes, loss, build.inputs, build.names)
        self.backward = Graph(
            "gradients",
            build.inputs,
            gradients,
            [*build.nodes, *nodes],
            [v.name for v in build.inputs],
        )

    def at(self, feeds: dict[str, Array]) -> float:
        (loss,) = evaluate(self.forward, feeds).values()
        return float(loss)

    def _slope(self, name: str, direction: Array, width: float) -> float:
        """Returns the slope of the loss along a direction of one input, over a width."""
        x = self.feeds[name]
        above, below = (
            self.at({**self.feeds, name: x + sign * width * direction}) for sign in (0.5, -0.5)
        )
        return (above - below) / width

    def check(self, rng: np.random.Generator) -> int:
        """Compares gradients with differences, input by input; returns how many could be compared.

        An input is left out if the op is not smooth there: differences over two widths disagree.
        """
        compared = 0
        found = list(evaluate(self.backward, self.feeds).values())
        for value, gradient in zip(self.inputs, found, strict=True):
            x = self.feeds[value.name]
            assert gradient.shape == x.shape and gradient.dtype == np.float64
            direction = rng.standard_normal(x.shape)
            wide, narrow = (self._slope(value.name, direction, w) for w in (2e-4, 4e-5))
            scale = 1 + abs(narrow) + float(np.sum(abs(gradient * direction)))
            if not math.isfinite(narrow) or abs(wide - narrow) > 2e-6 * scale:
                continue
            assert float(np.sum(gradient * direction)) == pytest.approx(narrow, abs=1e-5 * scale)
            compared += 1
        return compared


def _reference(sample: Sample) -> tuple[Array, ...]:
    assert isinstance(sample.op, Op)
    return tuple(map(np.asarray, sample.op.run_reference(*sample.inputs)))


def _jittered(sample: Sample, rng: np.random.Generator) -> Sample:
    """Moves float inputs a little, so that no two numbers are equal."""
    inputs = (
        a + 0.05 * rng.standard_normal(a.shape) if a is not None and _is_float(a) else a
        for a in sample.inputs
    )
    return Sample(sample.op, tuple(inputs))


def _as_float32(sample: Sample) -> Sample:
    narrow = {
        f.name: DType.FLOAT32
        for f in fields(sample.op)
        if getattr(sample.op, f.name) is DType.FLOAT64
    }
    inputs = (a.astype(np.float32) if a is not None and _is_float(a) else a for a in sample.inputs)
    return Sample(replace(sample.op, **narrow) if narrow else sample.op, tuple(inputs))


def _differentiable(cls: type[Op], rng: np.random.Generator) -> Iterator[Sample]:
    """Yields jittered samples with a float result."""
    for sample in _float64_samples(cls):
        moved = _jittered(sample, rng)
        if any(r.dtype == np.float64 for r in _reference(moved)):
            yield moved


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("cls", RULES, ids=lambda c: c.name)
def test_gradient_rule_matches_finite_differences(cls: type[Op], symbolic: bool) -> None:
    if cls.name in _FLAT:
        pytest.skip("its derivative is 0")
    if symbolic and cls.name in _STATIC:
        pytest.skip("it needs a number of heads, or the size of a window")
    rng = np.random.default_rng(0)
    compared = used = 0
    for sample in _differentiable(cls, rng):
        if used == _MAX_SAMPLES:
            break
        try:
            loss = _Loss(sample, symbolic, rng)
        except (ShapeError, UnsupportedError):
            continue  # a form without a gradient, or an op that needs numbers among these dims
        found = loss.check(rng)
        compared += found
        used += bool(found)
    assert compared


@SWEEP
@pytest.mark.parametrize("cls", RULES, ids=lambda c: c.name)
def test_gradient_on_device_matches_float64_reference(cls: type[Op], device: DeviceInfo) -> None:
    if cls.name in _FLAT:
        pytest.skip("its derivative is 0")
    found: list[tuple[int, Sample, dict[str, Array]]] = []
    for sample in _differentiable(cls, np.random.default_rng(0)):
        with suppress(UnsupportedError):  # a form without a gradient
            wide = _Loss(sample, False, np.random.default_rng(1))
            expected = evaluate(wide.backward, wide.feeds)
            if all(np.isfinite(a).all() for a in expected.values()):
                found.append((sum(a.size for a in expected.values()), sample, expected))
        if len(found) == 4:
            break
    # Gradients of a single element may be differences of equal numbers, which are only noise.
    _, sample, expected = max(found, key=lambda f: f[0])
    loss = _Loss(_as_float32(sample), False, np.random.default_rng(1), DType.FLOAT32)
    model = clrt.load(loss.backward, device=device.index, strict=True)
    for name, result in model.run({v.name: loss.feeds[v.name] for v in loss.inputs}).items():
        largest = abs(expected[name]).max(initial=0)
        np.testing.assert_allclose(result, expected[name], rtol=1e-4, atol=1e-4 * largest + 1e-7)


def _gradient(op: str, x: Array, dtype: DType = DType.FLOAT64, **attributes: Any) -> Array:
    """Returns the gradient of the sum of an op's result by its input, by the references."""
    build = OpBuilder()
    value = build.feed("x", dtype, *x.shape)
    y = build(op, value, **attributes)
    nodes, (gradient,) = add_gradients(build.nodes, y, [value], build.names)
    graph = Graph("gradient", [value], [gradient], [*build.nodes, *nodes])
    (found,) = evaluate(graph, {"x": x.astype(dtype.numpy)}).values()
    return found


@pytest.mark.parametrize(
    ("op", "expected"),
    [("ReduceSumSquare", -6), ("ReduceL1", -1), ("ReduceL2", -1), ("ReduceMean", 1)],
)
def test_reduction_over_no_axis_has_gradient_of_single_element(op: str, expected: float) -> None:
    assert _gradient(op, np.array(-3.0), keepdims=False) == expected
    assert _gradient(op, np.array([-3.0]), noop_with_empty_axes=True) == [expected]


def test_gradients_of_wide_float16_rows_do_not_overflow() -> None:
    half, rng = DType.FLOAT16, np.random.default_rng(0)
    assert _gradient("Gelu", np.array([3000.0]), half, approximate="tanh") == [1]
    mean = _gradient("ReduceMean", np.zeros(70_000), half, keepdims=False)
    np.testing.assert_allclose(mean.astype(np.float64), 1 / 70_000, rtol=1e-2)
    x, scale = rng.standard_normal((2, 3, 8)) * 1000, np.ones(8)
    found = []
    for dtype in (half, DType.FLOAT64):
        build = OpBuilder()
        xs = [build.feed(f"x{k}", dtype, *a.shape) for k, a in enumerate((x, scale))]
        norm = build("LayerNormalization", *xs)
        groups = build("InstanceNormalization", xs[0], *2 * [np.ones(3, dtype.numpy)])
        y = build("Mul", build("Add", norm, groups), np.arange(8, dtype=dtype.numpy))
        nodes, gradients = add_gradients(build.nodes, y, xs, build.names)
        graph = Graph("gradient", xs, gradients, [*build.nodes, *nodes])
        feeds = {"x0": x.astype(dtype.numpy), "x1": scale.astype(dtype.numpy)}
        found.append(list(evaluate(graph, feeds).values()))
    for narrow, wide in zip(*found, strict=True):
        assert narrow.dtype == np.float16
        np.testing.assert_allclose(narrow, wide, rtol=2e-2, atol=2e-2 * abs(wide).max())


def test_value_that_is_several_inputs_of_decomposed_op_counts_once() -> None:
    build = OpBuilder()
    x = build.feed("x", DType.FLOAT64, 1, 2, 3, 4)
    weights = np.random.default_rng(0).standard_normal((1, 2, 3, 4))
    y = build("ReduceSum", build("Mul", build("Attention", x, x, x), weights), keepdims=0)
    nodes, (gradient,) = add_gradients(build.nodes, y, [x], build.names)
    forward = Graph("forward", [x], [y], list(build.nodes))
    backward = Graph("backward", [x], [gradient], [*build.nodes, *nodes])
    at = np.random.default_rng(1).standard_normal((1, 2, 3, 4))
    (found,) = evaluate(backward, {"x": at}).values()
    step = np.zeros_like(at)
    step[0, 1, 2, 3] = 1e-5
    above, below = (evaluate(forward, {"x": at + s})[y.name] for s in (step, -step))
    assert found[0, 1, 2, 3] == pytest.approx((above - below) / 2e-5, rel=1e-6)
