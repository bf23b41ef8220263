"""Finds the first node whose result differs from another runtime's, or from its NumPy reference.

Values have the names that they have in the ONNX file. If a pass replaces a value by another, the
new value has the old name as an alias (`Value.aliases`). Thus values of clrt and the other
implementation correspond by name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import InputError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value, all_graphs
from clrt.ir.op import ContainerType
from clrt.ir.runtime_values import RuntimeValue
from clrt.models.as_onnx import onnx_model
from clrt.models.onnx.export.outputs import node_outputs, with_outputs
from clrt.models.sources import is_compiled, read_graph
from clrt.ops.base import Op
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.compress_weights import CompressWeights
from clrt.passes.driver import run_pass
from clrt.passes.pipeline import optimize
from clrt.runtime.model.model import Model, load
from clrt.util.accuracy import max_difference
from clrt.util.fast_dataclass import dataclass

Feeds: TypeAlias = "Mapping[str, RuntimeValue]"


@dataclass(frozen=True)
class Probe:
    """A float value that both clrt's optimised graph and the compared implementation compute.

    Attributes:
        node: Node of the optimised graph that computes the value.
        value: Value of the optimised graph.
        output: Name of the output of `Diff.model` that returns the value.
        name: Name of the value in the compared implementation.
    """

    node: Node
    value: Value
    output: str
    name: str


@dataclass(frozen=True)
class Deviation:
    """Difference between the results of clrt and of the compared implementation for a value.

    Attributes:
        probe: The value.
        error: Largest absolute difference; inf if an element is finite in only one of the results.
        relative: `error` divided by `largest`, or `error` itself if `largest` is 0.
        departs: Whether `relative` exceeds the tolerance, or is NaN.
        largest: Largest absolute element of the compared implementation's result.
    """

    probe: Probe
    error: float
    relative: float
    departs: bool
    largest: float


class Other:
    """Base of implementations that clrt is compared with.

    Attributes:
        title: Name of the implementation, for messages.
    """

    title: str

    def names(self) -> set[str]:
        """Returns the names of all values of the model that `values` can compute."""
        raise NotImplementedError

    def values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """Computes values of the model, which may be intermediate values.

        Args:
            feeds: Inputs of the model by name.
            names: Names of the values, from the result of the method `names`.

        Returns:
            Each value by name.
        """
        raise NotImplementedError

    def outputs(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """Computes outputs of the model.

        Args:
            feeds: Inputs of the model by name.
            names: Names of the outputs.

        Returns:
            Each output by name.
        """
        return self.values(feeds, names)


class Reference(Other):
    """Computes a model by the NumPy references of its ops, on the graph without any passes."""

    title = "the references"

    def __init__(self, source: Path) -> None:
        self._graph = read_graph(source)

    def draws(self) -> bool:
        """Returns whether a node of the model draws random numbers."""
        return any(_draws(n) for g in all_graphs(self._graph) for n in g.nodes)

    def names(self) -> set[str]:
        return {v.name for n in self._graph.nodes for v in n.outputs}

    def values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        values = {v.name: v for n in self._graph.nodes for v in n.outputs}
        return evaluate(_with_outputs(self._graph, [(n, values[n]) for n in names]), feeds)

    def outputs(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        values = dict(zip(self._graph.output_names, self._graph.outputs, strict=True))
        return evaluate(_with_outputs(self._graph, [(n, values[n]) for n in names]), feeds)


class OnnxRuntime(Other):
    """Computes a model by ONNX Runtime on the CPU, without graph optimisations.

    Raises:
        InputError: onnxruntime is not installed.
    """

    title = "ONNX Runtime"

    def __init__(self, source: Path) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise InputError(
                "The comparison needs onnxruntime, which is not installed; install it with: pip "
                "install onnxruntime, or compare with the references."
            )
        self._model = onnx_model(source)
        self._folder = self._model.parent if isinstance(self._model, Path) else None

    def names(self) -> set[str]:
        return node_outputs(self._model)

    def values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        return self._run(with_outputs(self._model, names), feeds, names)

    def outputs(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """Computes the outputs `names` by running the file unchanged; returns each by name.

        This takes less memory than `values`, which adds outputs to the model and for that makes
        three more copies of its weights.
        """
        content = self._model if isinstance(self._model, bytes) else str(self._model)
        return self._run(content, feeds, names)

    def _run(self, content: str | bytes, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """Runs a model in ONNX Runtime without optimizations; returns outputs by name.

        Args:
            content: Path of the ONNX file, or its bytes.
            feeds: Inputs by name.
            names: Names of the outputs.

        Raises:
            UnsupportedError: ONNX Runtime cannot run the model.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors are raised as well, so they need no log
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if self._folder is not None and isinstance(content, bytes):
            key = "session.model_external_initializers_file_folder_path"
            options.add_session_config_entry(key, str(self._folder))
        try:
            session = onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
            return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
        except Exception as error:
            raise UnsupportedError(f"ONNX Runtime cannot run this model: {error}") from error


def _draws(node: Node) -> bool:
    """Returns whether a node draws random numbers."""
    return isinstance(node.op, Op) and node.op.is_random(
        [None if v is None else v.type for v in node.inputs]
    )


OTHERS: dict[str, Callable[[Path], Other]] = {"onnxruntime": OnnxRuntime, "reference": Reference}


def independent_outputs(
    source: Path, feeds: Feeds, names: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Computes outputs of a model without clrt's kernels.

    Uses ONNX Runtime if it is installed and runs the model, else the NumPy references. Compiled
    models, which ONNX Runtime cannot read, use the references. So do models with random numbers,
    since only the references draw the same numbers as clrt's kernels.

    Args:
        source: File of the model.
        feeds: Inputs of the model by name.
        names: Names of the outputs to compute.

    Returns:
        The outputs by name, and the name of the implementation that computed them.

    Raises:
        InputError, ModelError, UnsupportedError: The model cannot be read, or cannot be run.
    """
    reference = Reference(source)
    if is_compiled(source):
        why = "since ONNX Runtime reads no compiled model"
    elif reference.draws():
        why = "since ONNX Runtime draws other random numbers"
    elif importlib.util.find_spec("onnxruntime") is None:
        why = "since onnxruntime is not installed"
    else:
        try:
            outputs = OnnxRuntime(source).outputs(feeds, names)
            return outputs, OnnxRuntime.title
        except UnsupportedError:
            why = "since ONNX Runtime does not run this model"
    try:
        return reference.outputs(feeds, names), f"{reference.title} ({why})"
    except (NotImplementedError, ArithmeticError, LookupError, ValueError) as error:
        raise UnsupportedError(f"'{source}' cannot be compared: {why}, and {error}.") from error


class Diff:
    """Compares the float values of a model between clrt and another implementation.

    Attributes:
        model: Model of the optimised graph, whose outputs are the values to compare.
        probes: Values to compare, in topological order.
        alone: Number of float values that only clrt has, so that they are not compared.
        overflows: Names of weights outside the range of `weights`, which stay unchanged.

    Args:
        source: File of the model.
        other: Implementation to compare with.
        device: Device that runs the model.
        weights: Dtype to convert the model's weights to, as `clrt-convert` would; None to keep
            their dtypes.

    Raises:
        InputError: The model is compiled, or it has no float value in common with `other`.
    """

    def __init__(
        self,
        source: Path,
        other: Other,
        device: str | int | None = None,
        weights: DType | None = None,
    ) -> None:
        if is_compiled(source):
            raise InputError(
                f"'{source}' is a compiled model without the original value names; give the model "
                "that it was made from."
            )
        graph = read_graph(source)
        optimize(graph)
        self.overflows: list[str] = []
        if weights is not None:
            shrink = CompressWeights(weights)
            run_pass(graph, shrink)
            self.overflows = shrink.overflows
        self._other = other
        self.probes, self.alone = _probes(graph, other.names())
        if not self.probes:
            raise InputError(f"'{source}' and {other.title} have no float value in common.")
        pairs = [(p.output, p.value) for p in self.probes]
        self.model: Model = load(
            _with_outputs(graph, pairs), device=device, optimize_level=0, tiers=False
        )

    def steps(self, feeds: Feeds, tolerance: float, every: bool = False) -> Iterator[Deviation]:
        """Runs both implementations, and yields the difference of each value in topological order.

        Args:
            feeds: Array per input of the model, by name.
            tolerance: Maximum difference of a value, relative to its largest absolute element.
            every: Whether to continue after the first value that exceeds `tolerance`.
        """
        actual = self.model.run(feeds)
        names = list(dict.fromkeys(p.name for p in self.probes))
        expected = self._other.values(feeds, names)
        for probe in self.probes:
            array = np.asarray(expected[probe.name]).astype(np.float64)
            error, relative = max_difference(actual[probe.output], array)
            largest = float(np.abs(array).max(initial=0, where=np.isfinite(array)))
            # Negated, so that NaN departs: every comparison with NaN is false.
            step = Deviation(probe, error, relative, not relative <= tolerance, largest)
            yield step
            if step.departs and not every:
                return


def _probes(graph: Graph, known: set[str]) -> tuple[list[Probe], int]:
    """Returns the float values that both sides have, and the number of values that only clrt has.

    Args:
        graph: Optimised graph of clrt.
        known: Names of the values of the compared implementation.
    """
    output_names: dict[Value, list[str]] = {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        output_names.setdefault(value, []).append(name)
    probes: list[Probe] = []
    alone = 0
    for node in graph.nodes:
        for value in node.outputs:
            if isinstance(value.type, ContainerType) or not value.dtype.is_float:
                continue
            names: Iterable[str] = (value.name, *output_names.get(value, ()), *value.aliases)
            shared = [n for n in names if n in known]
            if not shared:
                alone += 1
            else:
                probes.append(Probe(node, value, str(len(probes)), shared[0]))
    return probes, alone


def _with_outputs(graph: Graph, pairs: Sequence[tuple[str, Value]]) -> Graph:
    """Returns a copy of a graph with other outputs, without the nodes that these do not need.

    Args:
        graph: Graph to copy.
        pairs: (name, value) of each output.
    """
    nodes = list(graph.nodes)
    result = Graph(graph.name, graph.inputs, [v for _, v in pairs], nodes, [n for n, _ in pairs])
    result.remove_dead()
    return result
