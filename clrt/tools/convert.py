"""Converts ONNX files and Hugging Face folders to compiled models, for `clrt-convert`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import clrt
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.ir.dims import is_symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value, all_graphs
from clrt.ir.op import Array
from clrt.models.compiled import CompiledModel, write_compiled
from clrt.models.huggingface.model_files import read_text
from clrt.models.sources import Source, is_compiled, read_graph
from clrt.passes.compress_weights import (
    CompressWeights,
    WeightCompression,
    most_changed,
    quantisable_products,
)
from clrt.passes.demote_exact_weights import DemoteExactWeights
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
from clrt.util.fast_dataclass import dataclass

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"
Calibration: TypeAlias = "Callable[[Sequence[TensorSpec]], Iterable[Mapping[str, Array]]]"


@dataclass(frozen=True)
class Options:
    """Options of a conversion.

    Attributes:
        dims: Sizes for symbolic dims of the inputs, by symbol, or by input and axis such as
            "input_ids:0".
        outputs: Names of the outputs to keep; all if empty.
        optimize_level: Graph passes to run: 0 for none, 1 to clean up, 2 for all. Compiled models
            are not optimised again.
        weights: Dtype to store weights in. None changes no weight's value: at `optimize_level` 2,
            weights are stored in 16 bits if these represent them exactly, else unchanged.
        calibration: Yields sample inputs by name, given the descriptions of the model's inputs.
            4-bit integer weights are rounded so that results for these inputs change least. None
            rounds each weight independently.
        device: Device that runs the model for the calibration.
        keep_overflowing: Whether to keep weights outside the range of `weights` unchanged, instead
            of raising.
        keep_quantized: Whether to keep DequantizeLinear nodes of weights, for ONNX Runtime's
            quantized kernels; if False, small weights of more than 4 bits become floats.
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
    """An optimised graph, and statistics of the conversion.

    Attributes:
        graph: The optimised graph.
        nodes_before: Number of nodes of the imported graph.
        parameters: Number of elements of the optimised graph's constants.
        report: Matches and misses of the graph passes.
        shrunk: Weights that were converted to another dtype, with sizes and error.
        kept: Names of weights left unchanged because the new dtype cannot represent their range.
    """

    graph: Graph
    nodes_before: int
    parameters: int
    report: PassReport
    shrunk: Sequence[WeightCompression]
    kept: Sequence[str]


def convert(source: Source, options: Options) -> Converted:
    """Imports and optimises a model, and converts its weights to `options.weights` if set.

    Args:
        source: ONNX file or its bytes, `onnx.ModelProto`, Hugging Face folder or compiled model.
        options: Options of the conversion.

    Raises:
        InputError: An option does not match the model, or a weight exceeds the dtype's range.
        ModelError: The file is missing, damaged or not ONNX.
        UnsupportedError: The model has nodes that clrt does not support.
    """
    graph = read_graph(source)
    graph = _fix_dims(graph, options.dims)
    _keep_outputs(graph, options.outputs)
    nodes_before = len(graph.nodes)
    level = 0 if is_compiled(source) else options.optimize_level
    narrow = options.weights is None and not options.keep_quantized
    report = optimize(graph, level, options.keep_quantized)
    if narrow and level == 2:
        for inner in all_graphs(graph):
            PassRunner(inner).run(DemoteExactWeights())
    parameters = sum(prod(v.dims) for v in graph.constants() if v.has_numbers)
    shrink = None
    if options.weights is not None:
        moments = calibrate(graph, options)
        is_int4 = options.weights is DType.INT4
        wider = most_changed(graph, moments) if is_int4 else frozenset[Value]()
        shrink = CompressWeights(options.weights, wider, moments)
        session = PassRunner(graph)
        session.run(shrink)
        if shrink.overflows and not options.keep_overflowing:
            raise InputError(
                f"{options.weights} cannot hold the numbers of {', '.join(shrink.overflows)}; "
                "convert with --precision auto, which does not convert these, or bfloat16."
            )
        if options.optimize_level >= 2:
            session.run(FuseElementwise())
    return Converted(
        graph,
        nodes_before,
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
    """Writes a compiled model, with its weights packed for a device.

    Args:
        converted: The model, from `convert`.
        path: File to write.
        shapes: Sets of input shapes to plan for, which decide the packed layouts.
        encoder: Tokenizer and settings of a text encoder, from `read_encoder`; None for none.
        device: Device to pack for: "auto", "cpu", "gpu", part of a device name, or an index; None
            reads CLRT_DEVICE.
        progress: Called with (done, total) while writing.
        companions: Settings of an image model, from `companions_for_compiled`; None for none.

    Raises:
        InputError: The file cannot be written.
    """
    with load(converted.graph, device=device, optimize_level=0) as model:
        packed = packed_weights([model.plan(s) for s in shapes])
        extras = {**(companions or {}), **({} if encoder is None else {"encoder": encoder})}
        compiled = CompiledModel(converted.graph, shapes, extras)
        write_compiled(compiled, path, f"clrt {clrt.__version__}", packed, progress)


def read_encoder(source: Path) -> tuple[dict[str, Any] | None, str | None]:
    """Reads the tokenizer and settings that a text encoder needs besides its graph.

    Args:
        source: Folder or file of the model.

    Returns:
        (settings, None); or (None, reason why the folder is no text encoder). (None, None) for a
        file without a configuration, and for a model without a tokenizer, which can still run as a
        graph.
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
    """Runs calibration inputs, and sums x xᵀ over the vectors x that each weight is multiplied by.

    Args:
        graph: Graph of the model.
        options: Options of the conversion, with the calibration inputs.

    Returns:
        By weight, a sum of shape [rows, rows], where rows is the weight's number of rows. Empty
        unless weights are to be quantised to 4 bits and `options` has calibration inputs.
    """
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
    by_weight: dict[Value, Array] = {}
    for a, weight in ((n.arg(0), n.arg(1)) for n in products):
        if a.name in moments:
            by_weight[weight] = by_weight.get(weight, 0) + moments[a.name]
    return by_weight


def _fix_dims(graph: Graph, dims: Mapping[str, int]) -> Graph:
    known = symbol_places(graph)
    numbers: dict[str, int] = {}
    for text, number in dims.items():
        name = text if text in known else _symbol_at(graph, text)
        if numbers.setdefault(name, number) != number:
            raise InputError(
                f"Dim {listed_symbols({name: known[name]})} is set to both {numbers[name]} and "
                f"{number}; give one number."
            )
    if not numbers:
        return graph
    fixed = graph.copy(numbers)
    infer_types(fixed)
    return fixed


def _symbol_at(graph: Graph, text: str) -> str:
    """Returns the name of the symbol that is the dim of an input's axis.

    Args:
        graph: Graph with the input.
        text: Name of the input and axis, such as "input_ids:0".

    Raises:
        InputError: There is no such axis, or its dim is not a symbol.
    """
    name, colon, axis = text.rpartition(":")
    value = next((v for v in graph.inputs if colon and v.name == name), None)
    index = whole_number(axis)
    if value is None or index is None:
        listing = listed_symbols(symbol_places(graph)) or "none"
        raise InputError(f"The model has no symbolic dim '{text}'; it has {listing}.")
    if value.shape is None or index >= len(value.shape):
        raise InputError(f"Input '{name}' {value.type} has no axis {axis}.")
    dim = value.shape[index]
    if not is_symbol(dim):
        raise InputError(
            f"Axis {axis} of input '{name}' {value.type} is {dim}, which is not a single symbol."
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
    """Difference between the results of a converted and the original model for one output.

    Attributes:
        name: Name of the output.
        shape: Shape of the result.
        largest: Largest absolute difference; infinite if the results cannot be compared.
        relative: `largest` divided by the largest absolute element of the original model's result;
            `largest` itself if all these elements are 0.
        cosine: Cosine similarity of the results as vectors; 0 if the results cannot be compared.
    """

    name: str
    shape: tuple[int, ...]
    largest: float
    relative: float
    cosine: float


def compare(
    source: Path, target: Path, feeds: Mapping[str, Array], device: str | int | None = None
) -> tuple[list[Difference], str]:
    """Compares the outputs of a converted model and of the original model, on the same inputs.

    Only a compiled `target` runs on clrt's kernels. The original, and a converted ONNX file, run on
    ONNX Runtime or the NumPy references.

    Args:
        source: File of the original model.
        target: File of the converted model.
        feeds: Array per input of the original model, by name.
        device: Device that runs a compiled `target`; None for the default.

    Returns:
        A difference per output, and a sentence that names the implementations that computed the
        outputs of both models.
    """
    with load(source, device=device, optimize_level=0) as original:
        exact = original.feeds(feeds)  # in the source's dtypes: the user's may be narrower
    with load(target, device=device, optimize_level=0) as result:
        names = [s.name for s in result.outputs]
        target_inputs = {s.name for s in result.inputs}
        expected, by = independent_outputs(source, exact, names)
        target_feeds = {n: x for n, x in exact.items() if n in target_inputs}
        if is_compiled(target):
            actual, on = result.run(target_feeds), f"clrt on {result.device.name}"
        else:
            actual, on = independent_outputs(target, target_feeds, names)
    differences = [apart(name, actual[name], expected[name]) for name in names]
    return differences, f"original by {by}, result by {on}"


def apart(name: str, result: Any, expected: Any) -> Difference:
    """Returns the difference of two results for one output: arrays, lists, dicts or None.

    The difference of two lists is that of the items that differ most.

    Args:
        name: Name of the output.
        result: Result of the converted model.
        expected: Result of the original model.
    """
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
    """Returns the difference for results that can only be equal or not, such as strings.

    Args:
        name: Name of the output.
        shape: Shape of the result.
        same: Whether the results are equal, so that the difference is 0; else it is infinite.
    """
    return Difference(name, shape, *((0.0, 0.0, 1.0) if same else (np.inf, np.inf, 0.0)))


def _cosine(a: Array, b: Array) -> float:
    finite = np.isfinite(a) & np.isfinite(b)
    norms = float(np.linalg.norm(a[finite]) * np.linalg.norm(b[finite]))
    return float(a[finite] @ b[finite]) / (norms or 1.0)
