"""Reads ONNX files as `ModelProto`, with a clear message for anything that is not a model."""

from __future__ import annotations

import mmap
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from clrt.errors import InputError, ModelError, UnsupportedError, counted
from clrt.ir.mmap_arrays import remember_file
from clrt.ir.op import Array
from clrt.models.onnx.mmap_tensors import MAX_MODEL_BYTES, cut_tensors
from clrt.models.onnx.tensors import TensorReader

_MAX_NAME_CHARS = 1024  # maximum path length that a message shows in full


def read_model(
    source: str | Path | bytes | onnx.ModelProto,
) -> tuple[onnx.ModelProto, TensorReader]:
    """Reads an ONNX model without copying its large tensors.

    Args:
        source: A file, its bytes, or the model itself. Tensors of a `ModelProto` are copied once,
            since protobuf does not expose its memory.

    Returns:
        The model, in which tokens replace the elements of large tensors; and the reader of its
        tensors, external ones included. The elements are views of the bytes or of the mapped file,
        which must not be changed (see `mmap_tensors`).

    Raises:
        InputError: The source is of another type.
        ModelError: The file is missing, damaged, not ONNX, or has no graph.
        UnsupportedError: The opset is newer than the `onnx` package knows.
    """
    if isinstance(source, onnx.ModelProto):
        model, tensors, where = source, TensorReader(None), "The model"
    elif isinstance(source, bytes):
        where = f"The model of {counted(len(source), 'byte')}"
        model, views = _decode(source, where)
        tensors = TensorReader(None, views)
    elif not isinstance(source, (str, Path)):
        raise InputError(
            f"A model must be a path, bytes or an onnx.ModelProto; this is {type(source).__name__}."
        )
    else:
        path = Path(source)
        where = f"'{path}'"
        model, views = _decode(_map_file(path), where)
        tensors = TensorReader(path.parent, views)
    _check_graph(model, where)
    # protobuf returns names that are not UTF-8 as bytes.
    if bytes in set(map(type, _names(model))):
        raise ModelError(f"{where} has names that are not UTF-8; download or export it again.")
    check_opsets(model.opset_import, where)
    for function in model.functions:
        check_opsets(function.opset_import, f"Function '{function.name}' of {where}")
    return model, tensors


def normal_domain(domain: str) -> str:
    """Returns a domain as clrt's op registry names it: "" for "ai.onnx", others unchanged."""
    return "" if domain == "ai.onnx" else domain


def opsets_of(imports: Iterable[Any]) -> dict[str, int]:
    """Returns opset versions by domain, "" for ai.onnx.

    Args:
        imports: OperatorSetIdProto of a model or function.
    """
    return {normal_domain(i.domain): i.version for i in imports}


def check_opsets(imports: Iterable[Any], where: str) -> None:
    """Checks the version of ai.onnx; does nothing if it is not imported.

    Args:
        imports: OperatorSetIdProto of a model or function.
        where: Name of the model or function, for messages.

    Raises:
        ModelError: The version is below 1.
        UnsupportedError: The version is newer than the `onnx` package knows.
    """
    version = opsets_of(imports).get("")
    if version is not None and version < 1:
        raise ModelError(f"{where} uses ai.onnx opset {version}; the first is 1. Export it again.")
    newest = onnx.defs.onnx_opset_version()
    if version is not None and version > newest:
        raise UnsupportedError(
            f"{where} uses ai.onnx opset {version}; the installed onnx package supports up to "
            f"{newest}. Upgrade onnx, or export the model at an older opset."
        )


def _map_file(path: Path) -> bytes | mmap.mmap:
    """Maps a file; reads it into memory if it cannot be mapped (pipes, empty files).

    Raises:
        ModelError: The file is missing, a folder, 2 GiB or larger, or cannot be read.
    """
    try:
        if path.is_dir():
            raise ModelError(f"'{path}' is a folder, not an ONNX file; pass the file inside it.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_MODEL_BYTES:
                raise ModelError(
                    f"'{path}' has {size} bytes, but an ONNX file holds less than 2 GiB; export "
                    "the model with external data."
                )
            try:
                mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):
                return file.read()
            remember_file(mapping, path)
            return mapping
    except FileNotFoundError as error:
        raise ModelError(f"'{path}' does not exist; check the path.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        name = str(path) if len(str(path)) < _MAX_NAME_CHARS else f"{str(path)[:80]}…"
        raise ModelError(f"'{name}' cannot be read: {reason}.") from error


def _decode(data: bytes | mmap.mmap, where: str) -> tuple[onnx.ModelProto, dict[bytes, Array]]:
    """Parses a serialized model, with the data of its large tensors cut out (see `cut_tensors`).

    Args:
        where: Name of the model, for error messages.

    Returns:
        The model, with a short token in place of each large `raw_data`; and the cut `raw_data` by
        token, uint8 views of `data`.

    Raises:
        ModelError: The data are empty, a Git LFS pointer, or not an ONNX model.
    """
    if not len(data):
        raise ModelError(f"{where} is empty; download or export the model again.")
    if data[:512].startswith(b"version https://git-lfs"):
        raise ModelError(
            f"{where} is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`."
        )
    try:
        # protobuf only warns of fields that are not UTF-8.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rest, views = cut_tensors(data)
            return onnx.ModelProto.FromString(rest), views
    except (DecodeError, RecursionError) as error:
        kind = "a text file, not" if _is_text(data[:512]) else "truncated, damaged, or not"
        raise ModelError(
            f"{where} is {kind} an ONNX model ({counted(len(data), 'byte')}); "
            "download or export the model again."
        ) from error


def _is_text(head: bytes) -> bool:
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


def _names(model: onnx.ModelProto) -> list[str]:
    """Returns all names in a model: of values, nodes, ops, attributes, dims, functions, domains."""
    names = [i.domain for m in (model, *model.functions) for i in m.opset_import]
    for function in model.functions:
        names += (function.name, function.domain, *function.input, *function.output)
        names += _node_names(function.node)
    return names + _graph_names(model.graph)


def _graph_names(graph: onnx.GraphProto) -> list[str]:
    names = [graph.name]
    for info in (*graph.input, *graph.output, *graph.value_info):
        names.append(info.name)
        names += [d.dim_param for d in info.type.tensor_type.shape.dim]
    names += [t.name for t in graph.initializer]
    names += [s.values.name for s in graph.sparse_initializer]
    return names + _node_names(graph.node)


def _node_names(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    names: list[str] = []
    for node in nodes:
        names += (node.name, node.op_type, node.domain)
        names += node.input
        names += node.output
        for attr in node.attribute:
            names.append(attr.name)
            if attr.HasField("g"):
                names += _graph_names(attr.g)
    return names


def _check_graph(model: onnx.ModelProto, where: str) -> None:
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise ModelError(f"{where} holds no ONNX graph; export the model again.")
    if not model.graph.output:
        raise ModelError(f"{where} has a graph without outputs; export the model with outputs.")
    if not model.opset_import and model.ir_version >= 3:
        raise ModelError(f"{where} imports no opset, so its ops have no meaning; export it again.")
