"""Square matrix products by dtype: clrt, torch and CLBlast in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from benchmark.lab import Lab
from numpy.typing import NDArray

from clrt.errors import ClrtError
from clrt.ir.builder import Builder
from clrt.ir.dims import symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ops.matmul.matmul import MatMul
from clrt.ops.matmul.matmul_integer import MatMulInteger

from . import clblast
from .state import Found, Item, Place
from .torch_peer import time_products

SIZES = (1024, 2048, 4096, 8192)
KINDS = ("fp32", "tf32", "fp16", "int8")
_DTYPES = {"fp32": DType.FLOAT32, "fp16": DType.FLOAT16, "int8": DType.INT8}
_SECONDS = 0.5
# Of a size whose products take longer nothing is measured: some ten of each are.
_LONGEST_S = 4.0
# As many as take the kernel of all rows.
_CHECKED_ROWS = 128


def items() -> Iterator[Item]:
    """Yields one item per size."""
    for size in SIZES:
        yield Item("products", str(size), partial(measure, size=size), 300)


def measure(place: Place, size: int) -> Found:
    """Measures GFLOP/s by dtype and library, and the error of clrt's float32 against float64."""
    lab = Lab(str(place.device))
    ceiling = place.found.get("device", {}).get("report", {}).get("measured", {}).get("gflops")
    flop = 2.0 * size**3
    if ceiling and flop / (1e9 * ceiling) > _LONGEST_S:
        return {"note": f"a product would take {flop / (1e9 * ceiling):.0f} s here"}
    seconds: dict[str, dict[str, float]] = {"clrt": {}, "CLBlast": {}}
    found: Found = {}
    for kind in _DTYPES:
        try:
            seconds["clrt"][kind], found[f"{kind}_error"] = _clrt(lab, size, kind)
        except ClrtError as error:
            found[f"{kind}_note"] = str(error)
    for kind in ("fp32", "fp16") if clblast.is_there() else ():
        with suppress(clblast.ClBlastError, ClrtError):
            seconds["CLBlast"][kind] = clblast.time_product(lab, size, kind, _SECONDS)
    seconds["torch"] = time_products(size, lab.info.caps.is_cpu, _SECONDS)
    speeds = {
        library: {kind: 1e-9 * flop / time_s for kind, time_s in times.items()}
        for library, times in seconds.items()
    }
    return found | {"gflops": speeds}


def _clrt(lab: Lab, size: int, kind: str) -> tuple[float, float]:
    """Returns seconds on the device, and the largest relative error of a few rows."""
    rng = np.random.default_rng(0)
    dtype = _DTYPES[kind]
    a, b = (_matrix(rng, size, dtype) for _ in range(2))
    with lab.load(_graph(b, dtype)) as model:
        shapes = {"a": (size, size)}
        bound = model.bind(shapes, {})
        lab.fill(bound, {"a": a})
        time_s = lab.time_bound(bound, _SECONDS)
        rows = a[:_CHECKED_ROWS]
        expected = rows.astype(np.float64) @ b.astype(np.float64)
        actual = model.run({"a": rows})["y"].astype(np.float64)
    return time_s, float(np.abs(actual - expected).max() / np.abs(expected).max())


def _matrix(rng: np.random.Generator, size: int, dtype: DType) -> NDArray[Any]:
    if dtype is DType.INT8:
        return rng.integers(-128, 128, (size, size), np.int8)
    return rng.standard_normal((size, size), np.float32).astype(dtype.numpy)


def _graph(b: NDArray[Any], dtype: DType) -> Graph:
    """a times a constant, with any number of rows."""
    build = Builder()
    a = build.input("a", dtype, (symbol("rows"), b.shape[0]))
    op = MatMulInteger() if dtype is DType.INT8 else MatMul()
    return build.graph("product", [a], [build.add(op, a, build.constant(b))], ["y"])
