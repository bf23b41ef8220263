"""What a launch moves between the device's memory and its cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clrt.ir.graph import Node, Value
from clrt.kernels.spec import Buffer, BufferArg, Launch, PackedWeight, Scratch, StatusWord
from clrt.ops.base import Op


@dataclass(frozen=True)
class Traffic:
    """Bytes that a launch moves: each buffer once, at the size of what lies there or is asked for.

    Attributes:
        read: Of inputs and weights. Of a table from which rows are taken no more counts than comes
            out.
        written: Of outputs. Of one that several launches put together no more counts than goes in.
        scratch: Of the node's own memory, read or written.
    """

    read: int
    written: int
    scratch: int

    @property
    def nbytes(self) -> int:
        """All of it."""
        return self.read + self.written + self.scratch


def traffic(nodes: Sequence[Node], launch: Launch) -> Traffic:
    """What a launch of a step with some nodes moves."""
    op = nodes[0].op
    assert isinstance(op, Op)
    picked = None if op.partially_read_input is None else nodes[0].inputs[op.partially_read_input]
    read = written = scratch = part = 0
    for buffer, nbytes in touched(launch).items():
        if isinstance(buffer, Scratch):
            scratch += nbytes
        elif isinstance(buffer, Value) and buffer.producer in nodes:
            written += nbytes
        elif picked is not None and picked is _held(buffer):
            part = nbytes
        else:
            read += nbytes
    read += min(part, written)
    if op.partially_writes_output:
        written = min(written, read)
    return Traffic(read, written, scratch)


def _held(buffer: Buffer) -> Buffer:
    """What a buffer was made from."""
    return buffer.value if isinstance(buffer, PackedWeight) else buffer


def touched(launch: Launch) -> dict[Buffer, int]:
    """The buffers that a launch works on, and the bytes of each, or of the part that it takes."""
    parts: dict[Buffer, int | None] = {}
    for arg in launch.args:
        if isinstance(arg, BufferArg):
            before = parts.get(arg.buffer, 0)
            whole = before is None or arg.elems is None
            parts[arg.buffer] = None if whole else (before or 0) + (arg.elems or 0)
    found: dict[Buffer, int] = {}
    for buffer in launch.buffers:
        if not isinstance(buffer, StatusWord):
            found[buffer], elems = buffer.nbytes, parts[buffer]
            if elems is not None and not isinstance(buffer, PackedWeight):
                found[buffer] = min(elems * buffer.dtype.itemsize, buffer.nbytes)
    return found
