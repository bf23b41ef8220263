"""Compiled files of language models: optimized graph, tokenizer, options and chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.generation.model_settings import model_of_settings, settings_of
from clrt.generation.model_spec import LanguageModel
from clrt.ir.graph import Graph
from clrt.ir.kv_cache_sizes import MAX_SLABS
from clrt.models.compiled_file import extras_of, open_compiled, read_extras
from clrt.runtime.model.model import Model, load

_EXTRA = "generation"


def is_compiled_language_model(path: Path) -> bool:
    """Whether a compiled file holds a language model.

    Raises:
        ModelError: The file is damaged, or not a compiled model.
    """
    return _EXTRA in read_extras(path)


def write_language_model(model: LanguageModel, path: Path, cache: str, producer: str) -> None:
    """Writes a language model to a compiled file, with weights packed for the process's device.

    Args:
        model: The model, with its graph.
        path: File to write.
        cache: Dtype of the KV cache: "float32", "float16" or "int8".
        producer: Name of the writing program.

    Raises:
        InputError: The file cannot be written.
    """
    assert isinstance(model.graph, Graph)
    write_decoder(model.graph, _EXTRA, settings_of(model, cache), path, producer)


def write_decoder(
    graph: Graph, name: str, extras: Mapping[str, Any], path: Path, producer: str
) -> None:
    """Writes the graph of a decoder to a compiled file, with weights packed for the device.

    Args:
        graph: Graph of `clrt.models.decoders.graph`.
        name: Key under which the file stores `extras`.
        extras: JSON data to store beside the graph.
        path: File to write.
        producer: Name of the writing program.

    Raises:
        InputError: The file cannot be written.
    """
    from clrt.models.compiled import CompiledModel, write_compiled  # imports ops
    from clrt.plan.weight_forms import packed_weights

    with load(graph) as loaded:
        plan = loaded.plan(step_shapes(loaded, 1, 1))
        optimised = loaded.graph
        packed = packed_weights([plan])
    write_compiled(CompiledModel(optimised, (), {name: extras}), path, producer, packed)


def read_compiled_language_model(path: Path, context: int | None, cache: str) -> LanguageModel:
    """Reads a language model that `write_language_model` has written, without its graph.

    Args:
        path: File to read.
        context: Maximum number of tokens of a sequence; None for the model's own.
        cache: Expected dtype of the KV cache: "float32", "float16" or "int8".

    Returns:
        The model. Its field `graph` holds the header of the file, from which the graph and the
        weights are read later.

    Raises:
        ModelError: The file is damaged, or not a language model.
        InputError: The context is too large, or the file has a cache of another dtype.
    """
    header = open_compiled(path)
    extras = extras_of(header).get(_EXTRA)
    if not isinstance(extras, dict):
        raise ModelError(f"{path} is not a language model; create one by clrt-convert.")
    return model_of_settings(extras, header, path, context, cache)


def step_shapes(model: Model, tokens: int, rows: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder step's inputs by name, to plan the step.

    The KV cache has one page; sizes besides `tokens` and `rows` are 1.

    Args:
        model: Decoder on a device.
        tokens: Number of input tokens.
        rows: Number of output rows.
    """
    sizes = {"tokens": tokens, "rows": rows, "pages0": 1, "sequences": 1, "pages": 1}
    sizes |= dict.fromkeys((f"pages{s}" for s in range(1, MAX_SLABS)), 0)
    sizes |= {"history": 1, "biases": 1, "batch": 1, "places": 1}
    shapes = {}
    for spec in model.inputs:
        assert spec.shape is not None
        shapes[spec.name] = tuple(d if isinstance(d, int) else _size(d, sizes) for d in spec.shape)
    return shapes


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    """Evaluates a symbolic dim such as `places` or `2*places`, given the sizes of its symbols."""
    factor, _, name = dim.rpartition("*")
    return int(factor or 1) * sizes[name]
