"""What config.json decides in some families: functions of its values to fields of `Decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clrt.importer.huggingface.config_values import ConfigValues

Fields = Mapping[str, Any]


def none(config: ConfigValues) -> Fields:
    """Nothing."""
    return {}


def no_window(config: ConfigValues, layer: int) -> bool:
    """No layer has a window."""
    return False


def upper_windows(config: ConfigValues, layer: int) -> bool:
    """Qwen: layers from `max_window_layers` on have one, if `use_sliding_window`."""
    first = config.integer("max_window_layers", default=28, least=0)
    return config.flag("use_sliding_window", False) and layer >= first
