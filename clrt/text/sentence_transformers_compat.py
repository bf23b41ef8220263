"""Arguments of sentence-transformers: ignored options, old names, torch device names."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from clrt.errors import InputError, UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])

CALL_OPTIONS = frozenset({"chunk_size", "num_workers", "pool", "save_to_cpu", "task"})
"""Arguments of sentence-transformers' `encode` and `predict` that clrt ignores."""

LOAD_OPTIONS = frozenset(
    {
        "automodel_args",
        "backend",
        "cache_folder",
        "config_args",
        "config_kwargs",
        "local_files_only",
        "model_card_data",
        "model_kwargs",
        "processor_kwargs",
        "revision",
        "token",
        "tokenizer_args",
        "tokenizer_kwargs",
        "trust_remote_code",
        "use_auth_token",
    }
)
"""Arguments of sentence-transformers' constructors that clrt ignores."""

# torch device types that mean any GPU here.
_GPUS = ("cuda", "hpu", "mps", "npu", "rocm", "xpu")

_log = logging.getLogger(__name__)


def ignore(owner: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    """Logs ignored keyword arguments, and rejects unknown ones.

    Args:
        owner: Name of the class or function, for messages.
        options: Keyword arguments that `owner` has no parameter for.
        known: Names that may be ignored.

    Raises:
        TypeError: An argument is not in `known`.
        InputError, UnsupportedError: An argument selects another file or changes config.json.
    """
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise TypeError(f"{owner} got an unexpected keyword argument {unknown[0]!r}")
    for name, value in options.items():
        if value is not None:
            _log.debug("%s ignores %s=%r, which changes no result.", owner, name, value)
    models = options.get("model_kwargs") or {}
    if "file_name" in models:
        raise InputError(
            f"{owner} does not support file_name; give the path of {models['file_name']!r} itself."
        )
    changes = options.get("config_kwargs") or options.get("config_args")
    if changes:
        raise UnsupportedError(
            f"{owner} does not change config.json by {', '.join(changes)}; write it into the file."
        )


def accepts_old_names(**names: str) -> Callable[[F], F]:
    """Returns a decorator that renames keyword arguments of older sentence-transformers releases.

    Args:
        names: Old keyword -> the function's parameter.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(F, wrapped)

    return decorate


def device_name(device: Any) -> str | int | None:
    """Converts a torch device or its name ("cuda:0", "mps") to the `device` of `clrt.load`.

    A torch GPU becomes "gpu", a torch CPU "cpu". None, an index and other names stay unchanged.

    Raises:
        InputError: The torch device is a GPU with an index above 0; torch numbers devices
            differently.
    """
    if device is None or isinstance(device, int):
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu":
        return "cpu"
    if kind not in _GPUS:
        return str(device)
    if number not in ("", "0"):
        raise InputError(
            f"device={str(device)!r} has a torch device number; give the index of the device in "
            "clrt.devices()."
        )
    return "gpu"


def hub_cache(options: Mapping[str, Any]) -> Path | None:
    """Returns option `cache_folder`, a Hugging Face cache, as a path; None if it is not set."""
    folder = options.get("cache_folder")
    return None if folder is None else Path(folder).expanduser()
