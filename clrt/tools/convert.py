"""Compiled models from ONNX files and Hugging Face folders: what `clrt-convert` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import clrt
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.ir.dims import is_symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ir.op import Array
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.huggingface.model_files import read_text
from clrt.models.sources import Source, is_compiled, read_graph
from clrt.ops.base import all_graphs
from clrt.passes.compress_weights import (
    CompressWeights,
    WeightCompression,
    most_changed,
    quantisable_products,
)
from clrt.passes.demote_exact_weights import NarrowWeights
from clrt.passes.driver import PassReport, PassRunner, infer_types
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.pipeline import optimize
from clrt.plan.weight_forms import packed_weights
from clrt.runtime.execution.signature import TensorSpec, listed_symbols, symbol_places
from clrt.runtime.model.model import load
from clrt.text.config import read_any_config
from clrt.text.tokenize import tokenizer_file
from clrt.tools.diff import independent_outputs
from clrt.util.accuracy import max_difference
from clrt.util.env_vars import whole_number

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"
Calibration: TypeAlias = "Callable[[Sequence[TensorSpec]], Iterable[Mapping[str, Array]]]"


@dataclass(frozen=True)
class Options:
    """How to convert.

    Attributes:
        dims: Numbers for symbolic dims of the inputs, by name, or by place as `input_ids:0`.
        outputs: The outputs to keep; all where empty.
        optimize_level: As in `clrt.load`.
        weights: What weights are stored in; None leaves them as they are.
        calibration: Gives feeds for the inputs; integer weights of 4 bits are rounded such that
            results on them change least. None rounds each weight for itself.
        device: What runs the model for that.
        keep_overflowing: Leave weights that `weights` cannot hold as they are, instead of raising.
        keep_quantized: As in `clrt.passes.pipeline.optimize`.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    optimize_level: int = 2
    weights: DType | None = None
    calibration: Calibration | None = None
    device: str | int | None = None
    keep_overflowing: bool = False
    keep_quantized: bool = False


@dataclass(frozen=True)
class Converted:
    """An optimised graph, and what was done to get it.

    Attributes:
        nodes_before: Nodes of the graph as imported.
        parameters: Elements of its constants, once optimised.
        kept: Names of weights that stayed as they were since they would overflow.
    """

    graph: Graph
    nodes_before: int
    parameters: int
    report: PassReport
    shrunk: Sequence[WeightCompression]
    kept: Sequence[str]


def convert(source: Source, options: Options) -> Converted:
    """The optimised graph of a model.

    Raises:
        InputError: An option does not fit the model.
        ModelError, UnsupportedError: As `clrt.load`.
    """
    graph = read_graph(source)
    graph = _fix_dims(graph, options.dims)
    _keep_outputs(graph, options.outputs)
    before = len(graph.nodes)
    level = 0 if is_compiled(source) else options.optimize_level
    narrow = options.weights is None and not options.keep_quantized
    report = optimize(graph, level, options.keep_quantized)
    if narrow and level == 2:
        for inner in all_graphs(graph):
            PassRunner(inner).run(NarrowWeights())
    parameters = sum(prod(v.dims) for v in graph.constants() if v.has_numbers)
    shrink = None
    if options.weights is not None:
        moments = calibrate(graph, options)
        few = options.weights is DType.INT4
        wider = most_changed(graph, moments) if few else frozenset[Value]()
        shrink = CompressWeights(options.weights, wider, moments)
        session = PassRunner(graph)
        session.run(shrink)
        if shrink.overflows and not options.keep_overflowing:
            raise InputError(
                f"{options.weights} cannot hold the numbers of {', '.join(shrink.overflows)}; "
                "convert with --precision auto, which leaves these as they are, or bfloat16."
            )
        if options.optimize_level >= 2:
            session.run(FuseElementwise())
    return Converted(
        graph,
        before,
        parameters,
        report,
        list(shrink.shrunk.values()) if shrink else [],
        shrink.overflows if shrink else [],
    )


def write(
    converted: Converted,
    path: Path,
    shapes: Sequence[Shapes],
    encoder: Mapping[str, Any] | None = None,
    device: str | int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    companions: Mapping[str, Any] | None = None,
) -> None:
    """Writes a converted model as a compiled one, its weights packed as the device wants them.

    Args:
        shapes: Input shapes to plan for.
        encoder: What a text model needs beside the graph.
        companions: What a model of images needs, as `companions_for_compiled` gives it.

    Raises:
        InputError: The file cannot be written.
    """
    with load(converted.graph, device=device, optimize_level=0) as model:
        packed = packed_weights([model.plan(s) for s in shapes])
        extras = {**(companions or {}), **({} if encoder is None else {"encoder": encoder})}
        compiled = CompiledModel(converted.graph, shapes, extras)
        write_compiled(compiled, path, f"clrt {clrt.__version__}", packed, progress)


def read_encoder(source: Path) -> tuple[dict[str, Any] | None, str | None]:
    """What a text model needs beside its graph, or why a folder makes none.

    Both are None for a model without a tokenizer. A model runs without an encoder.
    """
    try:
        config = read_any_config(source)
    except (ModelError, UnsupportedError) as error:
        return None, str(error) if source.is_dir() else None
    try:
        text = config.tokenizer or read_text(tokenizer_file(config))
    except ModelError:
        return None, None
    return config.for_compiled(text), None


def calibrate(graph: Graph, options: Options) -> dict[Value, Array]:
    """For each weight to be quantised, the sum of x xT over the rows x that multiply it."""
    if options.weights is not DType.INT4 or options.calibration is None:
        return {}
    products = quantisable_products(graph)
    values = list(dict.fromkeys(n.arg(0) for n in products))
    names = [v.name for v in values]
    probe = Graph(graph.name, graph.inputs, values, graph.nodes, names)
    moments: dict[str, Array] = {}
    with load(probe, device=options.device, optimize_level=0) as model:
        for feeds in options.calibration(model.inputs):
            for name, array in model.run(feeds).items():
                rows = array.reshape(-1, array.shape[-1])
                moments[name] = moments.get(name, 0) + rows.T @ rows
    found: dict[Value, Array] = {}
    for a, weight in ((n.arg(0), n.arg(1)) for n in products):
        if a.name in moments:
            found[weight] = found.get(weight, 0) + moments[a.name]
    return found


def _fix_dims(graph: Graph, dims: Mapping[str, int]) -> Graph:
    known = symbol_places(graph)
    numbers: dict[str, int] = {}
    for text, number in dims.items():
        name = text if text in known else _symbol_at(graph, text)
        if numbers.setdefault(name, number) != number:
            raise InputError(
                f"Dim {listed_symbols({name: known[name]})} is to be {numbers[name]} and {number}; "
                "it has one number."
            )
    if not numbers:
        return graph
    fixed = graph.copy(numbers)
    infer_types(fixed)
    return fixed


def _symbol_at(graph: Graph, text: str) -> str:
    """The symbol of an axis of an input, given as `input_ids:0`.

    Raises:
        InputError: There is none; the message lists the symbols and where they stand.
    """
    name, colon, axis = text.rpartition(":")
    value = next((v for v in graph.inputs if colon and v.name == name), None)
    at = whole_number(axis)
    if value is None or at is None:
        listing = listed_symbols(symbol_places(graph)) or "none"
        raise InputError(f"The model has no symbolic dim '{text}'; it has {listing}.")
    if value.shape is None or at >= len(value.shape):
        raise InputError(f"Input '{name}' {value.type} has no axis {axis}.")
    dim = value.shape[at]
    if not is_symbol(dim):
        raise InputError(
            f"Axis {axis} of input '{name}' {value.type} is {dim}, which is no dim of its own."
        )
    return str(dim)


def _keep_outputs(graph: Graph, outputs: Sequence[str]) -> None:
    for name in outputs:
        if name not in graph.output_names:
            listing = ", ".join(graph.output_names)
            raise InputError(f"The model has no output '{name}'; it has {listing}.")
    if not outputs:
        return
    pairs = dict(zip(graph.output_names, graph.outputs, strict=True))
    graph.output_names = list(dict.fromkeys(outputs))
    graph.outputs = [pairs[n] for n in graph.output_names]
    graph.remove_dead()
    used = {v for n in graph.nodes for v in n.inputs} | set(graph.outputs)
    graph.inputs = [v for v in graph.inputs if v in used]


@dataclass(frozen=True)
class Difference:
    """How far two results for one output are apart.

    Attributes:
        relative: The largest difference over the largest element of the original's.
        cosine: Of the two as vectors.
    """

    name: str
    shape: tuple[int, ...]
    largest: float
    relative: float
    cosine: float


def compare(
    source: Path, target: Path, feeds: Mapping[str, Array], device: str | int | None = None
) -> tuple[list[Difference], str]:
    """How far the outputs of a converted model are from its source's, on the same inputs.

    The source runs on ONNX Runtime or the references, not on clrt's kernels; an ONNX target too.

    Args:
        feeds: An array for each input of the source.
        device: What runs a compiled target.

    Returns:
        A difference per output, and a text that says what computed the two sides.
    """
    with load(source, device=device, optimize_level=0) as original:
        exact = original.feeds(feeds)  # as the source takes them: what users give may be narrower
    with load(target, device=device, optimize_level=0) as result:
        names = [s.name for s in result.outputs]
        wanted = {s.name for s in result.inputs}
        expected, by = independent_outputs(source, exact, names)
        theirs = {n: x for n, x in exact.items() if n in wanted}
        if is_compiled(target):
            found, on = result.run(theirs), f"clrt on {result.device.name}"
        else:
            found, on = independent_outputs(target, theirs, names)
    differences = [apart(name, found[name], expected[name]) for name in names]
    return differences, f"original by {by}, result by {on}"


def apart(name: str, result: Any, expected: Any) -> Difference:
    """The difference of two results for one output: tensors, lists or dicts."""
    if isinstance(expected, list):
        same = isinstance(result, list) and len(result) == len(expected)
        items = [apart(name, a, b) for a, b in zip(result, expected, strict=True)] if same else []
        worst = max(items, key=lambda d: d.relative, default=_equality(name, (), same))
        return replace(worst, shape=(len(expected),))
    if isinstance(expected, dict):
        if not isinstance(result, dict) or result.keys() != expected.keys():
            return _equality(name, (), False)
        result, expected = (np.array([d[k] for k in expected]) for d in (result, expected))
    if expected is None or result is None or expected.dtype.kind in "UO":
        return _equality(name, np.shape(expected), np.array_equal(result, expected))
    largest, relative = max_difference(result, expected)
    a, b = (x.astype(np.float64).reshape(-1) for x in (result, expected))
    cosine = 1.0 if largest == 0 else _cosine(a, b) if a.shape == b.shape else 0.0
    return Difference(name, result.shape, largest, relative, cosine)


def _equality(name: str, shape: tuple[int, ...], same: bool) -> Difference:
    """The difference of values that are not numbers: none, or infinite."""
    return Difference(name, shape, *((0.0, 0.0, 1.0) if same else (np.inf, np.inf, 0.0)))


def _cosine(a: Array, b: Array) -> float:
    finite = np.isfinite(a) & np.isfinite(b)
    norms = float(np.linalg.norm(a[finite]) * np.linalg.norm(b[finite]))
    return float(a[finite] @ b[finite]) / (norms or 1.0)
