"""`vjp`: the value of a functional call, and its vector-Jacobian product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from clrt.errors import InputError, UnsupportedError
from clrt.functional.calls import Call, Operation, recorded_calls, results_of
from clrt.functional.operands import dtype_of
from clrt.ir.graph import Graph, Names
from clrt.ir.op import TensorType
from clrt.ir.runtime_values import RuntimeValue
from clrt.runtime.opencl.tensors import DeviceTensor


def vjp(
    function: Callable[..., Any], *inputs: Any, **options: Any
) -> tuple[Any, Callable[..., tuple[Any, ...]]]:
    """Computes a function of `clrt.functional`, and returns how to pull gradients back through it.

    y, pullback = F.vjp(F.MatMul, a, b)
    grad_a, grad_b = pullback(grad_y)

    Args:
        function: An op such as `F.Attention`, or a function that is one computation, such as
            `F.linear`.
        inputs: Inputs of the function: arrays or device tensors.
        options: Further arguments of the function, such as attributes and `device`.

    Returns:
        The result of the function, and a function that takes the gradient of a loss with respect to
        each output, in order and of the output's shape and dtype, or None for zeros. That function
        returns the gradients with respect to the inputs of the computation, in order; None for an
        input that is left out, or is not of floating point, or that only says shapes or axes.
        Gradients are device tensors if an input or a gradient is.

    Raises:
        InputError: The function is no single computation, or an input does not fit.
        UnsupportedError: The op has no gradient; raised by the returned function.
    """
    name = getattr(function, "__name__", repr(function))
    with recorded_calls() as calls:
        result = function(*inputs, **options)
    if len(calls) != 1 or not _are_same(result, calls[0].results):
        raise InputError(
            f"vjp: {name} is not a single computation of clrt.functional ({len(calls)} were made); "
            "pass an op, such as F.MatMul, or take gradients of each step."
        )
    return result, partial(_pull_back, name, calls[0])


def _are_same(result: Any, results: Sequence[Any]) -> bool:
    given = result if isinstance(result, tuple) else (result,)
    return len(given) == len(results) and all(a is b for a, b in zip(given, results, strict=True))


def _pull_back(name: str, call: Call, *cotangents: Any) -> tuple[Any, ...]:
    """Returns the gradients with respect to the inputs of a call.

    Args:
        name: Name of the function, for messages.
        call: The call.
        cotangents: Gradients with respect to its outputs; None for zeros.
    """
    if len(cotangents) != len(call.results):
        raise InputError(
            f"vjp: {name} has {len(call.results)} outputs, but {len(cotangents)} gradients were "
            "given; pass one for each, None for zeros."
        )
    given = tuple(c is not None for c in cotangents)
    wanted = tuple(
        _is_float(x) and index not in call.operation.known for index, x in enumerate(call.inputs)
    )
    if not any(given) or not any(wanted):
        return (None,) * len(wanted)
    feeds = [
        _checked(name, number, cotangent, result)
        for number, (cotangent, result) in enumerate(zip(cotangents, call.results, strict=True))
        if cotangent is not None
    ]
    forward = call.operation
    known = frozenset(i for i in forward.known if i < len(wanted))
    graph = partial(_graph, forward, given, wanted)
    operation = Operation(("vjp", forward.key, given, wanted), graph, known, sized=True)
    try:
        found = iter(results_of(operation, [*call.inputs, *feeds], call.device))
    except UnsupportedError as error:
        raise UnsupportedError(f"vjp: {name} is not differentiated: {error}") from error
    return tuple(next(found) if is_wanted else None for is_wanted in wanted)


def _is_float(value: RuntimeValue) -> bool:
    return isinstance(value, np.ndarray | DeviceTensor) and dtype_of(value).is_float


def _checked(name: str, number: int, cotangent: Any, result: Any) -> Any:
    """Returns the gradient with respect to an output, as an array or a device tensor.

    Raises:
        InputError: Its shape or dtype is not that of the output.
    """
    wanted = TensorType(dtype_of(result), tuple(result.shape))
    if not isinstance(cotangent, np.ndarray | np.generic | DeviceTensor):
        cotangent = np.asarray(cotangent, wanted.dtype.numpy)
    actual = TensorType(dtype_of(cotangent), tuple(cotangent.shape))
    if actual != wanted:
        raise InputError(
            f"vjp: the gradient with respect to output {number} of {name} is {actual}; expected "
            f"{wanted}, the type of the output."
        )
    return cotangent if isinstance(cotangent, DeviceTensor) else np.asarray(cotangent)


def _graph(
    forward: Operation,
    given: Sequence[bool],
    wanted: Sequence[bool],
    types: Sequence[TensorType | None],
) -> Graph:
    """Returns the graph of the gradients with respect to the wanted inputs of an operation.

    Its inputs are x0, x1, …: those of the operation, then the given cotangents of its outputs.

    Raises:
        UnsupportedError: The op has no gradient, or a wanted input would have to be constant.
    """
    from clrt.ops.gradients.transform import pull_back_graph  # which loads the rules

    count = len(wanted)
    graph = forward.graph(types[:count])
    names = [f"x{index}" for index, is_wanted in enumerate(wanted) if is_wanted]
    inputs = [v.name for v in graph.inputs]
    if not set(names) <= set(inputs):
        raise UnsupportedError("The gradient with respect to a constant is not computed.")
    result = pull_back_graph(graph, given, [n in names for n in inputs], Names(graph.names()))
    feeds = result.inputs[len(inputs) :]
    for index, (feed, type_) in enumerate(zip(feeds, types[count:], strict=True), start=count):
        assert type_ is not None
        feed.name, feed.type = f"x{index}", type_
    return result
