"""Launch arguments and global sizes that vary with input shape, as integer columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from clrt.ir.symbolic_trace import ShapeTrace, is_traced
from clrt.kernels.spec import (
    Buffer,
    BufferArg,
    Launch,
    PackedWeight,
    StatusWord,
    numbered_arguments,
)
from clrt.util.background import yield_point
from clrt.util.fast_dataclass import dataclass

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Int32s: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


@dataclass(frozen=True)
class VariableArguments:
    """The 32-bit launch arguments of a plan that vary with input shape: one row per argument.

    An argument is a number, or the offset in elements at which a kernel accesses a tensor. Each
    argument has a formula of the dims. For a tensor in the arena, the formula is the offset from
    the start of the tensor's arena buffer; `evaluate` adds the offset of this buffer in its slab.

    Attributes:
        launches: Index in the plan of the launch that has the argument.
        tenants: Index of the arena buffer that the tensor lies in; -1 for numbers, and for tensors
            outside the arena.
        arguments: OpenCL index of the argument in its launch. A tensor takes two indices: first
            the pointer, then the offset.
    """

    launches: Ints
    tenants: Ints
    arguments: Ints
    _formulas: Ints
    _itemsizes: Ints

    @classmethod
    def from_launches(
        cls, launches: Sequence[Launch], trace: ShapeTrace, tenant_of: Callable[[Buffer], int]
    ) -> VariableArguments:
        """Collects the varying arguments of traced launches.

        Args:
            launches: All launches of a plan, in order.
            trace: Formulas of the plan's numbers.
            tenant_of: Returns the index of the arena buffer that holds a tensor; -1 if none does.
        """
        rows: list[tuple[int, int, int, int, int]] = []
        for number, launch in enumerate(launches):
            yield_point()
            for index, arg in numbered_arguments(launch):
                if not isinstance(arg, BufferArg):
                    if is_traced(arg):
                        rows.append((number, -1, index, trace.formula(cast(int, arg)), 1))
                    continue
                buffer, tenant = arg.buffer, tenant_of(arg.buffer)
                if tenant >= 0 or is_traced(arg.offset):
                    itemsize = (
                        1
                        if isinstance(buffer, (PackedWeight, StatusWord))
                        else buffer.dtype.itemsize
                    )
                    formula = trace.formula(arg.offset)
                    rows.append((number, tenant, index + 1, formula, itemsize))
        return cls(*np.array(rows, np.int64).reshape(-1, 5).T)

    def evaluate(self, numbers: Ints, offsets: Sequence[int]) -> Int32s:
        """Computes the values of all varying arguments, in the order of the rows.

        Args:
            numbers: Value of each formula at the sizes of a call.
            offsets: Offset in bytes of each arena buffer in its slab.
        """
        starts = np.array([*offsets, 0], np.int64)
        values = numbers[self._formulas] + starts[self.tenants] // self._itemsizes
        return values.astype(np.int32)


class VariableGlobalSizes:
    """The global sizes of a plan's launches that vary with input shape.

    Attributes:
        launches: Indices in the plan of the launches with a varying global size.
    """

    def __init__(self, launches: Sequence[Launch], trace: ShapeTrace) -> None:
        varying = [i for i, x in enumerate(launches) if any(map(is_traced, x.global_size))]
        formulas = [tuple(map(trace.formula, launches[i].global_size)) for i in varying]
        self.launches = tuple(varying)
        # Equal layers share formulas: each distinct tuple is evaluated once.
        self._distinct = list(dict.fromkeys(formulas))
        self._index = [self._distinct.index(f) for f in formulas]

    def evaluate(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """Computes the varying global sizes, in the order of `launches`.

        Args:
            numbers: Value of each formula at the sizes of a call.
        """
        sizes = [tuple([numbers[i] for i in formulas]) for formulas in self._distinct]
        return [sizes[i] for i in self._index]
