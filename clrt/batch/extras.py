"""The packages that jobs need and a plain install lacks."""

from __future__ import annotations

import importlib
from typing import Any

from clrt.errors import UnsupportedError


def need(module: str, extra: str) -> Any:
    """A module of an extra of clrt.

    Args:
        module: Its full name; its package is imported, too.
        extra: What `pip install 'clrt[…]'` takes.

    Raises:
        UnsupportedError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise UnsupportedError(
            f"{package} is needed and cannot be imported ({error}): pip install 'clrt[{extra}]'."
        ) from error
