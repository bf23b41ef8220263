"""The models that are planned; those without a checkpoint here have random weights, or none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from benchmark.conv_nets import conv_nets
from benchmark.inputs import BERT_BASE, MINILM, find_minilm, prepare_model

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ops.named_builder import NamedBuilder
from clrt.sources import read_graph

from .decoders import CONTRACT, DECODERS, step_shapes
from .planning import Model, Shapes

# Rows, inputs and outputs of a product that does no more than read its matrix.
_ROW = (1, 2048, 2048)


def models(work: Path) -> Iterator[Model]:
    """All of them.

    Args:
        work: A folder for what is made on the way.
    """
    yield Model(f"Product, {' x '.join(map(str, _ROW))}", _product, lambda graph: {"x": _ROW[:2]})
    minilm = find_minilm()
    for shape in ((1, 16), (1, 128), (8, 128)):
        title = f"{MINILM}, {shape[0]} x {shape[1]}"
        yield Model(title, partial(read_graph, minilm), partial(_texts, shape))
    nets = conv_nets()
    for name, batch in (("ResNet-50", 1), ("ResNet-50", 16), ("MobileNetV2", 1)):
        images = partial(_images, batch)
        yield Model(f"{name}, batch {batch}", partial(read_graph, nets[name]), images)
    bert = prepare_model(BERT_BASE, None, work).source
    yield Model(f"{BERT_BASE}, 8 x 128", partial(read_graph, bert), partial(_texts, (8, 128)))
    for decoder in DECODERS:
        layers = decoder.layers(work)
        for run in decoder.runs:
            shapes = partial(step_shapes, run)
            title = f"{decoder.name}, {run.title}"
            yield Model(title, partial(decoder.graph, work), shapes, CONTRACT, layers)


def _product() -> Graph:
    build = NamedBuilder()
    rows, inputs, outputs = _ROW
    x = build.feed("x", DType.FLOAT32, rows, inputs)
    weights = np.random.default_rng(0).standard_normal((inputs, outputs), np.float32)
    return build.graph("product", build.inputs, [build("MatMul", x, weights)], ["y"])


def _texts(shape: tuple[int, int], graph: Graph) -> Shapes:
    return {v.name: shape for v in graph.inputs}


def _images(batch: int, graph: Graph) -> Shapes:
    return {v.name: (batch, 3, 224, 224) for v in graph.inputs}
