"""Inputs for models of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.ir.dims import Expr, substitute
from clrt.ir.dtypes import DType
from clrt.ir.op import ContainerType


def made_up(model: Any) -> dict[str, Any] | None:
    """Small inputs; None where the model takes no small ones."""
    rng = np.random.default_rng(0)

    def make(type_: Any) -> Any:
        if isinstance(type_, ContainerType):
            if type_.kind == "optional":
                return make(type_.element)
            if type_.kind == "map":
                return {"a" if type_.key is DType.STRING else 1: 1.0}
            return [make(type_.element) for _ in range(2)]
        sizes = []
        for dim in (2, 2) if type_.shape is None else type_.shape:
            bound = substitute(dim, dict.fromkeys(getattr(dim, "symbols", ()), 2))
            sizes.append(2 if isinstance(bound, Expr) else max(bound, 0))
        if any(n > 1e6 for n in sizes) or np.prod(sizes, dtype=float) > 1e6 or len(sizes) > 32:
            raise OverflowError
        if type_.dtype is DType.STRING:
            return np.full(sizes, "ab,c", object)
        numbers = rng.standard_normal(sizes) if type_.dtype.is_float else rng.integers(0, 2, sizes)
        return numbers.astype(type_.dtype.numpy)

    try:
        return {v.name: make(v.type) for v in model._graph.inputs}
    except (OverflowError, ZeroDivisionError):
        return None
