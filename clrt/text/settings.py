"""Reads and validates the text configuration stored in a compiled model."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.models.compiled_file import read_extras
from clrt.text.modules import POOLING_MODES
from clrt.text.stages import stages_of
from clrt.text.tokenizer_files import TOKEN_KEYS

Settings = Mapping[str, Callable[[object], bool]]


def read_settings(path: Path, wanted: str | None = None) -> dict[str, Any]:
    """Returns the text configuration stored in a compiled model, by field name.

    Args:
        path: The compiled model.
        wanted: Name of the class that must run the model, for which the fields are validated. None
            accepts any class and validates nothing; the result then has the field "class".

    Raises:
        ModelError: The model has no text configuration, a damaged one, or one for another class.
    """
    settings = read_extras(path).get("encoder")
    if settings is None:
        raise ModelError(
            f"'{path}' contains no tokenizer; convert the model's folder, with its tokenizer.json, "
            "to get a text model."
        )
    if not isinstance(settings, dict) or str(settings.get("class")) not in TEXT_SETTINGS:
        raise ModelError(f"'{path}' was converted by another version of clrt; convert it again.")
    if wanted is None:
        return settings
    if settings["class"] != wanted:
        raise ModelError(f"'{path}' is not a {wanted}; open it with clrt.{settings['class']}.")
    checks = TEXT_SETTINGS[wanted]
    values = {name: value for name, value in settings.items() if name != "class"}
    if values.keys() - checks.keys() or checks.keys() - values.keys() - _OPTIONAL_FIELDS:
        raise ModelError(f"'{path}' was converted by another version of clrt; convert it again.")
    for name, holds in checks.items():
        if name in values and not holds(values[name]):
            raise ModelError(
                f"'{path}' is damaged: '{name}' of its encoder is {reprlib.repr(values[name])}; "
                "convert the model again."
            )
    if values["default_prompt_name"] not in (None, *values["prompts"]):
        raise ModelError(f"'{path}' is damaged: it lacks its default prompt; convert it again.")
    return values


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_limit(value: object) -> bool:
    return value is None or (type(value) is int and 0 < value < 1 << 31)


def _is_choice(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _are_prompts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _are_modes(value: object) -> bool:
    modes = value if isinstance(value, list) else []
    return bool(modes) and all(isinstance(m, str) and m in POOLING_MODES for m in modes)


def _is_normalizer(value: object) -> bool:
    options = ("lowercase", "strip_accents", "handle_chinese_chars")
    return isinstance(value, dict) and all(k in options and _is_choice(v) for k, v in value.items())


def _are_tokens(value: object) -> bool:
    tokens = value if isinstance(value, list) else [None]
    return all(
        isinstance(t, dict)
        and isinstance(t.get("content"), str)
        and all(k == "content" or (k in TOKEN_KEYS and _is_flag(v)) for k, v in t.items())
        for t in tokens
    )


_SHARED: Settings = {
    "max_length": _is_limit,
    "positions": _is_limit,
    "lower_case": _is_flag,
    "prompts": _are_prompts,
    "default_prompt_name": _is_name,
    "pad_token": _is_text,
    "truncation_side": lambda value: value in ("", "left", "right"),
    "padding_side": lambda value: value in ("", "left", "right"),
    "pads_left": _is_flag,
    "normalizer": _is_normalizer,
    "prefix_space": _is_choice,
    "token_types": _is_flag,
    "added_tokens": _are_tokens,
    "tokenizer": _is_text,
    "special_tokens": _is_flag,
    "ends": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_text, value)),
}
# Fields that files of earlier versions lack; absent ones keep their defaults.
_OPTIONAL_FIELDS = {"padding_side", "pads_left", "special_tokens", "ends", "stages"}

TEXT_SETTINGS: Mapping[str, Settings] = {
    "SentenceEncoder": {
        **_SHARED,
        "modes": _are_modes,
        "include_prompt": _is_flag,
        "stages": lambda value: stages_of(value) is not None,
        "normalize": _is_flag,
        "hidden": _is_limit,
        "truncate_dim": _is_limit,
        "similarity": _is_name,
    },
    "CrossEncoder": {**_SHARED, "activation": _is_name},
    "SparseEncoder": {
        **_SHARED,
        "strategy": lambda value: value in ("max", "sum"),
        "activation": lambda value: value in ("relu", "log1p_relu"),
        "max_active_dims": _is_limit,
        "similarity": _is_name,
    },
}
"""Class that runs the model -> stored field -> predicate that accepts valid values."""
