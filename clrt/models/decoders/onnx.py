"""Decoders from ONNX files with inputs of past keys and values and outputs of present ones.

onnxruntime-genai's builder and optimum write such files. The past of each layer is recognised by
input and output names. The graph handles one sequence; `clrt.models.decoders.paging` rewrites its
past to a paged cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from clrt.errors import ModelError, UnsupportedError
from clrt.ir.graph import Graph
from clrt.models.decoders.io_names import PAST, TOKENS, DecoderNames, PastPair
from clrt.models.onnx.importer import import_read
from clrt.models.onnx.read import read_model
from clrt.util.env_vars import whole_number

_KINDS = {"key": "key", "k": "key", "value": "value", "values": "value", "v": "value"}
_WORDS = re.compile(r"[a-z]+|\d+")
_Infos = Mapping[str, onnx.ValueInfoProto]


def import_decoder(file: Path, head_size: int | None = None) -> tuple[Graph, DecoderNames]:
    """Imports a decoder with batch size 1, whatever the batch size in the file.

    Dims of the graph's inputs are numbers, or sums of the symbols "past" and "tokens".

    Args:
        file: The ONNX file; its external data is beside it.
        head_size: Elements of a head, for files that have a symbol for this dim; None if unknown.

    Returns:
        The graph, and the names of its inputs and outputs.

    Raises:
        ModelError: The file is missing, damaged or not valid ONNX; or `head_size` is needed.
        UnsupportedError: The file is not a decoder with past inputs, or has unsupported ops.
    """
    model, tensors = read_model(file)
    graph = model.graph
    constants = {t.name for t in graph.initializer}
    inputs = {i.name: i for i in graph.input if i.name not in constants}
    names = _names(inputs, [o.name for o in graph.output])
    for name, dims in _shapes(names, inputs, head_size).items():
        _set_dims(inputs[name], dims)
    for node in (n for n in graph.node if n.op_type == "GroupQueryAttention"):
        # A windowed cache holds only the tokens of the window. The paged cache keeps all tokens,
        # and the attention mask hides those outside the window.
        attributes = [a for a in node.attribute if a.name != "sliding_window_cache"]
        del node.attribute[:]
        node.attribute.extend(attributes)
    # Remove the remaining shapes, which use the file's own dim names.
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    return import_read(model, tensors), names


def has_past_inputs(file: Path) -> bool:
    """Returns whether an ONNX file is a decoder with inputs of past keys and values.

    Raises:
        ModelError: The file is missing, damaged or not valid ONNX.
    """
    model, _ = read_model(file)
    return bool(_by_layer((i.name for i in model.graph.input), "past"))


def _names(inputs: _Infos, outputs: Iterable[str]) -> DecoderNames:
    """Returns the names of a decoder's inputs and outputs.

    Args:
        inputs: The file's inputs by name.
        outputs: Names of the file's outputs.

    Raises:
        UnsupportedError: The names are not those of a decoder with past inputs.
    """
    pasts, presents = _by_layer(inputs, "past"), _by_layer(outputs, "present")
    if not pasts or pasts.keys() != presents.keys():
        raise UnsupportedError(
            f"It has inputs for the past of {len(pasts)} layers, and outputs for the past of "
            f"{len(presents)}; a language model has 'past_key_values.0.key' and "
            "'present.0.key', and so on; export it with its past."
        )
    tokens, mask, places = "input_ids", "attention_mask", "position_ids"
    past_names = [name for one in pasts.values() for name in one.values()]
    others = [n for n in inputs if n not in (tokens, mask, places, *past_names)]
    if tokens not in inputs or others or "logits" not in outputs:
        listing = ", ".join(others) or f"no '{tokens}' or no 'logits'"
        raise UnsupportedError(
            f"Apart from its past it has {listing}; a language model has the inputs {tokens}, "
            f"{mask} and {places}, and returns logits."
        )
    pairs = [
        PastPair(pasts[n]["key"], pasts[n]["value"], presents[n]["key"], presents[n]["value"])
        for n in sorted(pasts)
    ]
    optional = [name if name in inputs else "" for name in (mask, places)]
    return DecoderNames(tokens, "logits", tuple(pairs), *optional)


def _by_layer(names: Iterable[str], word: str) -> dict[int, dict[str, str]]:
    """Finds the inputs or outputs of a KV cache by their names, such as "past_key_values.3.key".

    Such a name starts with `word`, and has one number (the layer) and a word for key or value.

    Args:
        names: Names of all inputs or outputs.
        word: "past" or "present".

    Returns:
        {"key": name, "value": name} by index of the layer; layers that lack one are left out.
    """
    by_layer: dict[int, dict[str, str]] = {}
    for name in names:
        words = _WORDS.findall(name.lower())
        numbers = [n for n in map(whole_number, words) if n is not None]
        # The last kind counts: "past_key_values.3.value" is a value.
        kinds = [_KINDS[w] for w in words if w in _KINDS]
        if words[:1] == [word] and len(numbers) == 1 and kinds:
            by_layer.setdefault(numbers[0], {})[kinds[-1]] = name
    return {n: one for n, one in by_layer.items() if len(one) == 2}


def _shapes(
    names: DecoderNames, inputs: _Infos, head_size: int | None
) -> dict[str, tuple[int | str, ...]]:
    """Returns the shapes to declare for the file's inputs, by name; the batch size is 1.

    Dims are numbers, "past", "tokens" or "past + tokens". Each past input is
    `[1, heads, past, head size]`.

    Args:
        names: Names of the decoder's inputs and outputs.
        inputs: The file's inputs by name.
        head_size: Elements of a head, for files that have a symbol for this dim; None if unknown.

    Raises:
        ModelError, UnsupportedError: A past input has unknown or unexpected dims.
    """
    shapes: dict[str, tuple[int | str, ...]] = {names.tokens: (1, TOKENS)}
    for name, last in ((names.mask, f"{PAST} + {TOKENS}"), (names.places, TOKENS)):
        if name:
            shapes[name] = (1, last)
    for pair in names.pasts:
        for name in (pair.key, pair.value):
            dims = inputs[name].type.tensor_type.shape.dim
            known = [d.dim_value if d.WhichOneof("value") == "dim_value" else None for d in dims]
            if len(known) != 4 or not known[1]:
                raise UnsupportedError(
                    f"Its input '{name}' is not [batch, heads, past, size] with a fixed number of "
                    "heads; export the model again."
                )
            size = known[3] or head_size
            if not size:
                raise ModelError(
                    f"Its input '{name}' has heads of unknown size; put the model's "
                    "genai_config.json or config.json beside it."
                )
            shapes[name] = (1, known[1], PAST, size)
    return shapes


def _set_dims(info: onnx.ValueInfoProto, dims: tuple[int | str, ...]) -> None:
    """Replaces the dims of an input by `dims`: numbers, and texts of symbolic dims.

    Raises:
        UnsupportedError: The file has a different rank, or a number that differs from `dims`.
    """
    shape = info.type.tensor_type.shape
    old = [d.dim_value if d.WhichOneof("value") == "dim_value" else None for d in shape.dim]
    fits = len(old) == len(dims) and all(
        o is None or o == new for o, new in zip(old, dims, strict=True)
    )
    if not fits:
        raise UnsupportedError(
            f"Its input '{info.name}' has the dims {[d or '?' for d in old]}; expected "
            f"{list(dims)}, or names for them: export the model with dynamic axes."
        )
    del shape.dim[:]
    for dim in dims:
        if isinstance(dim, int):
            shape.dim.add(dim_value=dim)
        else:
            shape.dim.add(dim_param=dim)
