"""ONNX Runtime's descriptions of memory and allocators, without effect: clrt plans memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class OrtAllocatorType(IntEnum):
    """Kinds of memory allocators in ONNX Runtime's API; without effect in clrt."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """Uses of memory in ONNX Runtime's API; without effect in clrt."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """ONNX Runtime's description of memory; without effect in clrt.

    Attributes:
        name: Name of the memory, such as "Cpu".
        allocator_type: Kind of allocator.
        device_id: Number of the device.
        mem_type: Use of the memory.
    """

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_ARENA_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT


class OrtArenaCfg:
    """ONNX Runtime's settings for arena growth, accepted and ignored: clrt's plans size arenas.

    Attributes:
        settings: The constructor's arguments, unchanged.
    """

    def __init__(self, *settings: Any) -> None:
        self.settings = settings
