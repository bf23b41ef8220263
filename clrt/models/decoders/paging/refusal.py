"""The error for decoders whose past cannot be paged."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node


def refusal(what: str, node: Node | None = None) -> UnsupportedError:
    """Returns the error for a file whose past cannot be kept in pages.

    Args:
        what: The reason.
        node: The node that causes it; None for the decoder as a whole.
    """
    title = "The decoder" if node is None else f"{node.op.name} '{node.origins[0]}'"
    return UnsupportedError(
        f"{title}: {what}, so its past cannot be kept in pages; load the file by clrt.load, or "
        "give the model's own folder.",
        [] if node is None else [title],
    )
