"""Models of one op with a size, stride, pad, axis, count or scale that no exporter writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from clrt.errors import ClrtError
from clrt.models.onnx.export.exporter import export_model
from clrt.ops import REGISTRY
from tests.harness import sample_graph
from tests.ops.onnx_cases import node_tests
from tests.ops.samples import samples

# Around the powers of two that 32 and 64 bits, floats and the bounds of ops end at.
_POWERS = [sign * (1 << p) + d for p in (16, 24, 28, 30, 31, 32, 62) for d in (-1, 0, 1)
           for sign in (1, -1)]  # fmt: skip
EXTREMES = (
    *(0, 0, 0, 1, -1, -2, 2, 3, 5, 17, 97, 255, 1000, 65521, 10**6, 10**9),
    *_POWERS,
    *((1 << 63) - 1, -(1 << 63)),
)
FLOATS = (0.0, -1.0, 1e-45, 1e-9, 0.3, 3.0, 65521.0, 1e9, 1e30, -1e9, *map(float, ("inf", "nan")))
# What an op may leave out, and what stands for nothing there.
_LISTS = {"strides": 1, "dilations": 1, "kernel_shape": 1, "output_padding": 0, "output_shape": 1}
_MOST_ELEMS = 10_000
_MOST_NUMBERS = 16  # of an input that says sizes


def sizes_mutant(seed: int) -> bytes:
    """An ONNX file of one op, one to three of whose numbers are extreme."""
    rng = Random(f"sizes {seed}")
    models = _seeds()
    model = onnx.ModelProto()
    # Each in turn, so that no op is left to chance.
    model.CopyFrom(models[seed % len(models)])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        changes = [c for c in _CHANGES if c(Random(0), onnx.ModelProto.FromString(_bytes(model)))]
        if changes:
            rng.choice(changes)(rng, model)
    return _bytes(model)


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString())


def _change_attribute(rng: Random, model: onnx.ModelProto) -> bool:
    every = [a for n in model.graph.node for a in n.attribute]
    found = [a for a in every if a.type == AttributeProto.INT or a.ints]
    if not found:
        return False
    attribute = rng.choice(found)
    if attribute.type == AttributeProto.INT:
        attribute.i = rng.choice(EXTREMES)
    else:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(EXTREMES)
    return True


def _add_attribute(rng: Random, model: onnx.ModelProto) -> bool:
    """Gives a node a list attribute that it leaves out (such as pads), with an extreme number.

    Returns whether there is such an attribute.
    """
    node = rng.choice(model.graph.node)
    if node.domain or not onnx.defs.has(node.op_type) or not model.graph.input:
        return False
    given = {a.name for a in node.attribute}
    schema = onnx.defs.get_schema(node.op_type)
    names = sorted({"pads", *_LISTS} & schema.attributes.keys() - given)
    count = len(model.graph.input[0].type.tensor_type.shape.dim) - 2
    if not names or count < 1:
        return False
    name = rng.choice(names)
    numbers = [0] * 2 * count if name == "pads" else [_LISTS[name]] * count
    numbers[rng.randrange(len(numbers))] = rng.choice(EXTREMES)
    node.attribute.append(onnx.helper.make_attribute(name, numbers))
    return True


def _change_numbers(rng: Random, model: onnx.ModelProto) -> bool:
    """Makes an element of a small constant (sizes, indices or scales) extreme.

    Returns whether there is such a constant.
    """
    found = [t for t in model.graph.initializer if 0 < np.prod(t.dims) <= _MOST_NUMBERS
             and t.data_type in (1, 6, 7)]  # fmt: skip
    if not found:
        return False
    tensor = rng.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    number: Any = rng.choice(FLOATS if array.dtype.kind == "f" else EXTREMES)
    if array.dtype == np.int32:
        number = max(-(1 << 31), min(number, (1 << 31) - 1))
    array.reshape(-1)[rng.randrange(array.size)] = number
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return True


def _empty_input(rng: Random, model: onnx.ModelProto) -> bool:
    dims = [d for i in model.graph.input for d in i.type.tensor_type.shape.dim]
    if not dims:
        return False
    rng.choice(dims).dim_value = 0
    return True


_CHANGES: tuple[Callable[[Random, onnx.ModelProto], bool], ...] = (
    *(_change_attribute,) * 4,
    *(_change_numbers,) * 2,
    _add_attribute,
    _empty_input,
)


@cache
def _seeds() -> list[onnx.ModelProto]:
    """A model of each form of each op: of clrt's samples, ONNX's node tests, and com.microsoft."""
    found = [*_of_samples(), *_of_onnx(), *_of_microsoft(), *_quantized_convolutions()]
    forms: dict[Any, onnx.ModelProto] = {}
    for model in found:
        key = [
            (n.domain, n.op_type, *sorted(a.name for a in n.attribute), len(n.input))
            for n in model.graph.node
        ]
        ranks = [len(i.type.tensor_type.shape.dim) for i in model.graph.input]
        forms.setdefault(str((key, ranks)), model)
    return [m for m in forms.values() if any(c(Random(0), _copy(m)) for c in _CHANGES)]


def _quantized_convolutions() -> Iterator[onnx.ModelProto]:
    """QLinearConv with constant weights: with one group, with several, and depthwise."""
    for maps, channels, more in [
        (4, 4, "strides = [1, 1], dilations = [1, 1]"),
        (4, 2, "group = 2, dilations = [1, 1]"),
        (4, 1, "group = 4, strides = [1, 1]"),
    ]:
        weights = ", ".join(str(i % 255 - 127) for i in range(maps * channels * 9))
        yield onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
            quantized (uint8[1, 4, 7, 6] x) => (uint8[1, {maps}, H, W] y)
            <float xs = {{0.1}}, uint8 xz = {{121}}, float ws = {{0.5}}, int8 wz = {{0}},
             float ys = {{40.0}}, uint8 yz = {{3}},
             int8[{maps}, {channels}, 3, 3] w = {{{weights}}}>
            {{ y = QLinearConv <pads = [1, 1, 1, 1], {more}> (x, xs, xz, w, ws, wz, ys, yz) }}""")


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(_bytes(model))


def _of_samples() -> Iterator[onnx.ModelProto]:
    for cls in REGISTRY.all_classes().values():
        for sample in samples(cls):
            if sum(a.size for a in sample.inputs if a is not None) < _MOST_ELEMS:
                try:
                    yield export_model(sample_graph(sample))
                except (ClrtError, TypeError, ValueError):
                    continue


def _of_onnx() -> Iterator[onnx.ModelProto]:
    """ONNX's node tests; inputs of few integers or floats are constants."""
    for test in node_tests():
        model = _copy(test.model)
        arrays = test.data_sets[0][0]
        if not all(isinstance(a, np.ndarray) for a in arrays):
            continue
        pairs = list(zip(list(model.graph.input), arrays, strict=False))
        for i, (info, array) in enumerate(pairs):
            few = 0 < array.size <= _MOST_NUMBERS and array.dtype in (np.int64, np.float32)
            if i and few and array.ndim < 2:
                model.graph.input.remove(info)
                model.graph.initializer.append(numpy_helper.from_array(array, info.name))
        if sum(a.size for a in arrays) < _MOST_ELEMS:
            yield model


def _of_microsoft() -> Iterator[onnx.ModelProto]:
    from tests.ops import (
        test_microsoft,
        test_microsoft_gates,
        test_microsoft_quantised,
        test_microsoft_tensors,
    )

    modules = test_microsoft, test_microsoft_gates, test_microsoft_quantised, test_microsoft_tensors
    for module in modules:
        for case in module.CASES:
            model, feeds = case.model()
            if sum(a.size for a in feeds.values()) < _MOST_ELEMS:
                yield model
