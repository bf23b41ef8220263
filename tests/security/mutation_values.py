"""Extreme and random values that mutants contain instead of the original ones."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from clrt.ops import REGISTRY

TEXTS = (
    "",
    "\0",
    "a\nb",
    '"',
    "'",
    "\\",
    "0\n#define IDX_T char\n",
    '2\n__asm__ volatile("syscall");//',
    "SUM",
    "MAX",
    "nearest",
    "BRANCH_LT",
    "LEAF",
    "none",
    "ij,jk->ik",
    "...i->",
    "SAME_LOWER",
    "NOTSET",
    "bidirectional",
    "Relu",
    "%s{}{0}",
    "é\u2028",
    "x" * 100_000,
    "(a+)+$",
)
INTS = (0, 1, 2, 3, 7, 8, 65, -1, -2, 255, 10**6, 10**9, 2**31 - 1, 2**31, -(2**31), 2**63 - 1,
        -(2**63))  # fmt: skip
FLOATS = (0.0, -0.0, 0.5, -1.0, 1e-45, 1e30, 3e38, float("inf"), float("-inf"), float("nan"))
NAMES = tuple(name for _, name in REGISTRY.all_classes())
DOMAINS = ("", "clrt", "com.microsoft", "ai.onnx.ml", "own", "ai.onnx", "x\ny")


def any_int(rng: Random) -> int:
    return rng.choice(INTS) if rng.random() < 0.7 else rng.randint(-4, 20)


def some(rng: Random, make: Callable[[Random], Any]) -> list[Any]:
    return [make(rng) for _ in range(rng.choice((0, 1, 2, 3, 4, 9, 70)))]


def flipped(rng: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed))] if rng.random() < 0.2 else changed)
