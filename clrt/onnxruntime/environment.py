"""ONNX Runtime's settings of the whole process: log, seed, threads and telemetry."""

from __future__ import annotations

import logging
from typing import Any

from clrt.onnxruntime.exceptions import RuntimeException
from clrt.onnxruntime.options import LOG

# Version of ONNX Runtime whose interface this package has.
VERSION = "1.32.0"
# Logging levels by ONNX Runtime's severity.
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def set_default_logger_severity(severity: int) -> None:
    """Sets the level of the logger "clrt.onnxruntime".

    Args:
        severity: Lowest severity of messages that are logged: 0 for all messages, 1 for
            information, 2 for warnings, 3 for errors, 4 for fatal errors.

    Raises:
        RuntimeException: `severity` is not 0 to 4.
    """
    if severity not in range(len(_LEVELS)):
        raise RuntimeException(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        )
    LOG.setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Has no effect: the logger has no levels below DEBUG."""
    LOG.debug("The log's verbosity %s is ignored.", verbosity)


def set_seed(seed: int) -> None:
    """Has no effect: a random op is seeded by its attribute `seed`, or else by its node's name."""
    LOG.debug("The seed %s is ignored: random ops draw by their own or by their name.", seed)


def set_global_thread_pool_sizes(
    intra_op_num_threads: int, inter_op_num_threads: int, *_: Any
) -> None:
    """Has no effect: OpenCL implementations have threads of their own.

    `SessionOptions.intra_op_num_threads` restricts a CPU device to some cores.
    """
    LOG.debug("The sizes of global thread pools are ignored.")


def enable_telemetry_events() -> None:
    """Has no effect: clrt has no telemetry."""


def disable_telemetry_events() -> None:
    """Has no effect: clrt has no telemetry."""


def create_and_register_allocator(*settings: Any) -> None:
    """Has no effect: clrt has no allocators to configure; each plan fixes its memory."""
    LOG.debug("The allocator %s is ignored: memory is planned.", settings)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Has no effect: OpenCL needs no vendor libraries besides the driver."""
    LOG.debug("preload_dlls is ignored: OpenCL needs no libraries of CUDA.")


def get_version_string() -> str:
    """Returns the version of ONNX Runtime whose interface this package has."""
    return VERSION


def get_build_info() -> str:
    """Returns the name of this implementation and the version of its interface."""
    return f"clrt with the interface of ONNX Runtime {VERSION}"


def has_collective_ops() -> bool:
    """Returns False: ops that communicate between processes are not supported."""
    return False
