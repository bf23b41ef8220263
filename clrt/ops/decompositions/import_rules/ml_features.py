"""Feature ops of ai.onnx.ml: encoders, scalers, imputers, selection."""

from __future__ import annotations

from typing import Any

import numpy as np

from clrt.errors import ModelError, UnsupportedError, counted
from clrt.ir.dims import provably_equal
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.ops.decompositions.import_rules.import_builder import (
    ImportBuilder,
    register_import_decomposition,
)
from clrt.util.host_limits import text_array

_DOMAIN = "ai.onnx.ml"


def _lookup(body: ImportBuilder, x: Value, keys: Array, values: Array, default: Any) -> Value:
    """Adds a Lookup that maps x from `keys` to `values`; returns its output.

    Args:
        body: Builder.
        x: Tensor to map.
        keys: Keys, 1-D; if a key repeats, its first value is used.
        values: Value of each key.
        default: Value of elements of x that are not in `keys`.

    Raises:
        ModelError: The numbers of keys and values differ.
    """
    if len(keys) != len(values):
        raise ModelError(f"it has {counted(len(keys), 'key')} and {counted(len(values), 'value')}.")
    keys, first = np.unique(keys, return_index=True)
    values = values[first]
    kind = np.str_ if values.dtype.kind == "U" else values.dtype
    tables = (keys, values, np.array([default], kind))
    return body("Lookup", x, *map(body.constant, tables), domain="clrt")


@register_import_decomposition(_DOMAIN, "LabelEncoder")
def _label_encoder(body: ImportBuilder) -> None:
    if "classes_strings" in body.attrs:
        return _labels(body, "classes_strings")
    keys, _ = _table(body, "keys")
    values, kind = _table(body, "values")
    defaults = {"int64s": -1, "floats": -0.0, "strings": "_Unused"}
    if kind == "tensor":
        default_tensor = body.attrs.get("default_tensor")
        default = _no_default(values) if default_tensor is None else default_tensor.reshape(-1)[0]
    else:
        default = body.attrs.get(f"default_{kind[:-1]}", defaults[kind])
    body.outputs = [_lookup(body, body.inputs[0], keys, values, default)]


def _table(body: ImportBuilder, name: str) -> tuple[Array, str]:
    """Returns the keys or values of LabelEncoder, from the attribute that is set.

    Args:
        body: Builder.
        name: Prefix of the attribute: "keys" or "values".

    Returns:
        1-D array; and the suffix of the attribute: "int64s", "floats", "strings" or "tensor".
    """
    for kind, dtype in (("int64s", np.int64), ("floats", np.float32), ("strings", None)):
        values = body.attrs.get(f"{name}_{kind}")
        if values:
            return text_array(values) if dtype is None else np.asarray(values, dtype), kind
    return body.attrs[f"{name}_tensor"].reshape(-1), "tensor"


def _no_default(values: Array) -> Any:
    """Returns ONNX's default value of LabelEncoder for unknown keys, by the dtype of `values`."""
    if values.dtype.kind == "f":
        return -0.0
    return "_Unused" if values.dtype.kind == "U" else -1


def _labels(body: ImportBuilder, strings: str, ints: Array | None = None) -> None:
    """Maps input 0 from strings to numbers, or from numbers to strings, depending on its dtype.

    Args:
        body: Builder; its output is set.
        strings: Name of the attribute that lists the strings.
        ints: Number of each string; None for its index in the list.
    """
    texts = text_array(body.attrs[strings])
    numbers = np.arange(len(texts)) if ints is None else ints
    x = body.inputs[0]
    if body.input_dtype() is DType.STRING:
        result = _lookup(body, x, texts, numbers, body.attrs.get("default_int64", -1))
    else:
        result = _lookup(body, x, numbers, texts, body.attrs.get("default_string", "_Unused"))
    body.outputs = [result]


@register_import_decomposition(_DOMAIN, "CategoryMapper")
def _category_mapper(body: ImportBuilder) -> None:
    _labels(body, "cats_strings", np.asarray(body.attrs["cats_int64s"], np.int64))


@register_import_decomposition(_DOMAIN, "OneHotEncoder")
def _one_hot_encoder(body: ImportBuilder) -> None:
    x = body.inputs[0]
    if body.input_dtype() is DType.STRING:
        categories = text_array(body.attrs["cats_strings"])
    else:
        categories = np.asarray(body.attrs["cats_int64s"], np.int64)
        x = x if body.input_dtype() is DType.INT64 else body.cast(x, DType.INT64)
    size = len(categories)
    # For an unknown category, index `size` is all zeros in OneHot; Gather reports it as an error.
    numbers = np.arange(size)
    place = _lookup(body, x, categories, numbers, size)
    if not body.attrs.get("zeros", 1):
        place = body("Gather", body.constant(numbers), place)
    depth, values = body.ints(size), body.floats([0, 1])
    body.outputs = [body("OneHot", place, depth, values)]


@register_import_decomposition(_DOMAIN, "Scaler")
def _scaler(body: ImportBuilder) -> None:
    x, dtype = body.real()
    offset, scale = (
        body.constant(np.asarray(body.attrs.get(name, [default]), dtype.numpy))
        for name, default in (("offset", 0.0), ("scale", 1.0))
    )
    body.outputs = [body.cast(body("Mul", body("Sub", x, offset), scale), DType.FLOAT32)]


@register_import_decomposition(_DOMAIN, "Normalizer")
def _normalizer(body: ImportBuilder) -> None:
    """Decomposes Normalizer: divides each row by its maximum (MAX), L1 or L2 norm.

    A row whose norm is 0 stays unchanged.
    """
    norm = body.attrs.get("norm", "MAX")
    ops = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}
    if norm not in ops:
        raise UnsupportedError(f"norm '{norm}'")
    x = body.as_float32()
    size = body(ops[norm], x, body.ints(-1), keepdims=1)
    zero, one = (body.floats(v) for v in (0, 1))
    size = body("Where", body("Equal", size, zero), one, size)
    body.outputs = [body("Div", x, size)]


@register_import_decomposition(_DOMAIN, "Binarizer")
def _binarizer(body: ImportBuilder) -> None:
    dtype, threshold = body.input_dtype(), body.attrs.get("threshold", 0.0)
    limit = np.array(np.floor(threshold) if dtype.is_int else threshold, dtype.numpy)
    above = body("Greater", body.inputs[0], body.constant(limit))
    body.outputs = [body.cast(above, dtype)]


@register_import_decomposition(_DOMAIN, "Imputer")
def _imputer(body: ImportBuilder) -> None:
    dtype, x = body.input_dtype(), body.inputs[0]
    kind = "int64" if dtype.is_int else "float"
    values = body.constant(np.asarray(body.attrs[f"imputed_value_{kind}s"], dtype.numpy))
    wanted = np.array(body.attrs.get(f"replaced_value_{kind}", 0), dtype.numpy)
    missing = body("IsNaN", x) if wanted != wanted else body("Equal", x, body.constant(wanted))
    body.outputs = [body("Where", missing, values, x)]


@register_import_decomposition(_DOMAIN, "ArrayFeatureExtractor")
def _array_feature_extractor(body: ImportBuilder) -> None:
    body.input_dtype(1)
    x, x_type = body.inputs[0], body.types[0]
    flat = body("Reshape", body.inputs[1], body.ints(-1))
    chosen = body("Gather", x, flat, axis=-1)
    if x_type is not None and x_type.rank == 1:
        chosen = body("Unsqueeze", chosen, body.ints(0))
    body.outputs = [chosen]


@register_import_decomposition(_DOMAIN, "FeatureVectorizer")
def _feature_vectorizer(body: ImportBuilder) -> None:
    parts = []
    for index, width in enumerate(body.attrs["inputdimensions"]):
        x, x_type = body.as_float32(index), body.types[index]
        x = body.rows(x, index)
        if x_type is None or x_type.shape is None or not provably_equal(x_type.shape[-1], width):
            x = body("Pad", x, body.ints(0, 0, 0, width))
            ends = (body.ints(v) for v in (0, width, 1))
            x = body("Slice", x, *ends)
        parts.append(x)
    body.outputs = [body("Concat", *parts, axis=1)]
