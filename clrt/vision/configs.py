"""Values from the JSON files beside an image model."""

from __future__ import annotations

from typing import Any, TypeAlias

from clrt.errors import ModelError

RGB: TypeAlias = tuple[float, float, float]


def labels_of(config: dict[str, Any]) -> dict[int, str]:
    """Returns the class names by index, from `id2label` of a config.json; {} if it is missing.

    Raises:
        ModelError: `id2label` is not a map from integers to names.
    """
    labels = config.get("id2label") or {}
    try:
        return {int(k): str(v) for k, v in labels.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"id2label is not a map from numbers to names: {error}.") from error
