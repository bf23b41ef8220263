"""Base class of LSTM, GRU and RNN: attributes, shapes, activations and the reference."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeAlias

import numpy as np

from clrt.errors import ModelError, ShapeError
from clrt.ir.dims import Dim, provably_different
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.ops.base import OnnxNode, Op, Types
from clrt.ops.checks import need
from clrt.ops.index_checks import check_lengths
from clrt.ops.movement.common import num_elements
from clrt.ops.pointwise.activations import Elu, HardSigmoid, LeakyRelu, ThresholdedRelu
from clrt.ops.pointwise.fused import Fused, Literal
from clrt.ops.pointwise.table import Add, Mul, Relu, Sigmoid, Softplus, Softsign, Tanh
from clrt.ops.traits import HostTraits, InputTraits
from clrt.util.fast_dataclass import dataclass

Steps: TypeAlias = tuple[ElementwiseInstruction, ...]
Function: TypeAlias = Callable[[Array], Array]

# Default alpha and beta of the activations that use them, by lower-case name.
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
    """Returns the elementwise program alpha x + beta of one operand x of `dtype`."""
    return (
        ElementwiseInstruction(Literal(alpha, dtype), ()),
        ElementwiseInstruction(Literal(beta, dtype), ()),
        ElementwiseInstruction(Mul(), (0, 1)),
        ElementwiseInstruction(Add(), (3, 2)),
    )


def _function(name: str, alpha: float, beta: float, dtype: DType) -> Steps:
    """Returns an activation as an elementwise program of one operand.

    Args:
        name: ONNX's name of the activation, in lower case.
        alpha: Parameter alpha of the activation; ignored if it has none.
        beta: Parameter beta of the activation; ignored if it has none.
        dtype: Dtype of the operand.

    Raises:
        ModelError: ONNX has no such activation.
    """
    unary = {"relu": Relu, "tanh": Tanh, "sigmoid": Sigmoid, "softsign": Softsign}
    if name in unary:
        return (ElementwiseInstruction(unary[name](), (0,)),)
    match name:
        case "softplus":
            return (ElementwiseInstruction(Softplus(), (0,)),)
        case "leakyrelu":
            return (ElementwiseInstruction(LeakyRelu(alpha), (0,)),)
        case "thresholdedrelu":
            return (ElementwiseInstruction(ThresholdedRelu(alpha), (0,)),)
        case "elu":
            return (ElementwiseInstruction(Elu(alpha), (0,)),)
        case "hardsigmoid":
            return (ElementwiseInstruction(HardSigmoid(alpha, beta), (0,)),)
        case "affine":
            return _linear(alpha, beta, dtype)
        case "scaledtanh":
            scaled = (
                ElementwiseInstruction(Literal(beta, dtype), ()),
                ElementwiseInstruction(Mul(), (0, 1)),
                ElementwiseInstruction(Tanh(), (2,)),
            )
            return (
                *scaled,
                ElementwiseInstruction(Literal(alpha, dtype), ()),
                ElementwiseInstruction(Mul(), (3, 4)),
            )
    raise ModelError(f"'{name}' is not an activation of a recurrent op.")


@dataclass(frozen=True)
class Cell:
    """Weights and activations of one direction, for the reference.

    Attributes:
        r: Recurrent weights R, `[G, H, H]`, for G gates and hidden size H.
        bias: Biases of W and of R, `[2, G, H]`.
        peephole: Peephole weights P, `[3, H]`.
        act: Activation functions of NumPy arrays; they clip their operand as `Recurrent.clip` says.
    """

    r: Array
    bias: Array
    peephole: Array
    act: Sequence[Function]


@dataclass(frozen=True)
class Recurrent(Op):
    """Base class of LSTM, GRU and RNN.

    Shapes have T time steps, B sequences, D directions, G gates, input size I and hidden size H.
    Inputs: X `[T, B, I]`, W `[D, G H, I]`, R `[D, G H, H]`, and optionally a bias `[D, 2 G H]`,
    sequence_lens `[B]` (int32), initial_h `[D, B, H]`. Outputs: Y `[T, D, B, H]`, Y_h `[D, B, H]`.
    With layout 1: X `[B, T, I]`, states `[B, D, H]`, Y `[B, T, D, H]`.

    Y is 0 behind the end of a sequence that is shorter than T. The reverse direction starts at the
    end of each sequence. A sequence of length 0 keeps its initial state.

    Attributes:
        activation_alpha: Values of alpha, in the order of the activations that use it.
        activation_beta: Values of beta, in the order of the activations that use it.
        activations: Names of the activations of each direction, case-insensitive; () for
            `defaults`.
        clip: Operands of activations are clipped to -clip..clip; 0 to disable.
        direction: Order of the time steps; "bidirectional" computes both.
        hidden_size: Hidden size H in the model file; the shape of R decides.
        layout: 1 if the batch axis comes first.

    Class attributes:
        gates: Number of gates, G.
        states: Number of state tensors carried from step to step.
        defaults: Default activations of one direction.
        unclipped: Index of the activation whose operand is not clipped; None if all are clipped.
        entry: Entry point and file name of the kernel of a step.
        hidden_axis: Axis of R whose size is H.

    Numerics: gates are float32 (float64 for float64); states are rounded to the dtype at each step.
    """

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: typing.Literal["forward", "reverse", "bidirectional"] = "forward"
    hidden_size: int = 0
    layout: int = 0

    input_traits = InputTraits(index=(4,), same_dtype=((0, 1, 2, 3, 5, 6, 7),))
    host_traits = HostTraits(has_slow_reference=True)
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
        """Number of directions, D."""
        return 2 if self.direction == "bidirectional" else 1

    def functions(self, dtype: DType) -> list[list[Steps]]:
        """Returns the activations of each direction as elementwise programs of one operand.

        Args:
            dtype: Dtype in which the activations are computed.

        Returns:
            A list per direction with a program per activation.

        Raises:
            ModelError: The number of activations is wrong, or ONNX does not have one of them.
        """
        per_direction = len(self.defaults)
        names = self.activations or self.defaults * self.directions
        expected = per_direction * self.directions
        if len(names) != expected:
            raise ModelError(f"{self.name} has {len(names)} activations; expected {expected}.")
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        steps: list[Steps] = []
        for name in map(str.lower, names):
            alpha = next(alphas, ALPHA[name]) if name in ALPHA else 0.0
            beta = next(betas, BETA[name]) if name in BETA else 0.0
            steps.append(_function(name, alpha, beta, dtype))
        return [steps[k : k + per_direction] for k in range(0, len(steps), per_direction)]

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
        for index, (type_, shape) in enumerate(zip(inputs[1:], wanted, strict=False), start=1):
            self._check(index, type_, shape)
        y = (batch, time, directions, hidden) if self.layout else (time, directions, batch, hidden)
        return [TensorType(x.dtype, y), *[TensorType(x.dtype, state)] * self.states]

    def weight_shapes(self, depth: Dim, hidden: Dim) -> list[tuple[Dim, ...]]:
        """Returns the shapes of W and R for input size I = `depth` and hidden size H = `hidden`."""
        wide = self.gates * hidden
        return [(self.directions, wide, depth), (self.directions, wide, hidden)]

    def _check(self, index: int, type_: TensorType | None, shape: Sequence[Dim]) -> None:
        if type_ is None or type_.shape is None:
            return
        if len(type_.shape) != len(shape) or any(map(provably_different, type_.shape, shape)):
            text = ",".join(map(str, shape))
            raise ShapeError(f"{self.name}: input {index} is {type_}; expected [{text}].")

    def step(self, x: Array, states: list[Array], cell: Cell) -> list[Array]:
        """Computes the states after a time step of one direction by NumPy.

        Args:
            x: X W^T of the time step, `[sequences, gates, hidden size]`.
            states: States before the step, each `[sequences, hidden size]`: h and, for LSTM, c.
                The rows of sequences that ended before the previous step are 0.
            cell: Weights and activations of the direction.

        Returns:
            States after the step, in the order and shape of `states`.
        """
        raise NotImplementedError(self.name)

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        padded = (*inputs, *(None,) * (8 - len(inputs)))
        assert padded[0] is not None
        dtype = padded[0].dtype
        lens = padded[4]
        x, w, r, bias, _, *first, p = (None if a is None else a.astype(np.float64) for a in padded)
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
                was_live = (s <= lens)[:, None]
                new = self.step(xw, [np.where(was_live, end[d], 0) for end in ends], cell)
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
        """Returns whether the operand of a direction's activation number `index` is clipped."""
        return self.clip > 0 and index != self.unclipped

    def _callable(self, index: int, steps: Steps) -> Function:
        def run(x: Array) -> Array:
            clipped = np.clip(x, -self.clip, self.clip) if self.clips(index) else x
            return Fused(steps).reference(clipped)[0]

        return run

    def flops(self, inputs: Types, outputs: Types) -> int:
        x, w, r = (need(inputs, i, self) for i in range(3))
        assert x.shape is not None and w.shape is not None and r.shape is not None
        rows = int(x.shape[0]) * int(x.shape[1])
        return 2 * rows * sum(num_elements([int(d) for d in t.shape or ()]) for t in (w, r))

    def reject_steps(self) -> str | None:
        """Returns why the kernel recurrent_steps does not apply; None if it does."""
        return None

    def features(self) -> dict[str, int]:
        """Returns the kernel macros that only this op has, by name; {} by default."""
        return {}
