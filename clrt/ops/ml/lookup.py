"""clrt.Lookup: maps elements by a table; LabelEncoder and similar ops expand to it."""

from __future__ import annotations

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Node
from clrt.ir.op import Array, TensorType
from clrt.kernels.spec import KernelSpec, Launch, launch
from clrt.kernels.variant import Lowering, Variant, lacks_float64
from clrt.ops.base import Accuracy, Op, Types
from clrt.ops.checks import need
from clrt.ops.movement.common import num_elements
from clrt.ops.registry import register
from clrt.ops.traits import InputTraits


def _reject(node: Node, caps: DeviceCaps) -> str | None:
    dtype = node.arg(0).dtype
    if DType.STRING in (dtype, node.output.dtype):
        return "text stays on the host"
    if dtype.storage != "plain":
        return f"no kernel compares {dtype}"
    return lacks_float64((dtype,), caps)


def _emit(node: Node, ctx: Lowering) -> list[Launch]:
    x, keys, y = node.arg(0), node.arg(1), node.output
    elems = num_elements(x.dims)
    if not elems:
        return []
    kernel = KernelSpec.of("ml/lookup.cl", "lookup", DATA_T=x.dtype.cl, VALUE_T=y.dtype.cl_bits)
    table = dict(keys=keys, values=node.arg(2), fallback=node.arg(3), count=keys.dims[0])
    return [launch(kernel, (elems,), x=x, y=y, n=elems, **table)]


@register
class Lookup(Op):
    """Maps elements by a table: values[k] for elements equal to keys[k], else the default.

    Inputs: x; keys `[count]` in ascending order (NaN last; NaN equals NaN); values `[count]`;
    default `[1]`.
    """

    domain = "clrt"
    accuracy = Accuracy.EXACT
    input_traits = InputTraits(same_dtype=((0, 1), (2, 3)))
    variants = (Variant("search", _emit, _reject),)

    def infer(self, inputs: Types) -> list[TensorType]:
        x, keys, values, default = (need(inputs, i, self) for i in range(4))
        if x.dtype is not keys.dtype or values.dtype is not default.dtype:
            raise ShapeError(
                f"Lookup: x is {x}, keys are {keys}, values {values}, the default {default}."
            )
        table = TensorType(values.dtype, keys.shape), TensorType(values.dtype, (1,))
        if keys.rank not in (1, None) or not (
            values.is_compatible(table[0]) and default.is_compatible(table[1])
        ):
            raise ShapeError(
                f"Lookup: keys {keys}, values {values} and default {default} do not match."
            )
        return [TensorType(values.dtype, x.shape)]

    def reference(self, *inputs: Array | None) -> tuple[Array, ...]:
        x, keys, values, default = inputs
        assert x is not None and keys is not None and values is not None and default is not None
        if not len(keys):
            return (np.full(x.shape, default.reshape(-1)[0]),)
        index = np.minimum(np.searchsorted(keys, x), len(keys) - 1)
        matches = keys[index] == x
        if x.dtype.kind == "f":
            matches |= np.isnan(keys[index]) & np.isnan(x)
        return (np.where(matches, values[index], default.reshape(-1)[0]),)
