"""In what families of decoders differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from clrt.models.decoders import family_options as by
from clrt.models.decoders import tensor_names
from clrt.models.decoders.decoder import DecoderConfig
from clrt.models.decoders.tensor_names import Names
from clrt.models.huggingface.config_values import ConfigValues


@dataclass(frozen=True)
class DecoderFamily:
    """One family.

    Attributes:
        names: What tensors are called.
        keys: What config.json calls the keys that are read here.
        defaults: Values of keys that it may leave out.
        fields: What holds for all decoders of the family.
        differences: What config.json decides beyond what it does for all families.
        windows: Layers with a window: all, or those that `kinds` names; both only if it has one.
        kinds: Whether each layer has a window, where config.json has no `layer_types`.
        turned: Whether each layer has a rotary embedding.
        rotary: Places turn Q and K; "interleaved" by pairs of neighbours.
        transposed: Matrices are stored `[inputs, outputs]`, but for embeddings.
        grouped: Q, K and V are stored as one, for each head of K: its heads of Q, K, V.
        experts: How gate and up projection of all experts are stored: each "alone", as one with
            the "halves" behind each other, or "transposed" with their outputs by turns.
        first_place: Rows of the table of places that precede that of place 0.
        encoder: What reads the source, by the values of config.json and the decoder; None for
            families without.
    """

    names: Names = field(default_factory=lambda: tensor_names.LLAMA)
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    differences: Callable[[ConfigValues], Mapping[str, Any]] = by.none
    windows: Literal["none", "all", "kinds"] = "none"
    kinds: Callable[[ConfigValues, int], list[bool]] = by.no_windows
    turned: Callable[[ConfigValues, int], list[bool]] = by.turned
    rotary: Literal["none", "halves", "interleaved"] = "halves"
    transposed: bool = False
    grouped: bool = False
    experts: Literal["alone", "halves", "transposed"] = "alone"
    first_place: int = 0
    encoder: Callable[[ConfigValues, DecoderConfig], DecoderConfig] | None = None
