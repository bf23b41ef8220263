"""Constants of stored templates that the host computes from the sizes, such as masks.

A derivation is a node whose inputs are known: constants, numbers that depend on sizes, and outputs
of other derivations. Slice and Expand, by which models read position tables and repeat tokens, are
computed here; for any other op its module is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from clrt.ir.op import Array
from clrt.ir.symbolic_trace import Evaluation
from clrt.kernels.size_formulas import slice_indices
from clrt.util.cached_property import cached_property
from clrt.util.fast_dataclass import dataclass

Read: TypeAlias = Callable[[Evaluation], Array]


@dataclass(frozen=True, eq=False)
class StoredDerivation:
    """A node that is computed anew for other sizes, once per evaluation of the shape trace.

    Attributes:
        op: Text form of the op.
        inputs: Computes each input; None for an absent one.
        dtypes: Dtype of each output.
    """

    op: str
    inputs: Sequence[Read | None]
    dtypes: Sequence[np.dtype[Any]]

    def output(self, index: int) -> Read:
        """Returns a function that computes an output."""

        def read(evaluation: Evaluation) -> Array:
            if self not in evaluation.arrays:
                inputs = [None if r is None else r(evaluation) for r in self.inputs]
                evaluation.arrays[self] = self._compute(inputs)
            return cast(Array, evaluation.arrays[self][index])

        return read

    def _compute(self, inputs: Sequence[Array | None]) -> list[Array]:
        arrays = _OPS[self.op](*inputs) if self.op in _OPS else self._by_reference(*inputs)
        pairs = zip(arrays, self.dtypes, strict=False)
        return [np.asarray(a, dtype, order="C") for a, dtype in pairs]

    @cached_property
    def _by_reference(self) -> Callable[..., Sequence[Array]]:
        """Computes the op by its NumPy reference."""
        from clrt.ir.parse import parse_op
        from clrt.ops import REGISTRY
        from clrt.ops.base import Op

        op = parse_op(self.op, REGISTRY)
        assert isinstance(op, Op)
        return op.run_reference


def _slice(
    data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> tuple[Array]:
    """Computes ONNX Slice."""
    for k, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = k if axes is None else int(axes[k])
        step = 1 if steps is None else int(steps[k])
        indices = slice_indices(data.shape[axis], start, end, step)
        if step > 0 and len(indices):
            axis %= data.ndim
            taken = (slice(None),) * axis + (slice(indices.start, indices.stop, step),)
            data = data[taken]
        else:
            data = np.take(data, np.array(indices, np.int64), axis)
    return (data,)


def _expand(data: Array, shape: Array) -> tuple[Array]:
    """Computes ONNX Expand."""
    return (np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(shape.tolist()))),)


# By the text of the op.
_OPS: dict[str, Callable[..., Sequence[Array]]] = {"Slice": _slice, "Expand": _expand}
