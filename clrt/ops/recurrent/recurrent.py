"""What LSTM, GRU and RNN share: attributes, shapes, activations, the reference, samples."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.dims import Dim, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, ElementwiseStep, TensorType
from clrt.ops.base import OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.index_checks import check_lengths
from clrt.ops.movement.common import count
from clrt.ops.pointwise.activations import Elu, HardSigmoid, LeakyRelu, ThresholdedRelu
from clrt.ops.pointwise.fused import Fused, Literal
from clrt.ops.pointwise.table import Add, Mul, Relu, Sigmoid, Softplus, Softsign, Tanh

Steps: TypeAlias = tuple[ElementwiseStep, ...]
Function: TypeAlias = Callable[[Array], Array]

# By name: which of alpha and beta a function takes, with their defaults.
ALPHA = {
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "elu": 1.0,
    "hardsigmoid": 0.2,
    "affine": 1.0,
    "scaledtanh": 1.0,
}
BETA = {"hardsigmoid": 0.5, "affine": 0.0, "scaledtanh": 1.0}


def _linear(alpha: float, beta: float, dtype: DType) -> Steps:
    """alpha x + beta."""
    return (
        ElementwiseStep(Literal(alpha, dtype), ()),
        ElementwiseStep(Literal(beta, dtype), ()),
        ElementwiseStep(Mul(), (0, 1)),
        ElementwiseStep(Add(), (3, 2)),
    )


def _function(name: str, alpha: float, beta: float, dtype: DType) -> Steps:
    """An activation as an elementwise program of one operand.

    Raises:
        ModelError: ONNX has no such activation.
    """
    plain = {"relu": Relu, "tanh": Tanh, "sigmoid": Sigmoid, "softsign": Softsign}
    if name in plain:
        return (ElementwiseStep(plain[name](), (0,)),)
    match name:
        case "softplus":
            return (ElementwiseStep(Softplus(), (0,)),)
        case "leakyrelu":
            return (ElementwiseStep(LeakyRelu(alpha), (0,)),)
        case "thresholdedrelu":
            return (ElementwiseStep(ThresholdedRelu(alpha), (0,)),)
        case "elu":
            return (ElementwiseStep(Elu(alpha), (0,)),)
        case "hardsigmoid":
            return (ElementwiseStep(HardSigmoid(alpha, beta), (0,)),)
        case "affine":
            return _linear(alpha, beta, dtype)
        case "scaledtanh":
            scaled = (
                ElementwiseStep(Literal(beta, dtype), ()),
                ElementwiseStep(Mul(), (0, 1)),
                ElementwiseStep(Tanh(), (2,)),
            )
            return (
                *scaled,
                ElementwiseStep(Literal(alpha, dtype), ()),
                ElementwiseStep(Mul(), (3, 4)),
            )
    raise ModelError(f"'{name}' is no activation of a recurrent op.")


@dataclass(frozen=True)
class Cell:
    """The weights and activations of one direction.

    Attributes:
        r: [G, H, H].
        bias: Of W and of R, [2, G, H].
        peephole: [3, H].
    """

    r: Array
    bias: Array
    peephole: Array
    act: Sequence[Function]


@dataclass(frozen=True)
class Recurrent(Op):
    """Base of LSTM, GRU and RNN.

    Inputs: X `[T, B, I]`, W `[D, G H, I]`, R `[D, G H, H]`, and optionally B `[D, 2 G H]`,
    sequence_lens `[B]` (int32), initial_h `[D, B, H]`. Outputs: Y `[T, D, B, H]`, Y_h `[D, B, H]`.
    With layout 1: X `[B, T, I]`, states `[B, D, H]`, Y `[B, T, D, H]`. A sequence that is shorter
    than T gives zeros behind its end; backwards it starts at its own end; one of no length keeps
    its first state.

    Attributes:
        activations: For each direction; without regard to case. `activation_alpha` and
            `activation_beta` are consumed in order by those that take one.
        clip: Limits what enters an activation to -clip..clip; 0: not.

    Class attributes:
        gates: G.
        states: How many tensors go from step to step.
        defaults: The activations of one direction.
        unclipped: The activation that `clip` leaves alone, by place.
        entry: The kernel of a step, and its file.
        hidden_axis: The axis of R along which it has a place for each state.

    Numerics: gates are float32 (float64 for float64); states are rounded to the dtype at each step.
    """

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: typing.Literal["forward", "reverse", "bidirectional"] = "forward"
    hidden_size: int = 0
    layout: int = 0

    alike: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1, 2, 3, 5, 6, 7),)
    index_inputs = (4,)
    has_slow_reference = True
    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1
    defaults: ClassVar[tuple[str, ...]] = ("Tanh",)
    unclipped: ClassVar[int | None] = None
    entry: ClassVar[str] = "rnn"
    hidden_axis: ClassVar[int] = 2

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Op:
        for name in ("activation_alpha", "activation_beta"):
            node.attrs[name] = [float(v) for v in node.attrs.get(name, ())]
        return super().from_onnx(node)

    @property
    def directions(self) -> int:
        """D."""
        return 2 if self.direction == "bidirectional" else 1

    def functions(self, dtype: DType) -> list[list[Steps]]:
        """The activations by direction.

        Raises:
            ModelError: There are too few, or one that ONNX does not have.
        """
        per = len(self.defaults)
        names = self.activations or self.defaults * self.directions
        if len(names) != per * self.directions:
            raise ModelError(
                f"{self.name} has {len(names)} activations; expected {per * self.directions}."
            )
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        steps: list[Steps] = []
        for name in map(str.lower, names):
            alpha = next(alphas, ALPHA[name]) if name in ALPHA else 0.0
            beta = next(betas, BETA[name]) if name in BETA else 0.0
            steps.append(_function(name, alpha, beta, dtype))
        return [steps[k : k + per] for k in range(0, len(steps), per)]

    def infer(self, inputs: Types) -> list[TensorType]:
        x, w, r = (need(inputs, i, self) for i in range(3))
        self.functions(x.dtype)
        if x.shape is None or r.shape is None:
            return [TensorType(x.dtype, None)] * (1 + self.states)
        if len(x.shape) != 3 or len(r.shape) != 3 or w.rank not in (3, None):
            raise ShapeError(f"{self.name}: X, W and R must have rank 3; they are {x}, {w}, {r}.")
        a, b, depth = x.shape
        time, batch = (b, a) if self.layout else (a, b)
        hidden = r.shape[self.hidden_axis]
        wide = self.gates * hidden
        directions = self.directions
        wanted = self.weight_shapes(depth, hidden)
        state: tuple[Dim, ...] = (directions, batch, hidden)
        if self.layout:
            state = (batch, directions, hidden)
        wanted += [(directions, 2 * wide), (batch,), state, state, (directions, 3 * hidden)]
        for index, (given, shape) in enumerate(zip(inputs[1:], wanted, strict=False), start=1):
            self._check(index, given, shape)
        y = (batch, time, directions, hidden) if self.layout else (time, directions, batch, hidden)
        return [TensorType(x.dtype, y), *[TensorType(x.dtype, state)] * self.states]

    def weight_shapes(self, depth: Dim, hidden: Dim) -> list[tuple[Dim, ...]]:
        """The shapes of W and R."""
        wide = self.gates * hidden
        return [(self.directions, wide, depth), (self.directions, wide, hidden)]

    def _check(self, index: int, given: TensorType | None, shape: Sequence[Dim]) -> None:
        if given is None or given.shape is None:
            return
        if len(given.shape) != len(shape) or any(map(provably_different, given.shape, shape)):
            text = ",".join(map(str, shape))
            raise ShapeError(f"{self.name}: input {index} is {given}; expected [{text}].")

    def step(self, x: Array, states: list[Array], cell: Cell) -> list[Array]:
        """The states after a step.

        Args:
            x: X W^T of the step, [B, G, H].
            states: [B, H] each; 0 of a sequence that ended before the last step.
        """
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        given = (*inputs, *(None,) * (8 - len(inputs)))
        assert given[0] is not None
        dtype = given[0].dtype
        lens = given[4]
        x, w, r, bias, _, *first, p = (None if a is None else a.astype(np.float64) for a in given)
        assert x is not None and w is not None and r is not None
        if self.layout:
            x, first = x.swapaxes(0, 1), [None if s is None else s.swapaxes(0, 1) for s in first]
        time, batch, _ = x.shape
        directions, _, hidden = r.shape
        bias = np.zeros((directions, 2 * self.gates * hidden)) if bias is None else bias
        p = np.zeros((directions, 3 * hidden)) if p is None else p
        lens = np.full(batch, time) if lens is None else lens
        check_lengths(lens, time, self.name, 4, "a sequence length")
        y = np.zeros((time, directions, batch, hidden))
        ends = [np.zeros((directions, batch, hidden)) for _ in range(self.states)]
        for end, start in zip(ends, first, strict=False):
            end[...] = 0 if start is None else start
        rows = np.arange(batch)
        for d, steps in enumerate(self.functions(DType.FLOAT64)):
            cell = Cell(
                r[d].reshape(self.gates, hidden, hidden),
                bias[d].reshape(2, self.gates, hidden),
                p[d].reshape(3, hidden),
                [self._callable(k, s) for k, s in enumerate(steps)],
            )
            for s in range(time if directions else 0):
                t = np.where(s < lens, lens - 1 - s, s) if self._backward(d) else np.full(batch, s)
                xw = (x[t, rows] @ w[d].T).reshape(batch, self.gates, hidden)
                made = (s <= lens)[:, None]
                new = self.step(xw, [np.where(made, end[d], 0) for end in ends], cell)
                live = (s < lens)[:, None]
                for end, value in zip(ends, new, strict=True):
                    end[d] = np.where(live, value, end[d])
                y[t, d, rows] = np.where(live, new[0], 0)
        if self.layout:
            y, ends = y.transpose(2, 0, 1, 3), [e.swapaxes(0, 1) for e in ends]
        return tuple(np.ascontiguousarray(a, dtype) for a in (y, *ends))

    def _backward(self, direction: int) -> bool:
        return self.direction == "reverse" or direction == 1

    def clips(self, index: int) -> bool:
        """Whether what enters an activation is limited."""
        return self.clip > 0 and index != self.unclipped

    def _callable(self, index: int, steps: Steps) -> Function:
        def run(x: Array) -> Array:
            limited = np.clip(x, -self.clip, self.clip) if self.clips(index) else x
            return Fused(steps).reference(limited)[0]

        return run

    def flops(self, inputs: Types, outputs: Types) -> int:
        x, w, r = (need(inputs, i, self) for i in range(3))
        assert x.shape is not None and w.shape is not None and r.shape is not None
        rows = int(x.shape[0]) * int(x.shape[1])
        return 2 * rows * sum(count([int(d) for d in t.shape or ()]) for t in (w, r))

    def reject_steps(self) -> str | None:
        """Why `recurrent_steps` does not hold."""
        return None

    def features(self) -> dict[str, int]:
        """Defines of the op's own."""
        return {}
