"""`set_memory_budget`: one limit for the device memory of all models."""

from __future__ import annotations

from clrt.runtime.opencl.ledger import BUDGET
from clrt.util.formatting import parse_bytes


def set_memory_budget(budget: int | str | None) -> None:
    """Limits the device memory that all models of this process allocate together.

    A run that does not fit frees unused memory of other models: first their idle arenas, then the
    weights of idle models, which their next run uploads again. Then it waits for running models. A
    run that could never fit is refused before it allocates anything. Live tensors and caches count
    towards the budget, and are not freed. `memory_limit` of `clrt.load` additionally limits one
    model.

    Args:
        budget: Number of bytes, or a string such as "2GiB"; None for no limit. If more is allocated
            already, unused memory is freed.

    Raises:
        InputError: `budget` is not a number of bytes.
    """
    BUDGET.limit = None if budget is None else parse_bytes(budget)
    if BUDGET.limit is not None:
        BUDGET.reclaim(0)
    BUDGET.note_change()
