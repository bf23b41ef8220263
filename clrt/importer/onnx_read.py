"""ONNX files to `ModelProto`: one clear sentence for whatever is no model."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from clrt.errors import ModelError, UnsupportedError

MIN_OPSET = 7


def read_model(source: str | Path | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, Path | None]:
    """The model, and the folder in which its external data lie (None where there is none).

    Raises:
        ModelError: The file is missing, damaged, not ONNX, or holds no graph.
        UnsupportedError: The opset is too old, or newer than the `onnx` package knows.
    """
    folder: Path | None = None
    if isinstance(source, onnx.ModelProto):
        model, where = source, "The model"
    elif isinstance(source, bytes):
        where = f"The model of {len(source)} bytes"
        model = _decode(source, where)
    else:
        path = Path(source)
        where, folder = f"'{path}'", path.parent
        model = _decode(_read_bytes(path), where)
    _check_graph(model, where)
    check_opsets(model.opset_import, where)
    for function in model.functions:
        check_opsets(function.opset_import, f"Function '{function.name}' of {where}")
    return model, folder


def normal_domain(domain: str) -> str:
    """The domain as the op registry has it: "" for ai.onnx."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(imports: Iterable[Any]) -> dict[str, int]:
    """Opset versions by domain."""
    return {normal_domain(i.domain): i.version for i in imports}


def check_opsets(imports: Iterable[Any], where: str) -> None:
    """Refuses versions of ai.onnx that clrt does not know.

    Raises:
        UnsupportedError: The version is too old or too new.
    """
    version = opsets_of(imports).get("")
    newest = onnx.defs.onnx_opset_version()
    if version is not None and version < MIN_OPSET:
        raise UnsupportedError(
            f"{where} uses ai.onnx opset {version}; clrt reads {MIN_OPSET} to {newest}. "
            "Convert it with onnx.version_converter.convert_version, or export it again."
        )
    if version is not None and version > newest:
        raise UnsupportedError(
            f"{where} uses ai.onnx opset {version}; the onnx package here knows up to {newest}. "
            "Upgrade onnx, or export the model at an older opset."
        )


def _read_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise ModelError(f"'{path}' is a folder, not an ONNX file; pass the file inside it.")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"'{path}' does not exist; check the path.") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' cannot be read: {error}.") from error


def _decode(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{where} is empty; download or export the model again.")
    if data.startswith(b"version https://git-lfs"):
        raise ModelError(
            f"{where} is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`."
        )
    try:
        # A broken UTF-8 field is only warned of.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return onnx.ModelProto.FromString(data)
    except (DecodeError, RecursionError) as error:
        kind = "a text file, not" if _is_text(data) else "truncated, damaged, or not"
        raise ModelError(
            f"{where} is {kind} an ONNX model ({len(data)} bytes); "
            "download or export the model again."
        ) from error


def _is_text(data: bytes) -> bool:
    head = data[:512]
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


def _check_graph(model: onnx.ModelProto, where: str) -> None:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{where} holds no ONNX graph; export the model again.")
    if not model.graph.output:
        raise ModelError(f"{where} has a graph without outputs; export the model with outputs.")
    if not model.opset_import:
        raise ModelError(f"{where} imports no opset, so its ops have no meaning; export it again.")
