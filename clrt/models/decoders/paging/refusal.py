"""What is said of a decoder whose past cannot be kept in pages."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node


def refusal(what: str, node: Node | None = None) -> UnsupportedError:
    """The error for a file whose past cannot be kept in pages."""
    title = "The decoder" if node is None else f"{node.op.name} '{node.origins[0]}'"
    return UnsupportedError(
        f"{title}: {what}, so its past cannot be kept in pages; load the file by clrt.load, or "
        "give the model's own folder.",
        [] if node is None else [title],
    )
