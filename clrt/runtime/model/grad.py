"""`grad`: a model that computes a loss of another model, and the loss's gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clrt.errors import InputError
from clrt.ir.dims import provably_equal
from clrt.ir.graph import Defaults, Graph, Names, Value
from clrt.ir.op import TensorType
from clrt.models.sources import is_compiled, read_graph
from clrt.runtime.model.model import Model, load

if TYPE_CHECKING:
    from clrt.models.sources import Source

# Suffix of the output with the gradient by a value, after the value's name.
_SUFFIX = ".grad"
# Maximum number of names that an error lists.
_MAX_LISTED = 8


def grad(source: Source | Model, wrt: Sequence[str], loss: str, **options: Any) -> Model:
    """Loads a model that computes a loss and its gradients, by reverse differentiation.

    The outputs of the model are the loss and, for each name `w` in `wrt`, `w.grad`. Weights in
    `wrt` are optional inputs: without them a run uses the values in the file, with them it
    computes loss and gradients at other values.

    Args:
        source: An ONNX file, its bytes or ModelProto, a model folder, a graph; or a model that was
            loaded from a file.
        wrt: Names of floating-point inputs, weights (initializers) or other values to differentiate
            by.
        loss: Name of the output, or of another value, to differentiate; it has one element.
        options: Options of `clrt.load`, such as `device`.

    Raises:
        InputError: A name is unknown or of no floating-point value; the loss has several elements,
            or does not depend on a value; or the source is optimised already.
        UnsupportedError: An op between the values and the loss has no gradient; the message names
            the node and the path to it.
        ModelError: The file is missing, damaged or not valid.
    """
    if isinstance(source, Model):
        path = source._recipe.path
        if path is None:
            raise InputError(
                "The model was not loaded from a file; pass its bytes or graph to clrt.grad."
            )
        source = path
    if is_compiled(source):
        raise InputError(
            f"'{source}' is a compiled model, which is optimised for inference; pass the ONNX file "
            "or folder that it was made from to clrt.grad."
        )
    names = [wrt] if isinstance(wrt, str) else list(wrt)
    return load(differentiated(read_graph(source), names, loss), **options)


def differentiated(graph: Graph, wrt: Sequence[str], loss: str) -> Graph:
    """Returns a graph of a loss and its gradients; arguments and errors are those of `grad`.

    Args:
        graph: The graph, before any pass. It is not used by others.
    """
    values = {v.name: v for v in graph.values()}
    weights = tuple(n for n in wrt if n in values and values[n].is_constant)
    defaults = graph.defaults
    known = () if defaults is None else tuple(n for n in defaults.names if n not in weights)

    def graph_with(names: frozenset[str]) -> Graph:
        given = names.intersection(known)
        base = graph.copy() if defaults is None or not given else defaults.graph_with(given)
        _free(base, names.difference(known))
        return _with_gradients(base, wrt, loss)

    result = _with_gradients(graph.copy(), wrt, loss)
    if weights or known:
        result.defaults = Defaults((*known, *weights), graph_with)
    return result


def _free(graph: Graph, names: frozenset[str]) -> None:
    """Turns constants of a graph into inputs, in place.

    Args:
        names: Names of constants.
    """
    constants = {v.name: v for v in graph.constants() if v.name in names}
    inputs = {v: Value(n, TensorType(v.dtype, v.shape)) for n, v in constants.items()}
    graph.replace_inputs(inputs)
    graph.inputs += [inputs[constants[n]] for n in sorted(constants)]


def _with_gradients(graph: Graph, wrt: Sequence[str], loss: str) -> Graph:
    """Replaces the outputs of a graph by a loss and its gradients, in place; returns the graph."""
    from clrt.ops.gradients.transform import add_gradients, influences  # imports ops

    values = {v.name: v for v in graph.values()}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    y = outputs.get(loss) or _value(loss, values, list(outputs), "loss")
    if y.shape is None or not all(provably_equal(d, 1) for d in y.shape):
        raise InputError(
            f"The loss '{loss}' is {y.type}; expected one element, such as a ReduceMean of it."
        )
    sources = [*(v.name for v in graph.inputs), *(v.name for v in graph.constants())]
    xs = [_value(name, values, sources, "wrt") for name in wrt]
    reached = influences(graph.nodes, y)
    for x in xs:
        if x not in reached:
            raise InputError(f"The loss '{loss}' does not depend on '{x.name}' in wrt.")
    nodes, gradients = add_gradients(graph.nodes, y, xs, Names(graph.names()))
    graph.nodes += nodes
    graph.outputs = [y, *gradients]
    graph.output_names = [loss, *(name + _SUFFIX for name in wrt)]
    graph.remove_dead()
    return graph


def _value(name: str, values: dict[str, Value], known: Sequence[str], argument: str) -> Value:
    """Returns the floating-point value of a name.

    Args:
        name: The name.
        values: Values by name.
        known: Names to list in the error.
        argument: Argument of `grad` that has the name, for messages.

    Raises:
        InputError: There is no such value, or it is not floating point.
    """
    value = values.get(name)
    if value is None:
        listing = ", ".join(known[:_MAX_LISTED]) + (", …" if len(known) > _MAX_LISTED else "")
        raise InputError(f"{argument}: the model has no value '{name}'; it has {listing}.")
    if not value.dtype.is_float:
        raise InputError(f"{argument}: '{name}' is {value.type}, which is not floating point.")
    return value
