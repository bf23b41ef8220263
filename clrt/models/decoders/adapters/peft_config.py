"""Reads adapter_config.json of a peft adapter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from clrt.errors import UnsupportedError
from clrt.models.huggingface.config_values import ConfigValues
from clrt.models.huggingface.model_files import read_object

CONFIG = "adapter_config.json"
# Options by which an adapter is not just a product of two matrices per module.
_UNSUPPORTED = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "target_parameters",
    "trainable_token_indices",
    "velora_config",
)
_KNOWN_USES = ("use_rslora", "use_dora")
# Initialisations that also change the base model's weights.
_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga", "mica")
_MAX_RANK, _MAX_ALPHA = 1 << 20, 1e9
# Limits of regular expressions, which are untrusted and might take long.
_MAX_PATTERN, _MAX_REPEATS = 200, 3
_REPEATED_GROUP = re.compile(r"\)[*+{]|\\\d|\(\?")
_REPEATS = re.compile(r"(?<!\\)[*+{]")


class PeftConfig:
    """The settings in adapter_config.json.

    Attributes:
        base: Name of the base model, for messages; "" if there is none.
        is_dora: Whether the adapter is a DoRA adapter, which also sets norms of rows or columns.
        ties: Whether changes of the embeddings also apply to a tied head.

    Args:
        folder: The adapter's folder.

    Raises:
        ModelError: adapter_config.json is missing, or a value in it is wrong.
        UnsupportedError: The adapter is not a LoRA adapter, or uses an unsupported option.
    """

    def __init__(self, folder: Path) -> None:
        file = folder / CONFIG
        config = ConfigValues(file, read_object(file))
        _check_kind(config)
        self._rank = config.integer("r", 8, most=_MAX_RANK)
        self._alpha = config.number("lora_alpha", 8.0, least=-_MAX_ALPHA, most=_MAX_ALPHA)
        self._is_stabilised = config.flag("use_rslora", False)
        self._ranks = _patterns(config, "rank_pattern")
        self._alphas = _patterns(config, "alpha_pattern")
        self.base = config.text("base_model_name_or_path", "")[:80]
        self.is_dora = config.flag("use_dora", False)
        self.ties = config.flag("ensure_weight_tying", False)

    def rank(self, module: str) -> int:
        """Returns the rank of a module's LoRA matrices.

        Args:
            module: Dotted name of the module in transformers.
        """
        return int(_matching(self._ranks, module, self._rank))

    def scale(self, module: str) -> float:
        """Returns the factor of a module's low-rank product.

        This is alpha / rank, or for rsLoRA alpha / sqrt(rank).

        Args:
            module: Dotted name of the module in transformers.

        Source: Hu et al., LoRA (2021); Kalajdzievski, rsLoRA (2023).
        """
        rank, alpha = self.rank(module), _matching(self._alphas, module, self._alpha)
        return alpha / (math.sqrt(rank) if self._is_stabilised else rank)


def _check_kind(config: ConfigValues) -> None:
    kind = config.text("peft_type", "LORA")
    if kind != "LORA":
        raise config.unsupported("peft_type", "'LORA' is")
    uses = [key for key in config if key.startswith("use_") and key not in _KNOWN_USES]
    for key in (*_UNSUPPORTED, *uses):
        if config.get(key) not in (None, False, [], {}):
            raise UnsupportedError(
                f"{config.file} has '{key[:80]}', which clrt cannot merge; merge the adapter into "
                "its model by peft's merge_and_unload, and load the result."
            )
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGING):
        raise UnsupportedError(
            f"{config.file} gives 'init_lora_weights' as {start[:80]!r}, which also changes the "
            "base model; save the adapter with path_initial_model_for_weight_conversion, as a "
            "plain LoRA adapter."
        )


def _patterns(config: ConfigValues, key: str) -> Mapping[re.Pattern[str], float]:
    """Returns the ranks or alphas that adapter_config.json sets for some modules only.

    Args:
        config: Values of adapter_config.json.
        key: "rank_pattern" or "alpha_pattern".

    Returns:
        Numbers by regular expression; an expression matches the end of a module's dotted name.

    Raises:
        ModelError: A pattern is invalid, or its number out of range.
        UnsupportedError: A pattern might take long to match.
    """
    inner = config.inner(key)
    numbers: dict[re.Pattern[str], float] = {}
    for pattern in inner:
        most = _MAX_RANK if key == "rank_pattern" else _MAX_ALPHA
        slow = len(pattern) > _MAX_PATTERN or _REPEATED_GROUP.search(pattern)
        if slow or len(_REPEATS.findall(pattern)) > _MAX_REPEATS:
            raise UnsupportedError(
                f"{config.file} has in '{key}' the pattern {pattern[:80]!r}, whose search may take "
                "long; replace it by the names of the modules."
            )
        try:
            compiled = re.compile(rf"(.*\.)?({pattern})$")
        except re.error as error:
            raise inner.wrong(pattern[:80], "a name or a regular expression", str(error)) from error
        if key == "rank_pattern":
            numbers[compiled] = inner.integer(pattern, most=_MAX_RANK)
        else:
            numbers[compiled] = inner.number(pattern, least=-most, most=most)
    return numbers


def _matching(patterns: Mapping[re.Pattern[str], float], module: str, default: float) -> float:
    return next((n for pattern, n in patterns.items() if pattern.match(module)), default)
