"""Builds graphs of BERT-family encoders straight from Hugging Face checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clrt.importer.huggingface.checkpoint_graph import import_checkpoint

__all__ = ["import_checkpoint"]


def __getattr__(name: str) -> Any:
    """Imports the builder when it is first used: readers of model files need none of it."""
    if name == "import_checkpoint":
        from clrt.importer.huggingface.checkpoint_graph import import_checkpoint

        return import_checkpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
