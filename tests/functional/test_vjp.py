"""`F.vjp`: results of functions, and gradients pulled back through them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import clrt
import clrt.functional as F
from clrt.errors import InputError, UnsupportedError
from clrt.functional import calls
from clrt.ir.op import Array
from tests.harness import all_devices, quick_device

RNG = np.random.default_rng(31)


def _x(*shape: int) -> Array:
    return np.asarray(RNG.standard_normal(shape), np.float32)


A, B = _x(3, 4), _x(4, 5)


@pytest.fixture(autouse=True)
def on_quick_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CLRT_DEVICE", str(quick_device().index))
    calls.clear_cache()
    yield
    calls.clear_cache()


def test_product_has_gradients_of_both_operands() -> None:
    y, pullback = F.vjp(F.MatMul, A, B)
    np.testing.assert_allclose(y, A @ B, rtol=1e-5)
    for _ in range(2):
        gradient = _x(3, 5)
        found = pullback(gradient)
        np.testing.assert_allclose(found[0], gradient @ B.T, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[1], A.T @ gradient, rtol=1e-5, atol=1e-6)


def test_device_tensors_give_device_tensors_on_their_device() -> None:
    for device in all_devices():
        a, b = clrt.tensor(A, device=device.index), clrt.tensor(B, device=device.index)
        y, pullback = F.vjp(F.MatMul, a, b)
        (of_a, of_b) = pullback(clrt.tensor(np.ones((3, 5), np.float32), device=device.index))
        assert all(isinstance(t, clrt.DeviceTensor) for t in (y, of_a, of_b))
        np.testing.assert_allclose(of_b.numpy(), A.T @ np.ones((3, 5)), rtol=1e-5, atol=1e-6)


def test_inputs_without_gradient_give_none() -> None:
    y, pullback = F.vjp(F.Gather, A, np.array([0, 0, 2]), axis=0)
    of_data, of_indices = pullback(np.ones_like(y))
    np.testing.assert_array_equal(of_data, np.float32([2, 0, 1])[:, None] * np.ones_like(A))
    assert of_indices is None
    y, pullback = F.vjp(F.Clip, A, None, np.float32(0.5))
    of_x, of_low, of_high = pullback(np.ones_like(y))
    np.testing.assert_array_equal(of_x, (A <= 0.5).astype(np.float32))
    assert of_low is None and of_high is not None


def test_outputs_without_gradient_count_as_zeros() -> None:
    (first, second), pullback = F.vjp(F.Split, A, axis=1, num_outputs=2)
    (of_x,) = pullback(None, np.ones_like(second))[:1]
    np.testing.assert_array_equal(of_x, np.float32([0, 0, 1, 1]) * np.ones_like(A))
    assert pullback(None, None)[0] is None
    assert first.shape == second.shape


def test_usual_functions_are_differentiated() -> None:
    gradient = _x(3, 5)
    _, pullback = F.vjp(F.linear, A, B.T.copy(), np.zeros(5, np.float32))
    of_x, of_weight, of_bias = pullback(gradient)
    np.testing.assert_allclose(of_x, gradient @ B.T, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_weight, gradient.T @ A, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_bias, gradient.sum(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.vjp(F.relu, A)[1](A[0]), "is float32[4]; expected float32[3,4]"),
        (lambda: F.vjp(F.relu, A)[1](A.astype(np.float64)), "is float64[3,4]"),
        (lambda: F.vjp(F.relu, A)[1](), "has 1 outputs, but 0 gradients"),
        (lambda: F.vjp(lambda x: F.relu(F.relu(x)), A), "not a single computation"),
        (lambda: F.vjp(lambda x: F.relu(x) + 1, A), "not a single computation"),
    ],
)
def test_wrong_use_says_what_to_pass(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)


def test_op_without_gradient_is_named() -> None:
    _, pullback = F.vjp(F.Det, _x(3, 3))
    with pytest.raises(UnsupportedError, match="vjp: Det is not differentiated: Det"):
        pullback(np.float32(1.0))
