"""Every op as a function on arrays or device tensors; device tensors give device tensors.

import clrt.functional as F

F.softmax([1.0, 2.0, 3.0])
F.Softmax(x, axis=-1)         # each ONNX op under its name
F.microsoft.BiasGelu(x, b)    # op of com.microsoft; F.ml has the ops of ai.onnx.ml
y, pullback = F.vjp(F.MatMul, a, b)   # and the gradients: pullback(gradient with respect to y)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clrt.functional import common, operators
from clrt.functional.calls import clear_cache
from clrt.functional.gradients import vjp
from clrt.functional.operators import OpDomain

if TYPE_CHECKING:
    from clrt.functional.typed import *  # noqa: F403
else:
    from clrt.functional.common import *  # noqa: F403

microsoft = OpDomain("microsoft")
ml = OpDomain("ml")
training = OpDomain("training")
fused = OpDomain("fused")

__all__ = [*common.__all__, "clear_cache", "fused", "microsoft", "ml", "training", "vjp"]


if not TYPE_CHECKING:  # type checkers read the names from typed.pyi

    def __getattr__(name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        return operators.function_of("", name)


def __dir__() -> list[str]:
    return sorted([*__all__, *operators.names_in("")])
