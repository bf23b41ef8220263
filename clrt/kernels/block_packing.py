"""Packing of rows of GGUF blocks by the device: a kernel per layout, macros per block type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from clrt.formats.gguf.block_type import BlockType
from clrt.ir.cl_code import Define
from clrt.ir.dtypes import DType
from clrt.kernels.spec import BufferArg, DevicePacking, KernelSpec, Launch, Scratch, launch
from clrt.util.fast_dataclass import dataclass
from clrt.util.math import ceil_div


@dataclass(frozen=True)
class BlockPacking:
    """Launches that pack rows of GGUF blocks in the layout that one GEMM kernel reads.

    Attributes:
        entry: Name of the packing kernel and of its file.
        layout: Macros of the packing kernel that describe the layout.
        group: Rows that are packed together; the last group is padded.
        group_bytes: Packed size of a group in bytes.
        local: Work-items per work-group.
        items: Work-items per group; 0 for one per block of a row.
        sizes: Arguments of the packing kernel, besides the rows and the packed array.
    """

    entry: str
    layout: Mapping[str, Define]
    group: int
    group_bytes: int
    local: int = 1
    items: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)

    def of(self, type_: BlockType | None, n: int, k: int) -> DevicePacking | None:
        """Returns how the device packs a weight; None if the host has to.

        Args:
            type_: Block type of the rows; None if they are not GGUF blocks.
            n: Rows of the weight.
            k: Elements per row.
        """
        coding = None if type_ is None else type_.coding
        if type_ is None or coding is None or coding.reader is None:
            return None
        reader, factors = coding.reader, coding.factors
        blocks: dict[str, Define] = {
            "ELEMS": type_.elements,
            "BYTES": type_.nbytes,
            "BLOCK_LEVELS": reader.levels,
            "BLOCK_SCALE": reader.scale,
            "BLOCK_MINIMUM": reader.minimum,
            "SCALE_AT": factors[0],
            "MINIMUM_AT": factors[-1],
        }
        kernel = KernelSpec.of(f"matmul/{self.entry}.cl", self.entry, **blocks, **self.layout)
        file_blocks = k // type_.elements
        sizes = {**self.sizes, "file_blocks": file_blocks}

        def emit(rows: Scratch, packed: Scratch, first: int, end: int) -> Launch:
            to = BufferArg(packed, first // self.group * self.group_bytes)
            grid = (self.items or file_blocks, ceil_div(end - first, self.group))
            return launch(kernel, grid, (self.local, 1), y=to, x=rows, rows=end - first, **sizes)

        return DevicePacking(n, type_.row_bytes(k), DType.UINT8, self.group, emit)
