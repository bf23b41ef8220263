"""Tunes the kernels that dominate models' run time; faster tunables are kept as records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.conv.conv import Conv
from clrt.ops.matmul.matmul import MatMul
from clrt.tools.tune import Tuner, encoder_layer

from .state import Found, Item, Place

_HEADS, _SIZE = 12, 64


@dataclass(frozen=True)
class TuningCase:
    """A model to tune, and its input shapes."""

    make: Callable[[], Graph]
    shapes: Sequence[Mapping[str, tuple[int, ...]]]


def items() -> Iterator[Item]:
    """Yields one item per case."""
    for name in CASES:
        yield Item("tuning", name, partial(tune, name=name), 300)


def tune(place: Place, name: str) -> Found:
    """Tunes a case: returns old and new tunables and the time ratio; keeps the better ones."""
    from clrt.kernels.tuning_records import new_record, save
    from clrt.runtime.model.model import load

    case, before = CASES[name], place.found.get("tuning", {}).values()
    tuned = {kernel["kernel"] for run in before for kernel in run.get("kernels", ())}
    with load(case.make(), device=place.device, strict=True) as model:
        # The first plans compile, which the tuner's budget is not for.
        results = Tuner(model, case.shapes, 0.7 * place.most_s, kept=tuned).run()
        caps = model.device.caps
    better = [r for r in results if r.after != r.before]
    if better:
        save([new_record(r.kernel, caps, r.after) for r in better])
    return {"kernels": [asdict(r) for r in results]}


def _products() -> Graph:
    """[rows, 2048] times a constant, as in a decoder."""
    build = Builder()
    x = build.input("x", DType.FLOAT32, (symbol("rows"), 2048))
    weights = np.random.default_rng(0).standard_normal((2048, 2048), np.float32)
    y = build.add(MatMul(), x, build.constant(weights))
    return build.graph("product", [x], [y], ["y"])


def _attention() -> Graph:
    build = Builder()
    width = _HEADS * _SIZE
    q = build.input("q", DType.FLOAT32, (1, symbol("queries"), width))
    k, v = (build.input(n, DType.FLOAT32, (1, symbol("keys"), width)) for n in "kv")
    y = build.add(FusedAttention.plain(_HEADS, _SIZE), q, k, v)
    return build.graph("attention", [q, k, v], [y], ["y"])


def _convolution() -> Graph:
    """Two of ResNet-50's."""
    build, rng = Builder(), np.random.default_rng(0)
    x = build.input("x", DType.FLOAT32, (symbol("batch"), 64, 56, 56))
    shapes = ((64, 64, 3, 3), (256, 64, 1, 1))
    square, point = (build.constant(rng.standard_normal(s, np.float32)) for s in shapes)
    y = build.add(Conv((3, 3), pads=(1, 1, 1, 1)), x, square)
    z = build.add(Conv((1, 1)), y, point)
    return build.graph("convolution", [x], [z], ["z"])


def _texts(*pairs: tuple[int, int]) -> list[dict[str, tuple[int, ...]]]:
    return [{"x": (batch, sequence, 768)} for batch, sequence in pairs]


def _keys(*pairs: tuple[int, int]) -> list[dict[str, tuple[int, ...]]]:
    width = _HEADS * _SIZE
    return [{"q": (1, q, width), "k": (1, k, width), "v": (1, k, width)} for q, k in pairs]


# A kernel is tuned in the first case that has it.
CASES: Mapping[str, TuningCase] = {
    "attention": TuningCase(_attention, _keys((512, 512), (1, 1024))),
    "products": TuningCase(encoder_layer, _texts((1, 128), (8, 128))),
    "few rows": TuningCase(_products, [{"x": (1, 2048)}, {"x": (4, 2048)}]),
    "convolution": TuningCase(_convolution, [{"x": (1, 64, 56, 56)}]),
}
