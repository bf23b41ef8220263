"""A decoder that is given its past and gives what it becomes -> one over a cache in pages.

A graph as exporters write it reads past keys and values, and gives them with new rows behind: each
length is another shape, and each step copies all of it. Here it gets the form that
`clrt.models.decoders.graph` gives decoders of its own. The tokens of a step, of whatever texts,
stand in one batch `[1, tokens, …]`. All nodes but attention compute each token by itself, which is
checked, and stay as they are; attention over past and new rows becomes RotateAndCache and
PagedAttention, which know of each token its text and its place. What said so before, the padding
mask and the length of the past, then has no reader.

What a file does otherwise is refused with the name of the node: there is no slower way behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from clrt.ir.builder import Builder
from clrt.ir.dims import Expr, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.models.decoders.io_names import PAST, TOKENS, DecoderNames
from clrt.models.decoders.paging.cached_attention import (
    LayerAttention,
    append_to_pasts,
    find_attention,
)
from clrt.models.decoders.paging.logit_rows import last_number, wanted_logits
from clrt.models.decoders.paging.qkv_packing import HeadJoiner
from clrt.models.decoders.paging.refusal import refusal
from clrt.models.decoders.paging.size_values import StepSizes, read_sizes
from clrt.models.decoders.paging.step_probe import StepProbe
from clrt.models.decoders.paging.token_axis import mixes_tokens, token_axis
from clrt.models.decoders.paging.visibility import MOST_KEYS, VisibilityReader
from clrt.models.decoders.sampling_head import SAMPLER_INPUTS, sample_next
from clrt.ops.attention.page_layout import page_form
from clrt.ops.attention.paged_attention import PagedAttention
from clrt.ops.attention.paged_cache import MAX_SLABS
from clrt.ops.attention.rotate_and_cache import RotateAndCache
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import Reshape, View
from clrt.ops.pointwise.cast import Cast
from clrt.passes.pipeline import find_subgraphs, tidy

_TOKEN, _PLACE = 0, 2  # columns of `step`
# What inputs of such a graph are called, whatever a file calls its values.
_INPUTS = ("step", "table", "rows", *SAMPLER_INPUTS, *(f"slab{s}" for s in range(MAX_SLABS)))


@dataclass(frozen=True)
class PagedDecoder:
    """A decoder over a cache in pages.

    Attributes:
        graph: As `clrt.models.decoders.graph` describes it.
        layers, kv_heads, head_size: What a page holds.
        heads: Of queries in the first layer.
        hidden, vocabulary: What logits are made of, and how many tokens they are for.
        places: How many places its tables have, or its masks are known for; None where nothing
            limits them.
    """

    graph: Graph
    layers: int
    kv_heads: int
    head_size: int
    heads: int
    hidden: int
    vocabulary: int
    places: int | None


def page_decoder(graph: Graph, names: DecoderNames, cache: DType, context: int) -> PagedDecoder:
    """Rewrites a decoder; the graph given is used up.

    Args:
        graph: Of the dims that `names` says.
        cache: The dtype of the cache: float32, float16, bfloat16, or uint8 for 8 bits.
        context: The most tokens of a text.

    Raises:
        UnsupportedError: It does what has no form over pages; the node is named.
    """
    tidy(graph)
    append_to_pasts(graph, names, StepProbe(graph, names))
    report = find_subgraphs(graph)
    probe = StepProbe(graph, names)
    reader = VisibilityReader(probe, context)
    attention = find_attention(graph, names, reader, report)
    sizes = read_sizes(graph, names, set(attention), probe)
    made = _DecoderRewriter(graph, names, attention, cache).rewrite(sizes)
    if reader.longest == min(context, MOST_KEYS):
        return made
    return replace(made, places=min(made.places or reader.longest, reader.longest))


class _DecoderRewriter:
    """Rewrites one graph."""

    def __init__(
        self, graph: Graph, names: DecoderNames, attention: dict[Node, LayerAttention], cache: DType
    ) -> None:
        self._graph, self._names, self._attention = graph, names, attention
        self._kv_heads, self._head_size = next(iter(attention.values())).geometry
        self._nodes: list[Node] = []
        _rename(graph, _INPUTS)
        self._build = build = Builder(Names(graph.names()), "/paged", nodes=self._nodes)
        self._step = build.input("step", DType.INT32, (symbol(TOKENS), 3))
        shape = (symbol("sequences"), symbol("pages"))
        self._table = build.input("table", DType.INT32, shape)
        self._rows = build.input("rows", DType.INT32, (symbol("rows"),))
        size = len(attention) * self._kv_heads * page_form(self._head_size, cache).head_elements
        self._given = [
            build.input(f"slab{s}", cache, (symbol(f"pages{s}"), size)) for s in range(MAX_SLABS)
        ]
        self._slabs = list(self._given)
        self._places = self._column(_PLACE)
        self._joiner = HeadJoiner(graph, build)

    def rewrite(self, sizes: StepSizes) -> PagedDecoder:
        """The decoder."""
        now: dict[Value, Value] = {}
        for given in self._graph.inputs:
            if given.name == self._names.tokens:
                now[given] = self._like(self._column(_TOKEN), given)
            elif given.name == self._names.places:
                now[given] = self._like(self._places, given)
        for node in self._graph.nodes:
            if node in self._attention:
                now[node.output] = self._attend(self._attention[node])
                continue
            node.inputs = [None if v is None else now.get(v, v) for v in node.inputs]
            self._nodes.append(node)
            for value in sizes.places.intersection(node.outputs):
                now[value] = self._like(self._places, value)
        outputs = dict(zip(self._graph.output_names, self._graph.outputs, strict=True))
        logits = outputs[self._names.logits]
        return self._finished(now.get(logits, logits), sizes)

    def _column(self, index: int) -> Value:
        return self._build.add(Gather(axis=1), self._step, self._build.numbers(index))

    def _like(self, column: Value, value: Value) -> Value:
        """A value with the dtype and the shape of another one."""
        assert value.shape is not None
        if column.dtype is not value.dtype:
            column = self._build.add(Cast(value.dtype), column)
        return self._build.add(Reshape(1), column, self._build.dims(value.shape))

    def _attend(self, layer: LayerAttention) -> Value:
        """What takes the place of the attention of a layer."""
        op, shows, build = layer.op, layer.shows, self._build
        x, tables = self._joiner.join(layer)
        geometry = (op.num_heads, self._kv_heads, self._head_size, layer.layer)
        given = (x, self._step, self._table, *tables, None, None, *self._slabs)
        q, *self._slabs = build.add_all(RotateAndCache(*geometry), *given)
        extras = [
            None if a is None else build.constant(np.ascontiguousarray(a))
            for a in (shows.slopes, shows.sinks)
        ]
        paged = PagedAttention(
            *geometry, scale=op.scale, left_window=shows.window, softcap=op.softcap
        )
        y = build.add(paged, q, self._step, self._table, *extras, None, *self._slabs)
        return self._like(y, layer.node.output)

    def _finished(self, logits: Value, sizes: StepSizes) -> PagedDecoder:
        build = self._build
        hidden, wanted = wanted_logits(build, logits, self._rows)
        width, vocabulary = (last_number(v) for v in (hidden, wanted))
        asked, token, logprob = sample_next(build, wanted, self._places, self._rows, vocabulary)
        inputs = [self._step, self._table, self._rows, *asked, *self._given]
        outputs = {"token": token, "logprob": logprob, "logits": wanted, "hidden": hidden}
        outputs |= {f"kept{s}": slab for s, slab in enumerate(self._slabs)}
        graph = build.graph(self._graph.name, inputs, outputs.values(), list(outputs))
        graph.sort()
        graph.remove_dead()
        _check(graph, self._graph.nodes, sizes)
        return PagedDecoder(
            graph,
            len(self._attention),
            self._kv_heads,
            self._head_size,
            next(iter(self._attention.values())).op.num_heads,
            width,
            vocabulary,
            _shortest_table(graph, self._places),
        )


def _rename(graph: Graph, taken: Collection[str]) -> None:
    """Gives other names to values that have one of these."""
    names = Names(graph.names().union(taken))
    for value in list(graph.values()):
        if value.name in taken:
            value.name = names.unique(value.name)


def _check(graph: Graph, nodes: Iterable[Node], sizes: StepSizes) -> None:
    """Refuses a graph in which tokens reach each other, or that still has a past.

    Args:
        nodes: Those that the file has.
    """
    given, tokens = set(graph.inputs), dict[Value, int]()
    own = set(nodes)
    for node in graph.nodes:
        for value in (v for v in node.inputs if v is not None):
            if value in sizes.odd:
                raise refusal(sizes.odd[value], node)
            if value.producer is None and not value.is_constant and value not in given:
                raise refusal(f"it reads '{value.name}'", node)
        reason = mixes_tokens(node, tokens) if node in own else None
        for value in node.outputs:
            axis = token_axis(value.shape)
            if isinstance(axis, int):
                tokens[value] = axis
            elif node in own:
                reason = reason or axis
            if any(isinstance(d, Expr) and PAST in d.symbols for d in value.shape or ()):
                reason = f"the size of '{value.name}' depends on the past"
        if reason is not None:
            raise refusal(reason, node)


def _shortest_table(graph: Graph, places: Value) -> int | None:
    """How many rows the shortest table has that is looked up by places."""
    found, lengths = {places}, list[int]()
    for node in graph.nodes:
        if isinstance(node.op, (View, Cast)) and node.arg(0) in found:
            found.add(node.output)
        if isinstance(node.op, Gather) and node.arg(1) in found and node.arg(0).is_constant:
            lengths.append(node.arg(0).dims[node.op.axis])
    return min(lengths, default=None)
