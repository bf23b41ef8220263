"""The models that are planned; those without a checkpoint here have random weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmark.conv_nets import conv_nets
from benchmark.inputs import BERT_BASE, MINILM, find_minilm, prepare_model

from clrt.ir.graph import Graph
from clrt.sources import read_graph

from .decoders import CONTRACT, DECODERS, layers_of, read_decoder_graph, step_shapes
from .planning import Model, Shapes


def models(work: Path) -> Iterator[Model]:
    """All of them.

    Args:
        work: A folder for what is made on the way.
    """
    minilm = find_minilm()
    for shape in ((1, 16), (8, 128)):
        title = f"{MINILM}, {shape[0]} x {shape[1]}"
        yield Model(title, partial(read_graph, minilm), partial(_texts, shape))
    nets = conv_nets()
    for name, batch in (("ResNet-50", 1), ("ResNet-50", 16), ("MobileNetV2", 1)):
        images = partial(_images, batch)
        yield Model(f"{name}, batch {batch}", partial(read_graph, nets[name]), images)
    bert = prepare_model(BERT_BASE, None, work).source
    yield Model(f"{BERT_BASE}, 8 x 128", partial(read_graph, bert), partial(_texts, (8, 128)))
    for name in DECODERS:
        for tokens, what in ((1, "a token"), (128, "a prompt of 128")):
            graph = partial(read_decoder_graph, name, work)
            yield Model(
                f"{name}, {what}", graph, partial(step_shapes, tokens), CONTRACT, layers_of(name)
            )


def _texts(shape: tuple[int, int], graph: Graph) -> Shapes:
    return {v.name: shape for v in graph.inputs}


def _images(batch: int, graph: Graph) -> Shapes:
    return {v.name: (batch, 3, 224, 224) for v in graph.inputs}
