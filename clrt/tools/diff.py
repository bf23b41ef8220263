"""Finds the node at which clrt departs from another runtime, or from the NumPy references.

A value keeps its name of the ONNX file; a value that a pass puts in its place has that name as an
alias (`Value.aliases`). So both sides can be asked for the same values.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from clrt.errors import InputError, UnsupportedError
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import ContainerType
from clrt.models.as_onnx import onnx_model
from clrt.models.onnx.export.outputs import node_outputs, with_outputs
from clrt.models.sources import is_compiled, read_graph
from clrt.ops.base import Op, RuntimeValue, all_graphs
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.compress_weights import CompressWeights
from clrt.passes.driver import run_pass
from clrt.passes.pipeline import optimize
from clrt.runtime.model.model import Model, load
from clrt.util.accuracy import max_difference

Feeds: TypeAlias = "Mapping[str, RuntimeValue]"


@dataclass(frozen=True)
class Probe:
    """A float value of the optimised graph that the other side has, too.

    Attributes:
        output: Its name in the probed model.
        name: Its name on the other side.
    """

    node: Node
    value: Value
    output: str
    name: str


@dataclass(frozen=True)
class Deviation:
    """The difference between a value and that of the other side.

    Attributes:
        error: The largest absolute difference; inf where only one of two elements is finite.
        relative: `error` over the largest element of the other side.
        departs: Whether `relative` is over the tolerance.
        largest: The largest absolute element of the other side.
    """

    probe: Probe
    error: float
    relative: float
    departs: bool
    largest: float


class Other:
    """The side that clrt is compared with."""

    title: str

    def names(self) -> set[str]:
        """The names of the values it can give."""
        raise NotImplementedError

    def values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """Values by name."""
        raise NotImplementedError

    def outputs(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """Outputs of the model by name."""
        return self.values(feeds, names)


class Reference(Other):
    """The NumPy references of the ops, on the graph before any pass."""

    title = "the references"

    def __init__(self, source: Path) -> None:
        self._graph = read_graph(source)

    def draws(self) -> bool:
        """Whether the model has random numbers."""
        return any(_draws(n) for g in all_graphs(self._graph) for n in g.nodes)

    def names(self) -> set[str]:
        return {v.name for n in self._graph.nodes for v in n.outputs}

    def values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        found = {v.name: v for n in self._graph.nodes for v in n.outputs}
        return evaluate(_with_outputs(self._graph, [(n, found[n]) for n in names]), feeds)

    def outputs(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        found = dict(zip(self._graph.output_names, self._graph.outputs, strict=True))
        return evaluate(_with_outputs(self._graph, [(n, found[n]) for n in names]), feeds)


class OnnxRuntime(Other):
    """ONNX Runtime on the CPU, with its optimiser switched off.

    Raises:
        InputError: It is not installed.
    """

    title = "ONNX Runtime"

    def __init__(self, source: Path) -> None:
        if importlib.util.find_spec("onnxruntime") is None:
            raise InputError(
                "onnxruntime is not installed, which clrt is to be compared with; install it "
                "with: pip install onnxruntime, or compare with the references."
            )
        self._model = onnx_model(source)
        self._folder = self._model.parent if isinstance(self._model, Path) else None

    def names(self) -> set[str]:
        return node_outputs(self._model)

    def values(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        return self._run(with_outputs(self._model, names), feeds, names)

    def outputs(self, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        """The file as it is: to add outputs would hold its weights three times more."""
        content = self._model if isinstance(self._model, bytes) else str(self._model)
        return self._run(content, feeds, names)

    def _run(self, content: str | bytes, feeds: Feeds, names: Sequence[str]) -> dict[str, Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what it would log as an error is raised
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
    return isinstance(node.op, Op) and node.op.is_random(
        [None if v is None else v.type for v in node.inputs]
    )


OTHERS: dict[str, Callable[[Path], Other]] = {"onnxruntime": OnnxRuntime, "reference": Reference}


def independent_outputs(
    source: Path, feeds: Feeds, names: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """The outputs of a model without clrt's kernels, and the name of what computed them.

    That is ONNX Runtime, if it is installed and runs the model, else the references. A model with
    random numbers takes the references: only they draw the same numbers as the kernels.

    Raises:
        InputError, ModelError, UnsupportedError: The model cannot be read, or not run.
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
            found = OnnxRuntime(source).outputs(feeds, names)
            return found, OnnxRuntime.title
        except UnsupportedError:
            why = "since ONNX Runtime does not run this model"
    try:
        return reference.outputs(feeds, names), f"{reference.title} ({why})"
    except (NotImplementedError, ArithmeticError, LookupError, ValueError) as error:
        raise UnsupportedError(f"'{source}' cannot be compared: {why}, and {error}.") from error


class Diff:
    """A model whose float values can each be compared with another side.

    Attributes:
        model: Runs the optimised graph; its outputs are the values to compare.
        probes: Those values, in topological order.
        alone: Number of float values that the other side does not have.
        overflows: Names of weights that the dtype `weights` cannot hold; they stay as they are.

    Args:
        weights: The dtype to store the model's weights in, as `clrt-convert` does.

    Raises:
        InputError: The model is compiled, or the other side knows none of its values.
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
                f"'{source}' is compiled and has lost the names to compare by; "
                "give the model that it was made of."
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
        self.model: Model = load(_with_outputs(graph, pairs), device=device, optimize_level=0)

    def steps(self, feeds: Feeds, tolerance: float, every: bool = False) -> Iterator[Deviation]:
        """The values in order with their errors.

        Args:
            feeds: An array per input.
            tolerance: How far a value may be, relative to its largest element.
            every: Go on after the first that departs.
        """
        ours = self.model.run(feeds)
        names = list(dict.fromkeys(p.name for p in self.probes))
        theirs = self._other.values(feeds, names)
        for probe in self.probes:
            array = np.asarray(theirs[probe.name]).astype(np.float64)
            error, relative = max_difference(ours[probe.output], array)
            largest = float(np.abs(array).max(initial=0, where=np.isfinite(array)))
            # A comparison with NaN is false: what is no number departs.
            step = Deviation(probe, error, relative, not relative <= tolerance, largest)
            yield step
            if step.departs and not every:
                return


def _probes(graph: Graph, known: set[str]) -> tuple[list[Probe], int]:
    """The values that both sides have, and the number of float values that only clrt has."""
    called: dict[Value, list[str]] = {}
    for name, value in zip(graph.output_names, graph.outputs, strict=True):
        called.setdefault(value, []).append(name)
    probes: list[Probe] = []
    alone = 0
    for node in graph.nodes:
        for value in node.outputs:
            if isinstance(value.type, ContainerType) or not value.dtype.is_float:
                continue
            names: Iterable[str] = (value.name, *called.get(value, ()), *value.aliases)
            shared = [n for n in names if n in known]
            if not shared:
                alone += 1
            else:
                probes.append(Probe(node, value, str(len(probes)), shared[0]))
    return probes, alone


def _with_outputs(graph: Graph, pairs: Sequence[tuple[str, Value]]) -> Graph:
    """The graph with other outputs."""
    nodes = list(graph.nodes)
    result = Graph(graph.name, graph.inputs, [v for _, v in pairs], nodes, [n for n, _ in pairs])
    result.remove_dead()
    return result
