"""How the families of decoders differ, as data.

The defaults of `Family` are Llama's; others state their differences: what tensors and keys of
config.json are called, and what these mean for the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clrt.importer.huggingface.config_values import ConfigValues
from clrt.importer.language import differences as by
from clrt.importer.language import tensor_names
from clrt.importer.language.tensor_names import Names


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        names: What tensors are called.
        keys: What config.json calls the keys that are read here.
        defaults: Values of keys that it may leave out.
        fields: What holds for all decoders of the family.
        differences: What config.json decides beyond what it does for all families.
        windows: Layers with a window: all, or those that `kinds` names; both only if it has one.
        kinds: Whether a layer has a window, where config.json has no `layer_types`.
        rotary: Places turn Q and K; "interleaved" by pairs of neighbours.
        inner: The object of config.json that describes the decoder.
        transposed: Matrices are stored `[inputs, outputs]`, but for embeddings.
        grouped: Q, K and V are stored as one, for each head of K: its heads of Q, K, V.
    """

    names: Names = field(default_factory=lambda: tensor_names.LLAMA)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    differences: Callable[[ConfigValues], Mapping[str, Any]] = by.none
    windows: Literal["none", "all", "kinds"] = "none"
    kinds: Callable[[ConfigValues, int], bool] = by.no_window
    rotary: Literal["none", "halves", "interleaved"] = "halves"
    inner: str = ""
    transposed: bool = False
    grouped: bool = False


_LLAMA = Family(defaults={"max_position_embeddings": 2048})

_MISTRAL = Family(
    windows="all", defaults={"sliding_window": 4096, "max_position_embeddings": 131072}
)

_QWEN2 = Family(windows="kinds", kinds=by.upper_windows, defaults={"sliding_window": 4096})

_QWEN3 = Family(
    windows="kinds",
    kinds=by.upper_windows,
    defaults={"sliding_window": 4096, "head_dim": 128},
    fields={"qk_norm": "head"},
)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": _QWEN3,
}
