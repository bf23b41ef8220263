"""A small decoder in NumPy with forward and backward pass; weights have Hugging Face's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = "NDArray[Any]"
"""float32; float64 where gradients are checked."""
Weights: TypeAlias = "dict[str, Floats]"

EPSILON = 1e-5
THETA = 10_000.0


@dataclass(frozen=True)
class Geometry:
    """Sizes of a network.

    Attributes:
        window: Attention window in tokens, the token itself included.
    """

    vocabulary: int
    hidden: int = 96
    layers: int = 2
    heads: int = 4
    intermediate: int = 256
    window: int = 64

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def new_weights(sizes: Geometry, rng: np.random.Generator, dtype: type = np.float32) -> Weights:
    """Returns initial weights: noise, and ones for norms."""
    made: Weights = {}

    def add(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        noise = rng.standard_normal((rows, columns)) * (scale / np.sqrt(columns))
        made[f"{name}.weight"] = noise.astype(dtype)

    add("model.embed_tokens", sizes.vocabulary, sizes.hidden)
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}"
        for part in "qkv":
            add(f"{prefix}.self_attn.{part}_proj", sizes.hidden, sizes.hidden)
        add(f"{prefix}.self_attn.o_proj", sizes.hidden, sizes.hidden, 0.5)
        add(f"{prefix}.mlp.gate_proj", sizes.intermediate, sizes.hidden)
        add(f"{prefix}.mlp.up_proj", sizes.intermediate, sizes.hidden)
        add(f"{prefix}.mlp.down_proj", sizes.hidden, sizes.intermediate, 0.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}.{norm}.weight"] = np.ones(sizes.hidden, dtype)
    made["model.norm.weight"] = np.ones(sizes.hidden, dtype)
    add("lm_head", sizes.vocabulary, sizes.hidden)
    return made


class Pass:
    """Forward and backward pass of a network over texts.

    Args:
        tokens: Token ids, `[texts, positions]`.
    """

    def __init__(self, sizes: Geometry, weights: Weights, tokens: NDArray[np.int64]) -> None:
        self._sizes, self._weights, self._tokens = sizes, weights, tokens
        self._kept: dict[str, Floats] = {}
        self.gradients: Weights = {}
        dtype = weights["model.norm.weight"].dtype
        half = sizes.head_size // 2
        places = tokens.shape[1]
        angles = np.outer(np.arange(places), THETA ** (-np.arange(half) / half))
        self._turn = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
        behind = np.arange(places)[:, None] - np.arange(places)
        seen = (behind >= 0) & (behind < sizes.window)
        self._hidden = np.where(seen, 0, -np.inf).astype(dtype)

    def loss(self, targets: NDArray[np.int64], counts: NDArray[np.bool_]) -> float:
        """Computes the mean cross entropy of the counted targets; fills `gradients`.

        Args:
            targets, counts: Token ids, and mask of the targets that count, `[texts, positions]`.
        """
        x = self._weights["model.embed_tokens.weight"][self._tokens.reshape(-1)]
        for layer in range(self._sizes.layers):
            x = x + self._attend(f"model.layers.{layer}", x)
            x = x + self._feed(f"model.layers.{layer}", x)
        x = self._norm("model.norm", x)
        logits = self._linear("lm_head", x)
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        rows, flat = np.arange(len(logits)), targets.reshape(-1)
        weight = (counts.reshape(-1) / max(int(counts.sum()), 1)).astype(logits.dtype)
        found = -np.log(logits[rows, flat] + 1e-30) @ weight
        logits[rows, flat] -= 1
        logits *= weight[:, None]
        self._back(logits)
        return float(found)

    def _back(self, d: Floats) -> None:
        d = self._norm_back("model.norm", self._linear_back("lm_head", d))
        for layer in reversed(range(self._sizes.layers)):
            d = d + self._feed_back(f"model.layers.{layer}", d)
            d = d + self._attend_back(f"model.layers.{layer}", d)
        table = np.zeros_like(self._weights["model.embed_tokens.weight"])
        np.add.at(table, self._tokens.reshape(-1), d)
        self.gradients["model.embed_tokens.weight"] = table

    def _linear(self, name: str, x: Floats) -> Floats:
        self._kept[name] = x
        made: Floats = x @ self._weights[f"{name}.weight"].T
        return made

    def _linear_back(self, name: str, d: Floats) -> Floats:
        self.gradients[f"{name}.weight"] = d.T @ self._kept[name]
        made: Floats = d @ self._weights[f"{name}.weight"]
        return made

    def _norm(self, name: str, x: Floats) -> Floats:
        factor = 1 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + EPSILON)
        unit = x * factor
        self._kept[name], self._kept[f"{name}.factor"] = unit, factor
        made: Floats = unit * self._weights[f"{name}.weight"]
        return made

    def _norm_back(self, name: str, d: Floats) -> Floats:
        unit = self._kept[name]
        self.gradients[f"{name}.weight"] = (d * unit).sum(axis=0)
        d = d * self._weights[f"{name}.weight"]
        inner = np.mean(d * unit, axis=1, keepdims=True)
        made: Floats = (d - unit * inner) * self._kept[f"{name}.factor"]
        return made

    def _attend(self, prefix: str, x: Floats) -> Floats:
        part = f"{prefix}.self_attn"
        x = self._norm(f"{prefix}.input_layernorm", x)
        q, k, v = (self._heads(self._linear(f"{part}.{n}_proj", x)) for n in "qkv")
        q, k = self._rotated(q), self._rotated(k)
        scores = q @ k.swapaxes(2, 3) * self._scale + self._hidden
        scores -= scores.max(axis=3, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=3, keepdims=True)
        self._kept |= {f"{part}.{n}": a for n, a in zip("qkvp", (q, k, v, scores), strict=True)}
        return self._linear(f"{part}.o_proj", self._rows(scores @ v))

    def _attend_back(self, prefix: str, d: Floats) -> Floats:
        part = f"{prefix}.self_attn"
        d = self._heads(self._linear_back(f"{part}.o_proj", d))
        q, k, v, p = (self._kept[f"{part}.{n}"] for n in "qkvp")
        dp = d @ v.swapaxes(2, 3)
        ds = p * (dp - (dp * p).sum(axis=3, keepdims=True)) * self._scale
        dq, dk = self._rotated(ds @ k, -1), self._rotated(ds.swapaxes(2, 3) @ q, -1)
        parts = (dq, dk, p.swapaxes(2, 3) @ d)
        back = [
            self._linear_back(f"{part}.{name}_proj", self._rows(one))
            for name, one in zip("qkv", parts, strict=True)
        ]
        return self._norm_back(f"{prefix}.input_layernorm", back[0] + back[1] + back[2])

    def _feed(self, prefix: str, x: Floats) -> Floats:
        x = self._norm(f"{prefix}.post_attention_layernorm", x)
        gate = self._linear(f"{prefix}.mlp.gate_proj", x)
        up = self._linear(f"{prefix}.mlp.up_proj", x)
        share = 1 / (1 + np.exp(-gate))
        kept = {"gate": gate, "up": up, "share": share}
        self._kept |= {f"{prefix}.mlp.{name}": a for name, a in kept.items()}
        return self._linear(f"{prefix}.mlp.down_proj", gate * share * up)

    def _feed_back(self, prefix: str, d: Floats) -> Floats:
        d = self._linear_back(f"{prefix}.mlp.down_proj", d)
        gate, up, share = (self._kept[f"{prefix}.mlp.{n}"] for n in ("gate", "up", "share"))
        silu = gate * share
        d_gate = d * up * (share + silu * (1 - share))
        d = self._linear_back(f"{prefix}.mlp.gate_proj", d_gate) + self._linear_back(
            f"{prefix}.mlp.up_proj", d * silu
        )
        return self._norm_back(f"{prefix}.post_attention_layernorm", d)

    @property
    def _scale(self) -> float:
        return float(self._sizes.head_size**-0.5)

    def _heads(self, x: Floats) -> Floats:
        """Splits heads: `[texts * positions, hidden]` to `[texts, heads, positions, size]`."""
        sizes = self._sizes
        return np.ascontiguousarray(
            x.reshape(*self._tokens.shape, sizes.heads, sizes.head_size).swapaxes(1, 2)
        )

    def _rows(self, x: Floats) -> Floats:
        return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, self._sizes.hidden)

    def _rotated(self, x: Floats, direction: int = 1) -> Floats:
        cos, sin = self._turn
        left, right = np.split(x, 2, axis=3)
        sin = sin * x.dtype.type(direction)
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=3)


class Adam:
    """Adam optimizer with clipped gradients.

    Source: D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2015.
    """

    _BETAS = 0.9, 0.98
    _LONGEST = 1.0

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._means = {name: np.zeros_like(w) for name, w in weights.items()}
        self._squares = {name: np.zeros_like(w) for name, w in weights.items()}
        self._steps = 0

    def step(self, gradients: Mapping[str, Floats], rate: float) -> None:
        """Updates the weights in place."""
        self._steps += 1
        length = sum(float(np.vdot(g, g)) for g in gradients.values()) ** 0.5
        clip = min(1.0, self._LONGEST / max(length, 1e-12))
        first, second = self._BETAS
        rate *= (1 - second**self._steps) ** 0.5 / (1 - first**self._steps)
        for name, weight in self._weights.items():
            gradient = gradients[name] * weight.dtype.type(clip)
            mean, square = self._means[name], self._squares[name]
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient * gradient - square)
            weight -= rate * mean / (np.sqrt(square) + 1e-8)
