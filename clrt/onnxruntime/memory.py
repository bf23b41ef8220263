"""How ONNX Runtime describes memory; clrt plans its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class OrtAllocatorType(IntEnum):
    """Who gives memory."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """What memory is for."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """A kind of memory."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_ARENA_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT


class OrtArenaCfg:
    """How an arena grows in ONNX Runtime; clrt's has the size that a plan says.

    Attributes:
        settings: As they were given.
    """

    def __init__(self, *settings: Any) -> None:
        self.settings = settings
