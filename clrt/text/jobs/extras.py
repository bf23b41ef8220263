"""Imports of the optional packages that jobs need."""

from __future__ import annotations

import importlib
from typing import Any

from clrt.errors import explain_missing_extra


def need(module: str) -> Any:
    """Imports and returns a module of an optional package.

    Raises:
        UnsupportedError: The package is not installed; the message names the extra that provides
            it.
    """
    with explain_missing_extra("A job"):
        return importlib.import_module(module)
