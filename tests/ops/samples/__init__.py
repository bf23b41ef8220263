"""Test cases of the ops, in `<family>/<module>.py` as the ops are in `clrt/ops`.

A function under `@samples_of(C)` gives those of the class C, and of classes derived from it that
have no function of their own.
"""

from __future__ import annotations

import importlib
import pkgutil

from tests.ops.samples.registry import Sample, error_samples, samples

for _module in pkgutil.walk_packages(__path__, __name__ + "."):
    importlib.import_module(_module.name)

__all__ = ["Sample", "error_samples", "samples"]
