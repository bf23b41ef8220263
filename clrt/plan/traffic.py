"""Bytes that a launch moves between device memory and compute units."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.ir.graph import Node, Value
from clrt.kernels.spec import Buffer, BufferArg, Launch, PackedWeight, Scratch, StatusWord
from clrt.ops.base import Op
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes that a launch moves. Each buffer counts once, by the elements accessed if known.

    Attributes:
        read: Bytes read from inputs and weights. A table from which rows are gathered counts with
            at most the bytes written.
        written: Bytes written to outputs. An output that several launches assemble counts with at
            most the bytes read.
        scratch: Bytes of scratch buffers, read or written.
    """

    read: int
    written: int
    scratch: int

    @property
    def nbytes(self) -> int:
        """Sum of the bytes read, the bytes written and the bytes of scratch buffers."""
        return self.read + self.written + self.scratch


def traffic(nodes: Sequence[Node], launch: Launch) -> Traffic:
    """Computes the bytes that a launch reads and writes.

    Args:
        nodes: Nodes that the launch computes. The op of the first node determines which tensors are
            accessed only in part.
    """
    op = nodes[0].op_as(Op)
    index = op.memory_traits.partially_read_input
    gathered = None if index is None else nodes[0].inputs[index]
    read = written = scratch = gathered_bytes = 0
    for buffer, nbytes in accessed_bytes(launch).items():
        if isinstance(buffer, Scratch):
            scratch += nbytes
        elif isinstance(buffer, Value) and buffer.producer in nodes:
            written += nbytes
        elif gathered is not None and gathered is _unpacked(buffer):
            gathered_bytes = nbytes
        else:
            read += nbytes
    read += min(gathered_bytes, written)
    if op.memory_traits.partially_writes_output:
        written = min(written, read)
    return Traffic(read, written, scratch)


def _unpacked(buffer: Buffer) -> Buffer:
    """Returns the constant that a packed weight is made from; other buffers unchanged."""
    return buffer.value if isinstance(buffer, PackedWeight) else buffer


def accessed_bytes(launch: Launch) -> dict[Buffer, int]:
    """Returns the bytes that a launch accesses of each buffer, by the arguments' element counts.

    A packed weight, and a buffer argument without an element count, count as the whole buffer.
    Status words are left out.
    """
    elems_of: dict[Buffer, int | None] = {}
    for arg in launch.args:
        if isinstance(arg, BufferArg):
            previous = elems_of.get(arg.buffer, 0)
            is_whole = previous is None or arg.elems is None
            elems_of[arg.buffer] = None if is_whole else (previous or 0) + (arg.elems or 0)
    sizes: dict[Buffer, int] = {}
    for buffer in launch.buffers:
        if not isinstance(buffer, StatusWord):
            sizes[buffer], elems = buffer.nbytes, elems_of[buffer]
            if elems is not None and not isinstance(buffer, PackedWeight):
                sizes[buffer] = min(elems * buffer.dtype.itemsize, buffer.nbytes)
    return sizes
