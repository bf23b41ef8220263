"""Registers `clrt.onnxruntime` under the module name `onnxruntime`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from clrt.errors import warn_user
from clrt.onnxruntime.environment import VERSION

NAME = "onnxruntime"
# Modules that are registered under ONNX Runtime's names, outer ones first.
_MODULES = (
    "",
    ".capi",
    ".capi.onnxruntime_pybind11_state",
    ".capi._pybind_state",
    ".capi.onnxruntime_inference_collection",
    ".transformers",
    ".transformers.io_binding_helper",
)


class _Distribution(metadata.Distribution):
    """Package metadata for `importlib.metadata`, as if `onnxruntime` were installed."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n"

    def locate_file(self, path: object) -> Path:
        return Path(__file__).parent / str(path)


class _Finder(metadata.DistributionFinder):
    """Makes `importlib.metadata` find `_Distribution` under the name "onnxruntime"."""

    def find_spec(self, *_: object) -> None:
        """Returns None: modules need not be found, since `install` puts them in `sys.modules`."""

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> Iterator[metadata.Distribution]:
        if context is not None and context.name == NAME:
            yield _Distribution()


def install() -> None:
    """Makes `import onnxruntime` import `clrt.onnxruntime`, even if ONNX Runtime is installed.

    Call this before any module imports ONNX Runtime: modules that have imported ONNX Runtime keep
    using it. Later calls do nothing.
    """
    package = importlib.import_module("clrt.onnxruntime")
    before = sys.modules.get(NAME)
    if before is package:
        return
    if before is not None:
        warn_user(
            f"{NAME} was imported before clrt took its place; what has it goes on with it. Call "
            "install first."
        )
    for name in [m for m in sys.modules if m == NAME or m.startswith(f"{NAME}.")]:
        del sys.modules[name]
    for suffix in _MODULES:
        module = importlib.import_module(f"clrt.onnxruntime{suffix}")
        sys.modules[f"{NAME}{suffix}"] = module
    sys.meta_path.append(_Finder())
