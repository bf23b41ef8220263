"""The models that are planned; those without a checkpoint here have random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmark.conv_nets import conv_nets
from benchmark.inputs import BERT_BASE, MINILM, find_minilm, make_bert_base

from clrt.ir.graph import Graph
from clrt.sources import read_graph

from .decoders import CONTRACT, DECODERS, layers_of, read_decoder_graph, step_shapes
from .planning import Model, Shapes


def models(work: Path) -> Iterator[Model]:
    """All of them.

    Args:
        work: A folder for what is made on the way.
    """
    return (make(work) for make in MODELS.values())


def _minilm(shape: tuple[int, int], title: str, work: Path) -> Model:
    return Model(title, partial(read_graph, find_minilm()), partial(_texts, shape))


def _bert(shape: tuple[int, int], title: str, work: Path) -> Model:
    return Model(title, partial(read_graph, make_bert_base(work)), partial(_texts, shape))


def _net(name: str, batch: int, title: str, work: Path) -> Model:
    return Model(title, partial(read_graph, conv_nets()[name]), partial(_images, batch))


def _decoder(name: str, tokens: int, title: str, work: Path) -> Model:
    graph = partial(read_decoder_graph, name, work)
    return Model(title, graph, partial(step_shapes, tokens), CONTRACT, layers_of(name))


def _texts(shape: tuple[int, int], graph: Graph) -> Shapes:
    return {v.name: shape for v in graph.inputs}


def _images(batch: int, graph: Graph) -> Shapes:
    return {v.name: (batch, 3, 224, 224) for v in graph.inputs}


def _makers() -> Iterator[tuple[str, Callable[[str, Path], Model]]]:
    for shape in ((1, 16), (8, 128)):
        yield f"{MINILM}, {shape[0]} x {shape[1]}", partial(_minilm, shape)
    for name, batch in (("ResNet-50", 1), ("ResNet-50", 16), ("MobileNetV2", 1)):
        yield f"{name}, batch {batch}", partial(_net, name, batch)
    yield f"{BERT_BASE}, 8 x 128", partial(_bert, (8, 128))
    for name in DECODERS:
        for tokens, what in ((1, "a token"), (128, "a prompt of 128")):
            yield f"{name}, {what}", partial(_decoder, name, tokens)


# By title, what makes each, given a folder for what is made on the way.
MODELS: Mapping[str, Callable[[Path], Model]] = {
    title: partial(make, title) for title, make in _makers()
}
