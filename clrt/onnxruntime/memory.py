"""ONNX Runtime's descriptions of memory and allocators, without effect: clrt plans memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class OrtAllocatorType(IntEnum):
    """Kind of an allocator."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """Purpose of memory."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


@dataclass(frozen=True)
class OrtMemoryInfo:
    """Description of memory: allocator, device and purpose."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_ARENA_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT


class OrtArenaCfg:
    """Settings for the growth of ONNX Runtime's arenas, without effect: plans size clrt's.

    Attributes:
        settings: Arguments as passed.
    """

    def __init__(self, *settings: Any) -> None:
        self.settings = settings
