"""What programs made for sentence-transformers pass, under the names they use."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from clrt.errors import InputError, UnsupportedError

F = TypeVar("F", bound=Callable[..., Any])

CALL_OPTIONS = frozenset({"chunk_size", "num_workers", "pool", "save_to_cpu", "task"})
"""Arguments of `encode` and `predict` that change no result here."""

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
"""Arguments of constructors that change no result here."""

# Of torch; clrt runs on any GPU.
_GPUS = ("cuda", "hpu", "mps", "npu", "rocm", "xpu")

_log = logging.getLogger(__name__)


def ignore(owner: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Takes note of arguments that are ignored.

    Raises:
        TypeError: One is not known.
        InputError, UnsupportedError: One asks for another model than the folder's.
    """
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise TypeError(f"{owner} got an unexpected keyword argument {unknown[0]!r}")
    for name, value in given.items():
        if value is not None:
            _log.debug("%s ignores %s=%r, which changes no result.", owner, name, value)
    models = given.get("model_kwargs") or {}
    if "file_name" in models:
        raise InputError(
            f"{owner} takes no file_name; give the path of {models['file_name']!r} itself."
        )
    changes = given.get("config_kwargs") or given.get("config_args")
    if changes:
        raise UnsupportedError(
            f"{owner} does not change config.json by {', '.join(changes)}; write it into the file."
        )


def accepts_old_names(**names: str) -> Callable[[F], F]:
    """Lets a function take arguments under the names that releases of that package gave them.

    Args:
        names: The function's own name for each other one.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for other, own in names.items():
                if other in kwargs:
                    kwargs[own] = kwargs.pop(other)
            return function(*args, **kwargs)

        return cast(F, wrapped)

    return decorate


def device_name(device: Any) -> str | int | None:
    """A device as `clrt.load` takes it, of one as torch writes it ("cuda", "mps", "cuda:0").

    Raises:
        InputError: It is one of torch's by number; indices of clrt are others.
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
            f"device={str(device)!r} has a number of torch's; give the index of the device in "
            "clrt.devices()."
        )
    return "gpu"


def hub_cache(options: Mapping[str, Any]) -> Path | None:
    """The folder that `cache_folder` names, if it does: Hugging Face's cache for this model."""
    folder = options.get("cache_folder")
    return None if folder is None else Path(folder).expanduser()
