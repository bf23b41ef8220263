"""Panel layout of matrices, in which CPU GEMM kernels read constant weights."""

from __future__ import annotations

import re
from math import prod

import numpy as np

from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.kernels.spec import (
    BufferArg,
    DevicePacking,
    KernelSpec,
    Launch,
    PackedWeight,
    Scratch,
    launch,
)
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div, round_up

PACKED_ROWS = 64
"""Rows of K per work-item of the packing kernel."""
# Dtype that the packing kernel copies elements as, by element size in bytes.
_COPY_DTYPES = {2: DType.UINT16, 4: DType.UINT32}
# Without leading zeros, so that each size has one spelling: layout names are keys of weights.
_SIZE = "(0|[1-9][0-9]{0,9})"
_NAME = re.compile(
    rf"panels([1-9][0-9]{{0,3}}):{_SIZE}x{_SIZE}(:transposed(?:([1-9][0-9]{{0,9}}))?)?"
)


@dataclass(frozen=True)
class Panels:
    """Layout of a stack of K x N matrices as [stack, panel, K, width], zero-padded past column N.

    Attributes:
        k: Rows of a matrix.
        n: Columns of a matrix.
        width: Columns per panel.
        transposed: Whether the unpacked matrices are N x K.
        taps: Window elements of convolution weights [output channels, channels, taps], for which
            `transposed` must be set; 1 for matrices. Row k of a panel is then channel k % channels
            at tap k // channels.
    """

    k: int
    n: int
    width: int
    transposed: bool
    taps: int = 1

    @property
    def layout(self) -> str:
        """Name of this panel layout, which `named_panels` parses."""
        order = f":transposed{self.taps if self.taps > 1 else ''}" if self.transposed else ""
        return f"panels{self.width}:{self.k}x{self.n}{order}"

    def stack(self, shape: tuple[int, ...]) -> int:
        """Returns the number of matrices in an unpacked array of shape `shape`."""
        # Matrices with K = 0 have no elements to count by: count the leading axes instead.
        matrix = self.k * self.n
        return prod(shape) // matrix if matrix else prod(shape[:-2])

    def packed_shape(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Returns the shape of the panels; None if `shape` is not a stack of matrices of this size.

        Args:
            shape: Shape of the unpacked array.
        """
        stack = self.stack(shape)
        if stack * self.k * self.n != prod(shape):
            return None
        return (stack, ceil_div(self.n, self.width), self.k, self.width)

    def pack(self, array: Array) -> Array:
        """Packs a stack of matrices, or convolution weights, into panels on the host.

        Returns:
            [stack, panel, K, width], with K rows per matrix.
        """
        stack = self.stack(array.shape)
        if self.transposed:
            by_channel = array.reshape(stack, self.n, self.k // self.taps, self.taps)
            matrices = by_channel.transpose(0, 3, 2, 1)
        else:
            matrices = array.reshape(stack, 1, self.k, self.n)
        columns = round_up(self.n, self.width)
        padded = np.zeros((stack, *matrices.shape[1:3], columns), array.dtype)
        padded[..., : self.n] = matrices
        panels = padded.reshape(stack, self.k, columns // self.width, self.width)
        return np.ascontiguousarray(panels.swapaxes(1, 2))

    def restore(self, panels: Array, shape: tuple[int, ...]) -> Array:
        """Unpacks panels to an array of shape `shape`, a stack of matrices."""
        stack, count = panels.shape[:2]
        padded = panels.swapaxes(1, 2).reshape(stack, self.k, count * self.width)
        matrices = padded[:, :, : self.n]
        if self.transposed:
            by_tap = matrices.reshape(stack, self.taps, self.k // self.taps, self.n)
            matrices = by_tap.transpose(0, 3, 2, 1)
        return np.ascontiguousarray(matrices).reshape(shape)

    def of(self, value: Value) -> PackedWeight:
        """Returns the packed weight of a constant in this panel layout."""
        columns = round_up(self.n, self.width)
        size, stack = value.dtype.itemsize, self.stack(value.dims)
        nbytes = stack * self.k * columns * size
        rows = None
        if self.transposed and self.taps == stack == 1 and size in _COPY_DTYPES and self.k:
            dtype = _COPY_DTYPES[size]
            rows = DevicePacking(self.n, self.k * size, dtype, self.width, self._emit)
        return PackedWeight(value, self.layout, self.pack, nbytes, rows)

    def _emit(self, rows: Scratch, panels: Scratch, first: int, end: int) -> Launch:
        """Returns the launch that packs some rows of an N x K matrix.

        Args:
            rows: Buffer of the rows to pack.
            panels: Buffer of the whole packed weight.
            first: Index of the first row in the matrix.
            end: Index after the last row.
        """
        source, data_t = "matmul/pack_panels.cl", rows.dtype.cl
        kernel = KernelSpec.of(source, "pack_panels", ROWS=PACKED_ROWS, DATA_T=data_t)
        count = ceil_div(end - first, self.width)
        sizes = {"N": end - first, "K": self.k, "width": self.width, "d1": 1}
        steps = {"s0": 0, "s1": 0, "s_k": 1, "s_n": self.k, "columns": count * self.width}
        grid = (count, ceil_div(self.k, PACKED_ROWS), 1)
        to = BufferArg(panels, first * self.k)
        return launch(kernel, grid, (1, 1, 1), y=to, x=rows, **sizes, **steps)


def named_panels(layout: str) -> Panels | None:
    """Parses the name of a panel layout; returns None for other layouts."""
    match = _NAME.fullmatch(layout)
    if match is None:
        return None
    width, k, n = (int(match[i]) for i in (1, 2, 3))
    taps = int(match[5] or 1)
    return None if k % taps else Panels(k, n, width, bool(match[4]), taps)
