"""What ONNX Runtime sets for the whole process: its log, seeds, threads and telemetry."""

from __future__ import annotations

import logging
from typing import Any

from clrt.onnxruntime.exceptions import RuntimeException
from clrt.onnxruntime.options import LOG

# The version whose interface this is.
VERSION = "1.32.0"
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


def set_default_logger_severity(severity: int) -> None:
    """From which level on the logger "clrt.onnxruntime" takes messages.

    Args:
        severity: 0 for all, 1 for information, 2 for warnings, 3 for errors, 4 for the fatal.

    Raises:
        RuntimeException: It is none of these.
    """
    if severity not in range(len(_LEVELS)):
        raise RuntimeException(
            "Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal"
        )
    LOG.setLevel(_LEVELS[severity])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Has no effect: the log has no levels below debugging."""
    LOG.debug("The log's verbosity %s is ignored.", verbosity)


def set_seed(seed: int) -> None:
    """Has no effect: random ops draw by their attribute `seed`, or by the node's name."""
    LOG.debug("The seed %s is ignored: random ops draw by their own or by their name.", seed)


def set_global_thread_pool_sizes(
    intra_op_num_threads: int, inter_op_num_threads: int, *_: Any
) -> None:
    """Has no effect: OpenCL has the threads; see `SessionOptions.intra_op_num_threads`."""
    LOG.debug("The sizes of global thread pools are ignored.")


def enable_telemetry_events() -> None:
    """Has no effect: clrt sends nothing anywhere."""


def disable_telemetry_events() -> None:
    """Has no effect: clrt sends nothing anywhere."""


def create_and_register_allocator(*settings: Any) -> None:
    """Has no effect: clrt plans its memory before it allocates any."""
    LOG.debug("The allocator %s is ignored: memory is planned.", settings)


def preload_dlls(
    cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None
) -> None:
    """Has no effect: OpenCL needs no library of a vendor's beside the driver."""
    LOG.debug("preload_dlls is ignored: OpenCL needs no libraries of CUDA.")


def get_version_string() -> str:
    """The version whose interface this is."""
    return VERSION


def get_build_info() -> str:
    """What this is."""
    return f"clrt with the interface of ONNX Runtime {VERSION}"


def has_collective_ops() -> bool:
    """Whether ops that speak to other processes can run: no."""
    return False
