"""One limit for the device memory of all models."""

from __future__ import annotations

from clrt.runtime.opencl.ledger import BUDGET
from clrt.util.formatting import parse_bytes


def set_memory_budget(budget: int | str | None) -> None:
    """Bounds what all models of this process allocate on devices, together.

    A run that does not fit beside the others' memory takes what these do not use: first what their
    runs have left, then weights of models that do nothing, which their next run uploads again. Then
    it waits for runs that go on. One that fits in no case is refused before it allocates anything.
    Tensors and caches that are held count, and are not freed. `memory_limit` of `clrt.load` bounds
    one model besides.

    Args:
        budget: In bytes or as "2GiB"; None for no limit. What is allocated above it already is
            freed as far as it is not used.

    Raises:
        InputError: It is no number of bytes.
    """
    BUDGET.limit = None if budget is None else parse_bytes(budget)
    if BUDGET.limit is not None:
        BUDGET.reclaim(0)
    BUDGET.note_change()
