"""Optimizers of ai.onnx.preview.training, as elementwise arithmetic per tensor.

Inputs: learning rate, number of previous updates; then the values of all tensors, the gradients of
all tensors, and for each kind of state the states of all tensors. Outputs: new values, new states.
"""

from __future__ import annotations

from collections.abc import Callable

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.graph import Value
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)

_DOMAIN = "ai.onnx.preview.training"


class _Arithmetic:
    """Adds arithmetic nodes and constants for an optimizer op, in the dtype of its tensors."""

    def __init__(self, body: ImportBuilder) -> None:
        self.body = body
        self.dtype = body.input_dtype(2)

    def number(self, value: float) -> Value:
        """Adds a scalar constant."""
        return self.body.number(value, 2)

    def attr(self, name: str, default: float | None = None) -> Value:
        """Adds attribute `name`, a float, as a scalar constant.

        Raises:
            ModelError: The attribute is missing and has no default.
        """
        return self.number(self.value(name, default))

    def value(self, name: str, default: float | None = None) -> float:
        """Returns attribute `name` as a float.

        Raises:
            ModelError: The attribute is missing and has no default.
        """
        number = self.body.attrs.get(name, default)
        if number is None:
            raise ModelError(f"it lacks its attribute '{name}'.")
        return float(number)

    def add(self, a: Value, b: Value) -> Value:
        return self.body("Add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.body("Sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.body("Mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.body("Div", a, b)

    def mix(self, a: Value, x: Value, b: Value, y: Value) -> Value:
        """Returns a * x + b * y, elementwise."""
        return self.add(self.mul(a, x), self.mul(b, y))

    def regularized(self, x: Value, gradient: Value) -> Value:
        """Returns gradient + `norm_coefficient` (an attribute) * x, for L2 regularization."""
        return self.add(self.mul(self.attr("norm_coefficient", 0.0), x), gradient)


def _each(
    body: ImportBuilder,
    kinds: int,
    update: Callable[[_Arithmetic, Value, Value, list[Value]], list[Value]],
) -> None:
    """Decomposes an optimizer op: updates each of its tensors.

    Args:
        body: Builder; its outputs are set.
        kinds: Number of inputs per tensor: value, gradient and states.
        update: Returns the new value and states of one tensor, from (arithmetic, learning rate,
            number of previous updates, value, gradient and states of the tensor).

    Raises:
        ModelError: The number of inputs is not 2 plus a multiple of `kinds`.
    """
    tensors, rest = divmod(len(body.inputs) - 2, kinds)
    if rest or tensors < 1:
        raise ModelError(
            f"it has {counted(len(body.inputs), 'input')}; expected 2 and a multiple of {kinds}."
        )
    math = _Arithmetic(body)
    rate, times = body.inputs[:2]
    if body.input_dtype(0) is not math.dtype:
        rate = body.cast(rate, math.dtype)
    updated = [
        update(math, rate, times, [body.inputs[2 + i + k * tensors] for k in range(kinds)])
        for i in range(tensors)
    ]
    body.outputs = [values[k] for k in range(kinds - 1) for values in updated]


@register_import_decomposition(_DOMAIN, "Momentum")
def _momentum(body: ImportBuilder) -> None:
    """Decomposes Momentum: stochastic gradient descent with standard or Nesterov momentum."""
    mode = body.attrs.get("mode", "standard")
    if mode not in ("standard", "nesterov"):
        raise UnsupportedError(f"mode '{mode}'")

    def update(m: _Arithmetic, rate: Value, times: Value, values: list[Value]) -> list[Value]:
        x, gradient, velocity = values
        g = m.regularized(x, gradient)
        started = body("Greater", times, body.number(0, 1))
        beta = body("Where", started, m.attr("beta"), m.number(1))
        alpha = m.attr("alpha")
        velocity = m.mix(alpha, velocity, beta, g)
        step = m.add(g, m.mul(alpha, velocity)) if mode == "nesterov" else velocity
        return [m.sub(x, m.mul(rate, step)), velocity]

    _each(body, 3, update)


@register_import_decomposition(_DOMAIN, "Adagrad")
def _adagrad(body: ImportBuilder) -> None:
    """Decomposes Adagrad: gradient steps, divided by the root of the sum of squared gradients.

    The learning rate is divided by 1 + number of updates * `decay_factor`.
    """

    def update(m: _Arithmetic, rate: Value, times: Value, values: list[Value]) -> list[Value]:
        x, gradient, squares = values
        count = body.cast(times, m.dtype)
        decay = m.add(m.number(1), m.mul(count, m.attr("decay_factor", 0.0)))
        g = m.regularized(x, gradient)
        squares = m.add(squares, m.mul(g, g))
        root = m.add(body("Sqrt", squares), m.attr("epsilon", 1e-6))
        return [m.sub(x, m.div(m.mul(m.div(rate, decay), g), root)), squares]

    _each(body, 3, update)


@register_import_decomposition(_DOMAIN, "Adam")
def _adam(body: ImportBuilder) -> None:
    """Decomposes Adam, which keeps moving means of the gradients and of their squares.

    A step is the mean gradient divided by the root of the mean square.
    """

    def update(m: _Arithmetic, rate: Value, times: Value, values: list[Value]) -> list[Value]:
        x, gradient, mean, squares = values
        alpha, beta = m.value("alpha", 0.9), m.value("beta", 0.999)
        g = m.regularized(x, gradient)
        mean = m.mix(m.number(alpha), mean, m.number(1 - alpha), g)
        squares = m.mix(m.number(beta), squares, m.number(1 - beta), m.mul(g, g))
        root = m.add(body("Sqrt", squares), m.attr("epsilon", 1e-6))
        x = m.sub(x, m.mul(_adam_rate(m, rate, times, alpha, beta), m.div(mean, root)))
        x = m.mul(m.number(1 - m.value("norm_coefficient_post", 0.0)), x)
        return [x, mean, squares]

    _each(body, 4, update)


def _adam_rate(m: _Arithmetic, rate: Value, times: Value, alpha: float, beta: float) -> Value:
    """Returns the corrected learning rate of Adam: rate * sqrt(1 - beta^t) / (1 - alpha^t).

    Returns `rate` if t is 0.

    Args:
        m: Arithmetic of the op.
        rate: Learning rate.
        times: Number of previous updates, t.
        alpha: Decay of the mean of gradients.
        beta: Decay of the mean of squared gradients.
    """
    body = m.body
    count = body.cast(times, m.dtype)
    corrections = [m.sub(m.number(1), body("Pow", m.number(a), count)) for a in (beta, alpha)]
    started = body("Greater", count, m.number(0))
    root = body("Where", started, body("Sqrt", corrections[0]), m.number(1))
    return m.div(m.mul(rate, root), body("Where", started, corrections[1], m.number(1)))
