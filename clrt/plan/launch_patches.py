"""What of the launches of a plan differs from size to size, as columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Int32s: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


@dataclass(frozen=True)
class VariableArguments:
    """The arguments of launches that may differ from size to size, all of 32 bits.

    An argument is the number of a formula, and for the offset of a buffer in the arena the elements
    in front of the buffer besides.

    Attributes:
        launches: Of each word the launch, counted through the plan.
        arguments: Its index among the kernel's arguments; an offset comes behind its buffer.
        tenants: The tenant of the arena whose offset it is; -1 for none.
    """

    launches: Ints
    tenants: Ints
    arguments: Ints
    _formulas: Ints
    _itemsizes: Ints

    @classmethod
    def of(
        cls, launches: Sequence[Launch], trace: ShapeTrace, tenant_of: Callable[[Buffer], int]
    ) -> VariableArguments:
        """Those of traced launches.

        Args:
            tenant_of: The number of the tenant that a buffer lies in; -1 for none.
        """
        rows: list[tuple[int, int, int, int, int]] = []
        for number, launch in enumerate(launches):
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
        """The words.

        Args:
            numbers: By formula.
            offsets: In bytes, by tenant.
        """
        starts = np.array([*offsets, 0], np.int64)
        words = numbers[self._formulas] + starts[self.tenants] // self._itemsizes
        return words.astype(np.int32)


class VariableGlobalSizes:
    """The global sizes that may differ from size to size.

    Attributes:
        launches: Whose they are, counted through the plan.
    """

    def __init__(self, launches: Sequence[Launch], trace: ShapeTrace) -> None:
        varying = [i for i, x in enumerate(launches) if any(map(is_traced, x.global_size))]
        formulas = [tuple(map(trace.formula, launches[i].global_size)) for i in varying]
        self.launches = tuple(varying)
        # Layers that are alike have the same.
        self._kinds = list(dict.fromkeys(formulas))
        self._kind_of = [self._kinds.index(f) for f in formulas]

    def at(self, numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """The global sizes.

        Args:
            numbers: By formula.
        """
        kinds = [tuple([numbers[i] for i in formulas]) for formulas in self._kinds]
        return [kinds[i] for i in self._kind_of]
