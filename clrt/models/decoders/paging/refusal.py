"""The error for decoders whose past cannot be paged."""

from __future__ import annotations

from clrt.errors import UnsupportedError
from clrt.ir.graph import Node


def refusal(what: str, node: Node | None = None) -> UnsupportedError:
    """Returns the error for a decoder whose past keys and values cannot be kept in pages.

    Args:
        what: The reason, as a clause about the node or decoder: "it has a mask and is_causal".
        node: The node that causes it; None if the decoder as a whole does.
    """
    title = "The decoder" if node is None else f"{node.op.name} '{node.origins[0]}'"
    return UnsupportedError(
        f"{title}: {what}, so its past cannot be converted to a paged cache; load the file by "
        "clrt.load, or give the original model's folder.",
        [] if node is None else [title],
    )
