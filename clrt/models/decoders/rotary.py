"""Reads the frequencies of rotary embeddings from config.json.

Newer files have `rope_parameters`, with an object for each kind of layer if kinds differ; older
files have `rope_scaling` and `rope_theta`. Both are read. Everything is computed in float32, as in
transformers.

Source: transformers, modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from clrt.ir.op import Array
from clrt.models.decoders.decoder import SLIDING, RopeConfig
from clrt.models.huggingface.config_values import ConfigValues
from clrt.util.fast_dataclass import dataclass

_ORIGINAL = "original_max_position_embeddings"
_LONGROPES = ("longrope", "su")  # "su" is the name in the first Phi-3


@dataclass(frozen=True)
class RotaryScope:
    """The values that the frequencies of a rotary embedding (RoPE) depend on.

    Attributes:
        config: All values of config.json.
        rope: Values of the object `rope_parameters` or `rope_scaling` in config.json.
        head_size: Elements of a head.
        rotary_dim: Rotated elements of a head.
        theta: RoPE base.
        trained: Maximum number of positions in config.json.
        context: Requested context length in tokens.
    """

    config: ConfigValues
    rope: ConfigValues
    head_size: int
    rotary_dim: int
    theta: float
    trained: int
    context: int

    @property
    def original(self) -> int:
        """Context length in tokens before RoPE scaling extended it; `trained` if not stored.

        Most files store it in the `rope_scaling` object, Phi-3 outside of it.
        """
        inside = self.rope.integer(_ORIGINAL, default=self.trained)
        return self.config.integer(_ORIGINAL, default=inside)

    @property
    def factor(self) -> float:
        """Extended context length / original context length."""
        return self.rope.number("factor", self.trained / self.original, least=1e-6, most=1e6)

    def powers(self, theta: float | None = None, width: int | None = None) -> Array:
        """Returns theta ** (2 i / width) of each rotated pair i, float32 `[rotary_dim / 2]`.

        Args:
            theta: RoPE base; None for `self.theta`.
            width: Number of elements to divide by; None for `rotary_dim`.
        """
        steps = np.arange(0, self.rotary_dim, 2, dtype=np.float32) / np.float32(
            width or self.rotary_dim
        )
        return np.asarray(np.power(np.float32(theta or self.theta), steps))


def read_rotary(
    config: ConfigValues, head_size: int, context: int, kind: str, interleaved: bool = False
) -> RopeConfig:
    """Reads the rotary embedding of layers with full attention, or of layers with a window.

    Args:
        config: Values with `rope_theta`, `partial_rotary_factor` and `max_position_embeddings`
            under these names.
        head_size: Elements of a head.
        context: Requested context length in tokens; dynamic frequencies depend on it.
        kind: FULL for the layers with full attention, SLIDING for those with a window.
        interleaved: Whether rotated pairs are adjacent elements.

    Raises:
        ModelError: A value is missing or wrong.
        UnsupportedError: The kind of scaling is unknown.
    """
    rope, theta = _rope_object(config, kind)
    scaling = rope.text("rope_type", rope.text("type", "default"))
    if scaling == "yarn" and "short_factor" in rope:  # the first Phi-3
        scaling = "longrope"
    if scaling not in _SCALINGS:
        raise rope.unsupported("rope_type", f"known are {', '.join(_SCALINGS)}")
    part = config.number("partial_rotary_factor", 1.0, least=0.0, most=1.0)
    part = rope.number("partial_rotary_factor", part, least=0.0, most=1.0)
    rotary_dim = head_size if scaling == "proportional" else int(head_size * part)
    if "rotary_dim" in config:  # GPT-J
        rotary_dim = config.integer("rotary_dim", most=head_size)
    if rotary_dim < 2 or rotary_dim % 2:
        raise config.wrong("partial_rotary_factor", f"a part of {head_size} that is even", part)
    trained = config.integer("max_position_embeddings", default=max(context, 1))
    scope = RotaryScope(config, rope, head_size, rotary_dim, theta, trained, context)
    with np.errstate(all="ignore"):
        frequencies, factor = _SCALINGS[scaling](scope)
        long_frequencies = (
            _longrope_frequencies(scope, "long_factor") if scaling in _LONGROPES else None
        )
    for array in (frequencies, long_frequencies):
        if array is not None and not np.isfinite(array).all():
            raise rope.wrong("rope_theta", "a number whose powers are finite", theta)
    frequencies = frequencies.astype(np.float32)
    if long_frequencies is None or np.array_equal(frequencies, long_frequencies):
        return RopeConfig(frequencies, interleaved, factor)
    return RopeConfig(frequencies, interleaved, factor, long_frequencies, scope.original)


def _rope_object(config: ConfigValues, kind: str) -> tuple[ConfigValues, float]:
    """Returns the values of config.json's object about RoPE, and the RoPE base.

    Args:
        config: Values of config.json.
        kind: FULL for the layers with full attention, SLIDING for those with a window.

    Returns:
        Values of the object, none if config.json has no such object; and the base.
    """
    local = kind == SLIDING and "rope_local_base_freq" in config  # Gemma 3
    key = "rope_local_base_freq" if local else "rope_theta"
    theta = config.number(key, 1e4, least=1.0, most=1e12)
    rope = config.inner("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    if kind in rope:
        rope = rope.inner(kind)
    elif local:  # in older files scaling applies only to layers without a window
        rope = ConfigValues(config.file, {})
    return rope, rope.number("rope_theta", theta, least=1.0, most=1e12)


def _default(scope: RotaryScope) -> tuple[Array, float]:
    """Computes unscaled RoPE frequencies: 1 / theta ** (2 i / rotary_dim) for pair i.

    Returns:
        Frequency of each rotated pair, float32 `[rotary_dim / 2]`; and 1, the multiplier of cosines
        and sines.

    Source: Su et al., RoFormer (2021).
    """
    return 1 / scope.powers(), 1.0


def _linear(scope: RotaryScope) -> tuple[Array, float]:
    """Computes RoPE frequencies, all divided by the same factor (linear scaling).

    Returns:
        Frequency of each rotated pair, float32 `[rotary_dim / 2]`; and 1, the multiplier of cosines
        and sines.

    Source: Chen et al., Position Interpolation (2023).
    """
    return 1 / scope.powers() / np.float32(scope.factor), 1.0


def _dynamic(scope: RotaryScope) -> tuple[Array, float]:
    """Computes RoPE frequencies for a base that grows with the requested context length.

    The base does not depend on the length of a sequence.

    Returns:
        Frequency of each rotated pair, float32 `[rotary_dim / 2]`; and 1, the multiplier of cosines
        and sines.

    Source: bloc97 and emozilla, NTK-aware scaled RoPE (2023).
    """
    factor, length, rotary_dim = scope.factor, max(scope.context, scope.trained), scope.rotary_dim
    growth = (factor * length / scope.trained) - (factor - 1)
    if rotary_dim <= 2 or growth <= 0:
        raise scope.rope.wrong("factor", "a number that leaves frequencies", factor)
    return 1 / scope.powers(scope.theta * growth ** (rotary_dim / (rotary_dim - 2))), 1.0


def _proportional(scope: RotaryScope) -> tuple[Array, float]:
    """Computes RoPE frequencies whose last ones are 0: the last pairs of a head are not rotated.

    The other frequencies are 1 / theta ** (2 i / head_size) for pair i, divided by a common factor.

    Returns:
        Frequency of each rotated pair, float32 `[rotary_dim / 2]`; and 1, the multiplier of cosines
        and sines.
    """
    part = scope.rope.number("partial_rotary_factor", 1.0, least=0.0, most=1.0)
    turning = int(part * scope.head_size // 2)
    frequencies = 1 / scope.powers(width=scope.head_size)
    frequencies[turning:] = 0
    return frequencies / np.float32(scope.rope.number("factor", 1.0, least=1e-6)), 1.0


def _llama3(scope: RotaryScope) -> tuple[Array, float]:
    """Computes RoPE frequencies as in Llama 3.1.

    Low frequencies are divided by a factor, high frequencies are unchanged, and frequencies between
    two limits are interpolated.

    Returns:
        Frequency of each rotated pair, float32 `[rotary_dim / 2]`; and 1, the multiplier of cosines
        and sines.

    Source: Llama 3.1's rope_scaling.
    """
    rope, frequencies, original = scope.rope, 1 / scope.powers(), scope.original
    low = rope.number("low_freq_factor", least=1e-6)
    high = rope.number("high_freq_factor", least=1e-6)
    if high <= low:
        raise rope.wrong("high_freq_factor", f"a number above low_freq_factor ({low:g})", high)
    waves = np.float32(2 * math.pi) / frequencies
    slowed = np.where(waves > original / low, frequencies / np.float32(scope.factor), frequencies)
    smooth = (original / waves - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * slowed / np.float32(scope.factor) + smooth * slowed
    is_between = (waves >= original / high) & (waves <= original / low)
    return np.where(is_between, between, slowed), 1.0


def _yarn(scope: RotaryScope) -> tuple[Array, float]:
    """Computes RoPE frequencies by YaRN.

    Low frequencies are divided by a factor, high frequencies are unchanged, and frequencies of the
    pairs between two limits are interpolated.

    Returns:
        Frequency of each rotated pair, `[rotary_dim / 2]`; and the multiplier of cosines and sines.

    Source: Peng et al., YaRN (2023); `mscale` and `mscale_all_dim` are DeepSeek's.
    """
    rope, factor, rotary_dim = scope.rope, scope.factor, scope.rotary_dim
    mscale, all_dim = (rope.number(k, 0.0, 0.0, 1e3) for k in ("mscale", "mscale_all_dim"))
    magnitude = _magnitude(factor, 1.0)
    if mscale and all_dim:
        magnitude = _magnitude(factor, mscale) / _magnitude(factor, all_dim)
    magnitude = rope.number("attention_factor", magnitude, least=0.0, most=1e6)

    def pair_of(rotations: float) -> float:
        """Returns the index of the pair that turns `rotations` times in the original context.

        The result may lie between two indices.
        """
        ratio = scope.original / (rotations * 2 * math.pi)
        return rotary_dim * math.log(ratio) / (2 * math.log(max(scope.theta, 1 + 1e-6)))

    low = pair_of(rope.number("beta_fast", 32.0, least=1e-6, most=1e6))
    high = pair_of(rope.number("beta_slow", 1.0, least=1e-6, most=1e6))
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(rotary_dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    unscaled = 1 - np.clip(ramp, 0, 1)
    powers = scope.powers()
    return 1 / (np.float32(factor) * powers) * (1 - unscaled) + 1 / powers * unscaled, magnitude


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _longrope(scope: RotaryScope) -> tuple[Array, float]:
    """Computes RoPE frequencies, each divided by a factor of its own.

    Sequences longer than the original context use another list of factors. As in transformers, all
    tokens of a sequence use the factors for its total length, so cached keys are recomputed once a
    sequence outgrows the original context.

    Returns:
        Frequency of each rotated pair in sequences up to the original context length, float32
        `[rotary_dim / 2]`; and the multiplier of cosines and sines.

    Source: Ding et al., LongRoPE (2024).
    """
    original, factor = scope.original, scope.factor
    frequencies = _longrope_frequencies(scope, "short_factor")
    growth = 1.0
    if factor > 1:
        growth = math.sqrt(1 + math.log(factor) / math.log(max(original, 2)))
    growth = scope.rope.number("attention_factor", growth, least=0.0, most=1e6)
    return frequencies, growth


def _longrope_frequencies(scope: RotaryScope, key: str) -> Array:
    """Returns each pair's frequency divided by its factor, float32 `[rotary_dim / 2]`.

    Args:
        scope: Values that the frequencies depend on.
        key: Key of the list of factors in `scope.rope`: "short_factor" or "long_factor".

    Raises:
        ModelError: The key is missing, or does not hold a number above 0 for each pair.
    """
    factors = np.array(scope.rope.numbers(key, scope.rotary_dim // 2), np.float32)
    if not (factors > 0).all():
        raise scope.rope.wrong(key, "a list of numbers above 0", scope.rope.get(key))
    return np.asarray(1 / (factors * scope.powers()), np.float32)


_SCALINGS: dict[str, Callable[[RotaryScope], tuple[Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    **dict.fromkeys(_LONGROPES, _longrope),
    "proportional": _proportional,
}
