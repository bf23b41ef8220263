"""Models to plan; without a local checkpoint they have random weights, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from benchmark.conv_nets import conv_nets
from benchmark.inputs import BERT_BASE, MINILM, find_minilm, make_bert_base

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.models.sources import read_graph
from clrt.ops.op_builder import OpBuilder

from .decoders import CONTRACT, DECODERS, KnownDecoder, Run, step_shapes
from .planning import Model, Shapes

# Rows, inputs and outputs of a product that does no more than read its matrix.
_ROW = (1, 2048, 2048)


def models(work: Path) -> Iterator[Model]:
    """Returns all models.

    Args:
        work: Folder for intermediate files.
    """
    return (make(work) for make in MODELS.values())


def _product(title: str, work: Path) -> Model:
    return Model(title, _read_product, lambda graph: {"x": _ROW[:2]})


def _read_product() -> Graph:
    build = OpBuilder()
    rows, inputs, outputs = _ROW
    x = build.feed("x", DType.FLOAT32, rows, inputs)
    weights = np.random.default_rng(0).standard_normal((inputs, outputs), np.float32)
    return build.graph("product", build.inputs, [build("MatMul", x, weights)], ["y"])


def _minilm(shape: tuple[int, int], title: str, work: Path) -> Model:
    return Model(title, partial(read_graph, find_minilm()), partial(_texts, shape))


def _bert(shape: tuple[int, int], title: str, work: Path) -> Model:
    return Model(title, partial(read_graph, make_bert_base(work)), partial(_texts, shape))


def _net(name: str, batch: int, title: str, work: Path) -> Model:
    return Model(title, partial(read_graph, conv_nets()[name]), partial(_images, batch))


def _decoder(known: KnownDecoder, run: Run, title: str, work: Path) -> Model:
    shapes = partial(step_shapes, run)
    return Model(title, partial(known.graph, work), shapes, CONTRACT, known.layers(work))


def _texts(shape: tuple[int, int], graph: Graph) -> Shapes:
    return {v.name: shape for v in graph.inputs}


def _images(batch: int, graph: Graph) -> Shapes:
    return {v.name: (batch, 3, 224, 224) for v in graph.inputs}


def _makers() -> Iterator[tuple[str, Callable[[str, Path], Model]]]:
    yield f"Product, {' x '.join(map(str, _ROW))}", _product
    for shape in ((1, 16), (1, 128), (8, 128)):
        yield f"{MINILM}, {shape[0]} x {shape[1]}", partial(_minilm, shape)
    for name, batch in (("ResNet-50", 1), ("ResNet-50", 16), ("MobileNetV2", 1)):
        yield f"{name}, batch {batch}", partial(_net, name, batch)
    yield f"{BERT_BASE}, 8 x 128", partial(_bert, (8, 128))
    for known in DECODERS:
        for run in known.runs:
            yield f"{known.name}, {run.title}", partial(_decoder, known, run)


# By title, what makes each, given a folder for what is made on the way.
MODELS: Mapping[str, Callable[[Path], Model]] = {
    title: partial(make, title) for title, make in _makers()
}
