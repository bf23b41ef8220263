"""The packages that jobs need and a plain install lacks."""

from __future__ import annotations

import importlib
from typing import Any

from clrt.errors import explain_missing_extra


def need(module: str) -> Any:
    """A module of a package that an extra of clrt brings.

    Raises:
        UnsupportedError: It is not installed.
    """
    with explain_missing_extra("A job"):
        return importlib.import_module(module)
