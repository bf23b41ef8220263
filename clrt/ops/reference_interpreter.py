"""Interpreter that runs a graph by the ops' NumPy references: the oracle of tests and fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from clrt.errors import InputError
from clrt.ir.dims import Expr, is_symbol, substitute
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array, ContainerType
from clrt.ops.base import Op


def evaluate(
    graph: Graph, inputs: Mapping[str, Any], disturb: Callable[[Array], Array] = lambda array: array
) -> dict[str, Any]:
    """Runs a graph by the NumPy references of its ops.

    Args:
        graph: Graph to run.
        inputs: A value for each graph input, by name; the shapes bind the symbolic dims.
        disturb: Function applied to each array that a node computes, for example to add rounding
            errors.

    Returns:
        The value of each output, by the names in `graph.output_names`.

    Raises:
        InputError: An input is missing, or its shape or dtype does not fit.
    """
    bindings = bind_inputs(graph, inputs)
    known: dict[Value, Any] = {v: _as_array(inputs[v.name]) for v in graph.inputs}

    def get(value: Value) -> Any:
        if value not in known:
            known[value] = _constant(value, bindings)
        return known[value]

    for node in graph.nodes:
        results = node.op_as(Op).run_reference(
            *(None if v is None else get(v) for v in node.inputs)
        )
        for value, array in zip(node.outputs, results, strict=False):
            result = _as_array(array)
            if isinstance(result, np.ndarray):
                narrow = value.dtype.storage not in ("plain", "half")
                result = disturb(result.astype(value.dtype.numpy) if narrow else result)
                for dim, size in zip(value.shape or (), result.shape, strict=False):
                    if is_symbol(dim):  # a size that depends on data
                        bindings.setdefault(str(dim), size)
            known[value] = result
    names = zip(graph.output_names, graph.outputs, strict=True)
    return {name: get(value) for name, value in names}


def _as_array(value: Any) -> Any:
    """Converts a tensor value to a NumPy array; returns sequences, maps and None unchanged."""
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)


def bind_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Checks the inputs of a graph and returns the size of each symbol among its input dims.

    Args:
        graph: Graph with symbolic input dims.
        inputs: A value for each graph input, by name.

    Raises:
        InputError: An input is missing, or its shape or dtype does not fit.
    """
    bindings: dict[str, int] = {}
    for value in graph.inputs:
        if value.name not in inputs:
            raise InputError(f"Input '{value.name}' ({value.type}) is missing.")
        if isinstance(value.type, ContainerType):
            continue
        array = np.asarray(inputs[value.name])
        shape = value.shape
        fits = DType.of(array.dtype) is value.dtype and (shape is None or array.ndim == len(shape))
        for dim, size in zip(shape or (), array.shape, strict=False):
            if isinstance(dim, Expr) and is_symbol(dim):
                fits &= bindings.setdefault(str(dim), size) == size
            elif isinstance(dim, int):
                fits &= dim == size
        if not fits:
            raise InputError(
                f"Input '{value.name}' is {array.dtype}{list(array.shape)}; expected {value.type}."
            )
    return bindings


def _constant(value: Value, bindings: Mapping[str, int]) -> Array:
    """Returns the elements of a constant, with symbols replaced by the sizes in `bindings`.

    Raises:
        InputError: The value is not a constant.
    """
    data = value.type.data
    if data is None or value.producer is not None:
        raise InputError(f"'{value.name}' is neither an input nor computed nor constant.")
    if data.dtype != object:
        return data
    numbers = [substitute(d, bindings) for d in data.flat]
    return np.array(numbers, value.dtype.numpy).reshape(data.shape)
