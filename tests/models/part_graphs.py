"""Random graphs with many Concat, Split and Slice nodes."""

from __future__ import annotations

import numpy as np

from clrt.ir.graph import Graph
from tests.passes.helpers import graph_of


class _Lines:
    """Builds the text of a random graph, whose values differ only in the size of one axis.

    Attributes:
        rng: Source of all choices.
        shape: Type of the values, with {} in place of the size.
        axis: The axis.
        text: Lines so far: nodes and constants.
        values: Name and size of each value so far.
    """

    def __init__(self, seed: int, shape: str, axis: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape, self.axis = shape, axis
        self.text: list[str] = []
        self.values: list[tuple[str, int]] = []
        self._count = 0

    def pick(self) -> tuple[str, int]:
        """Returns name and size of a random value, mostly a recent one."""
        back = min(int(self.rng.geometric(0.35)), len(self.values))
        return self.values[-back]

    def type(self, size: int) -> str:
        return self.shape.format(size)

    def name(self, prefix: str = "t") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, *dims: int) -> str:
        name = self.name("w")
        self.text.append(f"const %{name}: float32[{','.join(map(str, dims))}] = ...")
        return name

    def add(self, op: str, size: int, *inputs: str) -> None:
        """Adds a node with one output; returns the output."""
        name = self.name()
        listed = ", ".join(f"%{i}" for i in inputs)
        self.text.append(f"%{name}: {self.type(size)} = {op}({listed})")
        self.values.append((name, size))

    def concat(self) -> None:
        some = [self.pick() for _ in range(self.rng.integers(2, 5))]
        total = sum(size for _, size in some)
        if total <= 96:
            self.add(f"Concat{{axis={self.axis}}}", total, *(name for name, _ in some))

    def split(self) -> None:
        name, size = self.pick()
        if size % 16:
            return
        parts = [self.name(), self.name()]
        left = ", ".join(f"%{p}: {self.type(size // 2)}" for p in parts)
        self.text.append(f"{left} = Split{{axis={self.axis}, num_outputs=2}}(%{name})")
        self.values += [(p, size // 2) for p in parts]

    def slice(self) -> None:
        name, size = self.pick()
        if size < 16:
            return
        start = int(self.rng.integers(0, size // 8)) * 8
        end = start + 8 * int(self.rng.integers(1, (size - start) // 8 + 1))
        bounds = [self.name("i") for _ in range(3)]
        for bound, number in zip(bounds, (start, end, self.axis), strict=True):
            self.text.append(f"const %{bound}: int64[1] = [{number}]")
        self.add("Slice", end - start, name, *bounds)

    def sum(self) -> None:
        name, size = self.pick()
        other = [v for v, n in self.values if n == size]
        self.add("Add", size, name, other[self.rng.integers(len(other))])

    def graph(self, inputs: str) -> Graph:
        """Returns the graph, with one or two intermediate values among its outputs."""
        last = self.values[-1][0]
        some = {self.values[self.rng.integers(1, len(self.values))][0] for _ in range(2)}
        outputs = ", ".join(f"%{n}" for n in sorted({last, *some}))
        return graph_of("\n".join(self.text) + "\n", inputs, outputs)


def image_graph(seed: int) -> Graph:
    """Returns convolutions, pools and sums of 9 x 6 images, and Concats of channels."""
    lines = _Lines(seed, "float32[N,{},9,6]", 1)
    lines.values.append(("x", 16))

    def conv(side: int, per_channel: bool = False) -> None:
        name, size = lines.pick()
        maps = size if per_channel else 8 * int(lines.rng.integers(1, 4))
        group = size if per_channel else 1
        w = lines.constant(maps, size // group, side, side)
        pads = ", ".join([str(side // 2)] * 4)
        op = f"Conv{{kernel_shape=[{side}, {side}], pads=[{pads}], group={group}}}"
        lines.add(op, maps, name, w)

    def pool() -> None:
        name, size = lines.pick()
        lines.add("MaxPool{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}", size, name)

    steps = (
        lambda: conv(1),
        lambda: conv(1),
        lambda: conv(3),
        lambda: conv(5),
        lambda: conv(3, per_channel=True),
        pool,
        lines.sum,
        lines.concat,
        lines.concat,
        lines.split,
        lines.slice,
    )
    conv(3)
    for _ in range(14):
        steps[lines.rng.integers(len(steps))]()
    return lines.graph("%x: float32[N,16,9,6]")


def matrix_graph(seed: int) -> Graph:
    """Returns products and elementwise ops of matrices, with parts along either axis."""
    axis = seed % 3
    shape = ("float32[{},32]", "float32[N,{}]", "float32[N,{},8]")[axis]
    lines = _Lines(seed, shape, min(axis, 1))
    lines.values.append(("x", 32))

    def product() -> None:
        name, size = lines.pick()
        if axis == 0:
            lines.add("MatMul", size, name, lines.constant(32, 32))
        elif axis == 1:
            columns = 8 * int(lines.rng.integers(1, 5))
            lines.add("MatMul", columns, name, lines.constant(size, columns))
        else:
            lines.add("MatMul", size, name, lines.constant(8, 8))

    def unary() -> None:
        name, size = lines.pick()
        lines.add(("Neg", "Abs", "Relu")[lines.rng.integers(3)], size, name)

    steps = (product, product, unary, lines.sum, lines.concat, lines.concat, lines.split)
    unary()
    for _ in range(14):
        (*steps, lines.slice)[lines.rng.integers(len(steps) + 1)]()
    return lines.graph(f"%x: {shape.format(32)}")
