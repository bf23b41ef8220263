"""Infers the channel block size of com.microsoft.nchwc, which files do not state."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import onnx

from clrt.errors import UnsupportedError
from clrt.ops.decompositions.import_rules.microsoft.nchwc import NCHWC

# Channels per block of ONNX Runtime's NCHWc layout: on CPUs with AVX-512, and on others.
_WIDE, _NARROW = 16, 8


def block_of(graph: onnx.GraphProto) -> int:
    """Returns the number of channels per block in a graph with NCHWc layout: 8 or 16.

    The number mostly follows from the shapes of weights. If the shapes fit both numbers, the number
    that ONNX Runtime uses on this CPU is returned: by its documentation, such a file is only for
    the machine that wrote it.

    Raises:
        UnsupportedError: The weights fit both numbers, and the number for this CPU is unknown.
    """
    block = next(_evidence(graph), None) or _block_of_cpu()
    if block is None:
        raise UnsupportedError(
            "its layout is for the CPU on which it was saved, which the file does not name (save "
            "the model with ORT_ENABLE_EXTENDED or less)"
        )
    return block


def _evidence(graph: onnx.GraphProto) -> Iterator[int]:
    """Yields the block size, 8 or 16, of each node whose sizes fit only one of these numbers."""
    dims = {t.name: t.dims for t in graph.initializer}
    channels = {}
    for node in graph.node:
        if node.domain == NCHWC and node.op_type == "Conv" and node.input[1] in dims:
            outputs, inputs = dims[node.input[1]][:2]
            channels[node.output[0]] = outputs
            if outputs % _WIDE:
                yield _NARROW
            # Inputs are padded to full blocks, unless they are narrower than one.
            if inputs > _NARROW and inputs % _NARROW:
                yield _WIDE
        elif node.domain == NCHWC and node.op_type == "ReorderOutput":
            count = next((a.i for a in node.attribute if a.name == "channels"), 0)
            if channels.get(node.input[0], 0) - count >= _NARROW:
                yield _WIDE


def _block_of_cpu() -> int | None:
    """Returns the channels per block that ONNX Runtime uses on this CPU; None if it is unknown."""
    try:
        flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    except OSError:
        return None
    if platform.machine() != "x86_64":
        return None
    return _WIDE if "avx512f" in flags else _NARROW
