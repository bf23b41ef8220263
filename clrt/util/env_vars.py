"""Environment variables that clrt reads: name, parser, default and help of each."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import platformdirs

from clrt.errors import ClrtError
from clrt.util.fast_dataclass import dataclass

T = TypeVar("T")
# Binary exponents of unit prefixes.
_UNIT_EXPONENTS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def _flag(text: str) -> bool:
    lowered = text.lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off"}:
        return False
    raise ValueError("expected 0 or 1")


def _one_of(*known: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"expected {', '.join(known[:-1])} or {known[-1]}")
        return text.lower()

    return parse


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


def whole_number(text: str, most: int = (1 << 63) - 1) -> int | None:
    """Parses a non-negative decimal integer; None if `text` is invalid or exceeds `most`.

    Only ASCII digits are valid.

    Args:
        text: Text to parse.
        most: Maximum number.
    """
    digits = text.lstrip("0")[: len(str(most)) + 1]  # int() refuses thousands of digits
    if not (text.isascii() and text.isdecimal()):
        return None
    return found if (found := int(digits or "0")) <= most else None


def bytes_of(text: str) -> int:
    """Parses a size in bytes: a number, or text such as "2GiB", "512 MiB" or "1.5e9".

    Raises:
        ValueError: The text is not a size, or the size is not positive.
    """
    short = text.strip().upper().removesuffix("B").removesuffix("I").strip()
    unit = short[-1:] if short[-1:] in ("K", "M", "G", "T") else ""
    try:
        nbytes = int(float(short.removesuffix(unit)) * (1 << _UNIT_EXPONENTS[unit]))
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes <= 0:
        raise ValueError("expected bytes, or text such as 2GiB")
    return nbytes


@dataclass(frozen=True)
class EnvVar(Generic[T]):
    """One environment variable, re-read at each `get`.

    Attributes:
        name: Name of the variable.
        parse: Converts the text to a value; raises ValueError if it is invalid.
        default: Value if the variable is unset or empty.
        help: One sentence for messages and the documentation.
    """

    name: str
    parse: Callable[[str], T]
    default: T
    help: str

    def get(self) -> T:
        """Returns the parsed value of the variable, or its default if it is unset or empty.

        Raises:
            ClrtError: The text cannot be parsed.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ClrtError(f"{self.name}={text!r} is not valid: {error}. {self.help}") from error

    @contextlib.contextmanager
    def set(self, text: str) -> Iterator[None]:
        """Context manager that sets the variable to a text, and restores it at the end."""
        before = os.environ.get(self.name)
        os.environ[self.name] = text
        try:
            yield
        finally:
            if before is None:
                del os.environ[self.name]
            else:
                os.environ[self.name] = before


DEVICE = EnvVar("CLRT_DEVICE", str, "auto", "auto, cpu, gpu, part of a device name, or an index.")
STRICT = EnvVar("CLRT_STRICT", _flag, False, "1 turns a host fallback into an error.")
EXPLAIN_PASSES = EnvVar(
    "CLRT_EXPLAIN_PASSES", _flag, False, "1 prints what passes did and why not."
)
CACHE_DIR = EnvVar("CLRT_CACHE_DIR", str, "", "Folder of compiled programs and tuning records.")
SELF_TEST = EnvVar(
    "CLRT_SELF_TEST",
    _one_of("auto", "always", "never"),
    "auto",
    "always or never tests a device before it is used; auto: a GPU with a driver that is new.",
)
TIERS = EnvVar(
    "CLRT_TIERS",
    _one_of("auto", "on", "off"),
    "auto",
    "off compiles programs before they run; on: first without optimization; auto: so on CPUs.",
)
TWINS = EnvVar(
    "CLRT_TWINS",
    _one_of("auto", "on", "off"),
    "auto",
    "Small plans on PoCL run on the calling thread: auto, on (all plans), off.",
)
MAX_PATCHES = EnvVar("CLRT_MAX_PATCHES", _number, -1, "Stop optimising after N patches, to bisect.")
VERIFY = EnvVar("CLRT_VERIFY", _flag, False, "1 verifies the whole graph after each pass.")
EXECUTABLES = EnvVar(
    "CLRT_EXECUTABLES", _flag, True, "0 neither stores nor uses the plans of earlier processes."
)
# Upper bounds on host resources that a model may use; see `clrt.util.host_limits`.
HOST_LIMIT = EnvVar(
    "CLRT_HOST_LIMIT", bytes_of, 2 << 30, "What a value may take on the host: 2GiB."
)
FOLD_LIMIT = EnvVar("CLRT_FOLD_LIMIT", bytes_of, 128 << 20, "By what folding may add: 128MiB.")
NODE_LIMIT = EnvVar(
    "CLRT_NODE_LIMIT", _number, 50_000, "Nodes of a model once its functions are inlined."
)
ITERATION_LIMIT = EnvVar(
    "CLRT_ITERATION_LIMIT", _number, 4_000_000, "Iterations of loops in one run."
)


def cache_dir() -> Path:
    """Returns the cache folder: CLRT_CACHE_DIR, else the platform's user cache folder.

    If the user has no home folder, the cache folder is below the folder for temporary files.
    """
    configured = CACHE_DIR.get()
    if configured:
        return Path(os.path.expanduser(configured))
    with contextlib.suppress(RuntimeError):  # newer versions of platformdirs; older ones return "~"
        folder = Path(platformdirs.user_cache_dir("clrt", False))
        if folder.is_absolute():
            return folder
    return Path(tempfile.gettempdir(), f"clrt-{os.getuid() if hasattr(os, 'getuid') else 0}")


ALL: tuple[EnvVar[str] | EnvVar[bool] | EnvVar[int], ...] = (
    DEVICE,
    STRICT,
    EXPLAIN_PASSES,
    CACHE_DIR,
    SELF_TEST,
    TIERS,
    TWINS,
    EXECUTABLES,
    MAX_PATCHES,
    VERIFY,
    HOST_LIMIT,
    FOLD_LIMIT,
    NODE_LIMIT,
    ITERATION_LIMIT,
)
