"""Rewrites a decoder with past inputs and present outputs to one with a paged KV cache.

Exported graphs read past keys and values, and return them with new rows appended: each length is
another shape, and each step copies the whole cache. The rewritten graph has the form of
`clrt.models.decoders.graph`. The tokens of a step, of any number of sequences, form one batch `[1,
tokens, …]`. All nodes except attention compute each token independently, which is checked, and are
unchanged; attention becomes RotateAndCache and PagedAttention, which know the sequence and position
of each token. The padding mask and the length of the past are then unused. Tables that the
length of a sequence chooses (LongRoPE) are chosen for each token.

Anything else in a file is an error that names the node: there is no slower fallback.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from clrt.ir.dims import Expr, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Names, Node, Value
from clrt.ir.kv_cache_sizes import MAX_SLABS
from clrt.models.decoders.io_names import PAST, TOKENS, DecoderNames
from clrt.models.decoders.paging.cached_attention import (
    LayerAttention,
    append_to_pasts,
    find_attention,
)
from clrt.models.decoders.paging.decode_step_probe import DecodeStepProbe
from clrt.models.decoders.paging.length_tables import LengthTable, find_length_tables
from clrt.models.decoders.paging.logit_rows import last_number, wanted_logits
from clrt.models.decoders.paging.qkv_packing import HeadJoiner
from clrt.models.decoders.paging.refusal import refusal
from clrt.models.decoders.paging.size_values import SizeValues, read_sizes
from clrt.models.decoders.paging.token_axis import mixes_tokens, token_axis
from clrt.models.decoders.paging.visibility import MOST_KEYS, VisibilityReader
from clrt.models.decoders.sampling_head import SAMPLER_INPUTS, sample_next
from clrt.ops.attention.page_layout import page_form
from clrt.ops.attention.paged_attention import PagedAttention
from clrt.ops.attention.rotate_and_cache import RotateAndCache
from clrt.ops.movement.gather import Gather
from clrt.ops.movement.views import View
from clrt.ops.op_builder import OpBuilder
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.table import Add, Mul
from clrt.passes.pipeline import find_subgraphs, tidy
from clrt.util.fast_dataclass import dataclass

_TOKEN, _PLACE = 0, 2  # columns of the graph input `step`: token id and position
# Names of the inputs of the rewritten graph; values of the file with these names are renamed.
_INPUTS = (
    "step",
    "table",
    "rows",
    "long",
    *SAMPLER_INPUTS,
    *(f"slab{s}" for s in range(MAX_SLABS)),
)


@dataclass(frozen=True)
class PagedDecoder:
    """A decoder with a paged KV cache.

    Attributes:
        graph: The graph, with the inputs and outputs that `decoder_graph` documents.
        layers: Number of layers.
        kv_heads: Number of KV heads per layer.
        head_size: Elements of a head.
        heads: Number of query heads of the first layer.
        hidden: Elements per token of the graph's output `hidden`.
        vocabulary: Number of tokens in the vocabulary.
        places: Maximum number of positions; None for no limit. Positions index constant tables, so
            the shortest of these tables is a limit. Another limit is the sequence length up to
            which attention masks of the original graph were compared with the patterns that
            replace them.
        long_beyond: Maximum number of tokens of a sequence whose tokens have 0 in the graph's input
            `long`, those of longer sequences 1; 0 if there is no such input.
    """

    graph: Graph
    layers: int
    kv_heads: int
    head_size: int
    heads: int
    hidden: int
    vocabulary: int
    places: int | None
    long_beyond: int = 0


def page_decoder(graph: Graph, names: DecoderNames, cache: DType, context: int) -> PagedDecoder:
    """Rewrites a decoder to a paged KV cache; consumes `graph`.

    Args:
        graph: A decoder with inputs of past keys and values, from `import_decoder`.
        names: Inputs and outputs of the graph.
        cache: Dtype of the cache: float32, float16, bfloat16, or uint8 for 8 bits.
        context: Maximum number of tokens of a sequence.

    Raises:
        UnsupportedError: A node has no paged form; the message names it.
    """
    tidy(graph)
    append_to_pasts(graph, names, DecodeStepProbe(graph, names))
    report = find_subgraphs(graph)
    probe = DecodeStepProbe(graph, names)
    reader = VisibilityReader(probe, context)
    attention = find_attention(graph, names, reader, report)
    lookups = find_length_tables(graph, probe)
    sizes = read_sizes(graph, names, attention.keys() | lookups.keys(), probe)
    decoder = _DecoderRewriter(graph, names, attention, lookups, cache).rewrite(sizes)
    if reader.longest == min(context, MOST_KEYS):
        return decoder
    return replace(decoder, places=min(decoder.places or reader.longest, reader.longest))


class _DecoderRewriter:
    """Rewrites the graph of one decoder to a paged KV cache.

    Args:
        graph: The graph with inputs of past keys and values; changed.
        names: Inputs and outputs of the graph.
        attention: The attention of each layer, by node.
        lookups: Tables that the length of a sequence chooses, by the node that reads their rows.
        cache: Dtype of the cache.
    """

    def __init__(
        self,
        graph: Graph,
        names: DecoderNames,
        attention: dict[Node, LayerAttention],
        lookups: dict[Node, LengthTable],
        cache: DType,
    ) -> None:
        self._graph, self._names, self._attention = graph, names, attention
        self._lookups = lookups
        self._kv_heads, self._head_size = next(iter(attention.values())).geometry
        self._nodes: list[Node] = []
        _rename(graph, _INPUTS)
        self._build = build = OpBuilder(Names(graph.names()), "/paged", nodes=self._nodes)
        self._step = build.input("step", DType.INT32, (symbol(TOKENS), 3))
        shape = (symbol("sequences"), symbol("pages"))
        self._table = build.input("table", DType.INT32, shape)
        self._rows = build.input("rows", DType.INT32, (symbol("rows"),))
        self._long = build.input("long", DType.INT32, (symbol(TOKENS),))
        size = len(attention) * self._kv_heads * page_form(self._head_size, cache).head_elements
        self._slab_inputs = [
            build.input(f"slab{s}", cache, (symbol(f"pages{s}"), size)) for s in range(MAX_SLABS)
        ]
        self._slabs = list(self._slab_inputs)
        self._places = self._column(_PLACE)
        self._joined: dict[LengthTable, tuple[Value, Value]] = {}
        self._joiner = HeadJoiner(graph, build)

    def rewrite(self, sizes: SizeValues) -> PagedDecoder:
        """Returns the rewritten decoder.

        Args:
            sizes: Values of the original graph that are positions, or cannot be paged.
        """
        replacements: dict[Value, Value] = {}
        for graph_input in self._graph.inputs:
            if graph_input.name == self._names.tokens:
                replacements[graph_input] = self._reshaped_like(self._column(_TOKEN), graph_input)
            elif graph_input.name == self._names.places:
                replacements[graph_input] = self._reshaped_like(self._places, graph_input)
        for node in self._graph.nodes:
            if node in self._attention:
                replacements[node.output] = self._attend(self._attention[node])
                continue
            if node in self._lookups:
                node.inputs = self._by_length(node)
            node.inputs = [None if v is None else replacements.get(v, v) for v in node.inputs]
            self._nodes.append(node)
            for value in sizes.places.intersection(node.outputs):
                replacements[value] = self._reshaped_like(self._places, value)
        outputs = dict(zip(self._graph.output_names, self._graph.outputs, strict=True))
        logits = outputs[self._names.logits]
        return self._finished(replacements.get(logits, logits), sizes)

    def _column(self, index: int) -> Value:
        return self._build.add(Gather(axis=1), self._step, self._build.numbers(index))

    def _reshaped_like(self, column: Value, value: Value) -> Value:
        """Returns a column of `step`, int32 `[tokens]`, with the dtype and shape of `value`."""
        assert value.shape is not None
        if column.dtype is not value.dtype:
            column = self._build.add(Cast(value.dtype), column)
        return self._build.reshaped(column, *value.shape)

    def _by_length(self, node: Node) -> list[Value | None]:
        """Returns the inputs with which a lookup reads each token's row of the table it needs."""
        table = self._lookups[node]
        if table not in self._joined:
            start = self._build.numbers(len(table.short), DType.INT32)
            row = self._build.add(Add(), self._places, self._build.add(Mul(), self._long, start))
            self._joined[table] = self._build.constant(table.joined()), row
        joined, row = self._joined[table]
        return [joined, self._reshaped_like(row, node.arg(1))]

    def _attend(self, layer: LayerAttention) -> Value:
        """Adds paged attention for a layer.

        Returns:
            The value that replaces the output of the original attention node.
        """
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
        return self._reshaped_like(y, layer.node.output)

    def _finished(self, logits: Value, sizes: SizeValues) -> PagedDecoder:
        """Adds the sampler, checks the rewritten graph and returns the decoder.

        Args:
            logits: The logits of all tokens, as the original graph computes them.
            sizes: Values of the original graph that are positions, or cannot be paged.

        Raises:
            UnsupportedError: A node mixes tokens or depends on the past.
        """
        build = self._build
        hidden, wanted = wanted_logits(build, logits, self._rows)
        width, vocabulary = (last_number(v) for v in (hidden, wanted))
        sampler_inputs, token, logprob = sample_next(
            build, wanted, self._places, self._rows, vocabulary
        )
        more = [self._long] if self._lookups else []
        inputs = [self._step, self._table, self._rows, *sampler_inputs, *more, *self._slab_inputs]
        outputs = {"token": token, "logprob": logprob, "logits": wanted, "hidden": hidden}
        outputs |= {f"kept{s}": slab for s, slab in enumerate(self._slabs)}
        graph = build.graph(self._graph.name, inputs, outputs.values(), list(outputs))
        graph.sort()
        graph.remove_dead()
        _check(graph, self._graph.nodes, sizes)
        tables = self._lookups.values()
        limits = [_shortest_table(graph, self._places), *(table.places for table in tables)]
        return PagedDecoder(
            graph,
            len(self._attention),
            self._kv_heads,
            self._head_size,
            next(iter(self._attention.values())).op.num_heads,
            width,
            vocabulary,
            min((n for n in limits if n is not None), default=None),
            max((table.long_beyond for table in tables), default=0),
        )


def _rename(graph: Graph, taken: Collection[str]) -> None:
    """Renames all values of a graph that have a name in `taken`."""
    names = Names(graph.names().union(taken))
    for value in list(graph.values()):
        if value.name in taken:
            value.name = names.unique(value.name)


def _check(graph: Graph, nodes: Iterable[Node], sizes: SizeValues) -> None:
    """Checks that a rewritten graph computes tokens independently and without past inputs.

    Args:
        graph: The rewritten graph.
        nodes: Nodes of the original graph; added ones are not checked for mixing tokens.
        sizes: Values of the original graph that cannot be paged.

    Raises:
        UnsupportedError: A node mixes tokens or depends on the past; the first such node is named.
    """
    given, tokens = set(graph.inputs), dict[Value, int]()
    original = set(nodes)
    for node in graph.nodes:
        for value in (v for v in node.inputs if v is not None):
            if value in sizes.unsupported:
                raise refusal(sizes.unsupported[value], node)
            if value.producer is None and not value.is_constant and value not in given:
                raise refusal(f"it reads '{value.name}'", node)
        reason = mixes_tokens(node, tokens) if node in original else None
        for value in node.outputs:
            axis = token_axis(value.shape)
            if isinstance(axis, int):
                tokens[value] = axis
            elif node in original:
                reason = reason or axis
            if any(isinstance(d, Expr) and PAST in d.symbols for d in value.shape or ()):
                reason = f"the size of '{value.name}' depends on the past"
        if reason is not None:
            raise refusal(reason, node)


def _shortest_table(graph: Graph, places: Value) -> int | None:
    """Returns the length of the shortest constant table that is indexed by positions.

    Args:
        places: Positions of the tokens.

    Returns:
        The length; None if there is no such table.
    """
    positions, lengths = {places}, list[int]()
    for node in graph.nodes:
        if isinstance(node.op, (View, Cast)) and node.arg(0) in positions:
            positions.add(node.output)
        if isinstance(node.op, Gather) and node.arg(1) in positions and node.arg(0).is_constant:
            lengths.append(node.arg(0).dims[node.op.axis])
    return min(lengths, default=None)
