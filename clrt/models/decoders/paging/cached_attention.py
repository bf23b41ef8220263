"""Finds the attention of each layer over its past and new keys and values."""

from __future__ import annotations

from clrt.ir.dims import provably_equal
from clrt.ir.graph import Graph, Node, Value
from clrt.models.decoders.io_names import DecoderNames
from clrt.models.decoders.paging.decode_step_probe import STEPS, DecodeStepProbe
from clrt.models.decoders.paging.refusal import refusal
from clrt.models.decoders.paging.visibility import AttentionPattern, VisibilityReader
from clrt.ops.attention.fused_attention import FusedAttention
from clrt.ops.attention.update_cache import UpdateCache
from clrt.ops.base import Op
from clrt.ops.movement.concat import Concat
from clrt.ops.movement.pad import Pad
from clrt.ops.pointwise.cast import Cast
from clrt.passes.report import PassReport
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of a layer over its past and new keys and values.

    Attributes:
        node: Node of the attention; its op is FusedAttention.
        layer: Index of the layer.
        key: Keys of the step's tokens, `[1, heads, tokens, size]`.
        value: Values of the step's tokens, `[1, heads, tokens, size]`.
        shows: Which keys each token attends to.
    """

    node: Node
    layer: int
    key: Value
    value: Value
    shows: AttentionPattern

    @property
    def op(self) -> FusedAttention:
        return self.node.op_as(FusedAttention)

    @property
    def geometry(self) -> tuple[int, int]:
        """(number of KV heads, elements of a head)."""
        return self.op.kv_num_heads, self.op.head_size


def append_to_pasts(graph: Graph, names: DecoderNames, probe: DecodeStepProbe) -> None:
    """Replaces each UpdateCache node on a past input by a Concat of past and new rows.

    UpdateCache writes rows of new keys or values into a cache. For a single sequence without
    padding, the new rows go right after the past rows, so both ops compute the same. All shapes are
    inferred again.

    Args:
        graph: Graph of the decoder; changed.
        names: Inputs and outputs of the graph.
        probe: Evaluates values of the graph that depend only on sizes.

    Raises:
        UnsupportedError: A node does not write new rows right after the past ones.
    """
    pasts = {p.key for p in names.pasts} | {p.value for p in names.pasts}
    caches = [n for n in graph.nodes if isinstance(n.op, UpdateCache)]
    updates = [n for n in caches if _unrounded(n.arg(0)).name in pasts]
    for node in updates:
        for past, new in STEPS:
            places = [probe.at(node.arg(i), past, new) for i in (2, 3)]
            numbers = [None if p is None else p.reshape(-1).tolist() for p in places]
            if numbers != [[past], [past + new]]:
                raise refusal("its new keys or values are not written right after the past", node)
    for node in updates:
        node.op, node.inputs = Concat(2), node.inputs[:2]
    for node in graph.nodes if updates else ():
        op = node.op_as(Op)
        for value, inferred in zip(
            node.outputs, op.infer_with_data(node.input_types), strict=False
        ):
            value.type = inferred


def find_attention(
    graph: Graph, names: DecoderNames, reader: VisibilityReader, report: PassReport
) -> dict[Node, LayerAttention]:
    """Returns the attention of every layer, by its FusedAttention node.

    Args:
        graph: Graph of the decoder, in which passes have recognised attention.
        names: Inputs and outputs of the graph.
        reader: Recognises attention masks.
        report: Report of the passes that recognise attention, for the message about a layer whose
            attention they missed.

    Raises:
        UnsupportedError: The attention of a layer is not recognised, several nodes read the past of
            one layer, a node mixes the pasts of layers, or layers have different KV heads.
    """
    layers = {pair.key: (n, pair) for n, pair in enumerate(names.pasts)}
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    by_layer: dict[int, LayerAttention] = {}
    for node in graph.nodes:
        if not isinstance(node.op, FusedAttention):
            continue
        keys, values = (_appended(node.arg(i)) for i in (1, 2))
        if keys is None or values is None or keys.past not in layers:
            continue
        layer, pair = layers[keys.past]
        presents = [_unrounded(outputs[n]) for n in (pair.present_key, pair.present_value)]
        if values.past != pair.value or presents != [keys.node.output, values.node.output]:
            raise refusal(f"it mixes the past of layer {layer} with that of others", node)
        if layer in by_layer or keys.extra != values.extra:
            raise refusal(f"'{pair.key}' is read by several nodes", node)
        _check_heads(node)
        shows = reader.pattern_of(node, keys.extra)
        by_layer[layer] = LayerAttention(node, layer, keys.new, values.new, shows)
    for layer, pair in enumerate(names.pasts):
        if layer not in by_layer:
            raise refusal(_reason(pair.key, report))
    if len({one.geometry for one in by_layer.values()}) > 1:
        raise refusal("layers differ in the heads of their keys")
    return {one.node: one for one in by_layer.values()}


def _check_heads(node: Node) -> None:
    """Checks that a paged cache can hold the keys and values of an attention.

    Raises:
        UnsupportedError: Heads of keys and values differ in size, or keys or values are columns of
            a wider tensor.
    """
    op = node.op_as(FusedAttention)
    if op.head_size != op.v_head_size:
        raise refusal(
            f"its heads have {op.head_size} elements of keys, {op.v_head_size} of values", node
        )
    if op.k_offset or op.v_offset:
        raise refusal("its keys are columns of a wider value", node)


def _reason(key: str, report: PassReport) -> str:
    """Returns the message that a layer's attention was not recognised, with a pass's first miss.

    Args:
        key: Name of the input of past keys.
        report: Report of the passes that recognise attention.
    """
    text = f"attention over '{key}' is not recognised"
    for record in report.records:
        if record.name in ("fuse_attention", "lower_attention") and record.misses:
            node, reason = record.misses[0]
            return f"{text} ({node}: {reason})"
    return text


@dataclass(frozen=True, eq=False)
class _Appended:
    """Concatenation of past keys and new keys of a layer, or of past and new values.

    Attributes:
        node: The Concat node that appends.
        past: Name of the graph input of past keys or values.
        new: Keys or values of the new tokens.
        extra: Whether a row of zeros is appended after the new tokens (for an attention sink).
    """

    node: Node
    past: str
    new: Value
    extra: bool


def _appended(value: Value) -> _Appended | None:
    """Recognises a concatenation of past and new keys, or of past and new values.

    Args:
        value: Keys or values that an attention reads.

    Returns:
        The concatenation; None if `value` is computed in another way.
    """
    value = _unrounded(value)
    node, extra = value.producer, False
    if node is not None and isinstance(node.op, Pad):
        if not _adds_one_row(node):
            return None
        value, extra = _unrounded(node.arg(0)), True
        node = value.producer
    if node is None:
        return None
    by_row = isinstance(node.op, Concat) and node.op.axis in (2, -2) and value.type.rank == 4
    past = _unrounded(node.arg(0))
    if not by_row or len(node.inputs) != 2 or past.producer is not None or past.is_constant:
        return None
    return _Appended(node, past.name, _unrounded(node.arg(1)), extra)


def _adds_one_row(node: Node) -> bool:
    before, after = node.arg(0).shape, node.output.shape
    if before is None or after is None or len(before) != 4 or node.op_as(Pad).mode != "constant":
        return False
    fill = node.input(2)
    zero = fill is None or (fill.numbers is not None and not fill.numbers.any())
    pads = node.arg(1).numbers
    behind = pads is not None and not pads[: pads.size // 2].any()
    return zero and behind and provably_equal(after[2], before[2] + 1)


def _unrounded(value: Value) -> Value:
    """Returns the value before casts between float types, as in files with a float16 cache."""
    node = value.producer
    while node is not None and isinstance(node.op, Cast) and value.dtype.is_float:
        if not node.arg(0).dtype.is_float:
            break
        value = node.arg(0)
        node = value.producer
    return value
