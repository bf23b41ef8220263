"""Values of the JSON files beside a model of images."""

from __future__ import annotations

from typing import Any, TypeAlias

from clrt.errors import ModelError

RGB: TypeAlias = tuple[float, float, float]


def labels_of(config: dict[str, Any]) -> dict[int, str]:
    """The names of classes by number, as `id2label` of a config.json has them.

    Raises:
        ModelError: The numbers are none.
    """
    given = config.get("id2label") or {}
    try:
        return {int(k): str(v) for k, v in given.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(f"id2label is no map from numbers to names: {error}.") from error
