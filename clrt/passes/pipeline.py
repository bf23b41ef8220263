"""The passes of the optimiser, in order."""

from __future__ import annotations

from clrt.ir.graph import Graph
from clrt.ops.base import Op
from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.canonicalize_views import CanonicalizeViews, SimplifyTransposes
from clrt.passes.driver import Pass, PassReport, PassRunner, fold_budget
from clrt.passes.elide_split_concat import JoinSplit
from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fold_affine import ExpandBatchNormalization, FoldAffine
from clrt.passes.fold_constants import FoldConstants, FoldShapeData
from clrt.passes.fold_pad import FoldPad
from clrt.passes.fuse_attention import FuseAttention
from clrt.passes.fuse_dequantized_matmul import FuseDequantizedMatmul
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.fuse_epilogue import FuseEpilogue
from clrt.passes.fuse_fake_quantize import FuseRoundedMatmul, FuseRounding
from clrt.passes.fuse_gelu import FuseGelu
from clrt.passes.fuse_layer_norm import FuseLayerNorm
from clrt.passes.fuse_rotary import FuseRotary
from clrt.passes.fuse_swish import FuseSwish
from clrt.passes.hoist_loop_invariants import CaptureInvariants
from clrt.passes.inline_subgraphs import InlineGraphs
from clrt.passes.lower_attention import LowerAttention
from clrt.passes.merge_qkv import MergeQkv
from clrt.passes.promote_to_float32 import WidenFloats
from clrt.passes.propagate_loop_dims import CarryShapes
from clrt.passes.remove_identity import RemoveIdentity
from clrt.passes.simplify_affine_gathers import SimplifyIndexGrids
from clrt.passes.simplify_algebra import SimplifyAlgebra
from clrt.passes.sink_captures import SinkConstants
from clrt.passes.sink_expand import SinkExpand
from clrt.passes.sink_reshape import SinkReshape
from clrt.passes.sink_slice import SinkSlice
from clrt.util.gc_control import gc_young_only
from clrt.util.host_limits import FoldBudget

MAX_ROUNDS = 6

# Those of several stages: what one saw unchanged it does not look at again.
FOLD_CONSTANTS = FoldConstants()
REMOVE_IDENTITY = RemoveIdentity()
ELIMINATE_DEAD = EliminateDead()
ELIMINATE_COMMON = EliminateCommonSubexpressions()
CANONICALIZE_VIEWS = CanonicalizeViews()
FUSE_EPILOGUE = FuseEpilogue()

# Repeated until nothing changes: each makes work for the others.
CLEAN_UP: tuple[Pass, ...] = (
    ELIMINATE_DEAD,  # before anything looks at users
    FoldShapeData(),  # Shape and what is computed from it becomes constants, symbolic ones too
    FOLD_CONSTANTS,  # what depends on constants alone
    CaptureInvariants(),  # weights that a loop hands on from turn to turn
    CarryShapes(),  # those that stay the same from turn to turn
    SinkConstants(),  # into the graphs of nodes, which are optimised when this one is
    InlineGraphs(),  # If with a known condition, Einsum
    REMOVE_IDENTITY,  # Dropout, casts and views that change nothing, neutral operands
    CanonicalizeViews(transposes=False),  # Flatten, Squeeze, Unsqueeze: all are Reshape, two one
    SimplifyTransposes(),  # two are one; the exporter's detour around batched transposes
    ELIMINATE_COMMON,  # exporters repeat masks and shapes in every layer
    SimplifyAlgebra(),  # cheaper elementwise forms
    SimplifyIndexGrids(),  # gathers of everything in order: how masks are exported
    SinkExpand(),  # compute first, broadcast later
    JoinSplit(),  # what is put together as it was
    SinkSlice(),  # position embeddings are a slice of a constant
)

# The same once patterns are found: the transposes of a single token, by which attention is seen,
# become views, too.
CLEAN_UP_AFTER = tuple(
    CANONICALIZE_VIEWS if isinstance(p, CanonicalizeViews) else p for p in CLEAN_UP
)

# Before anything looks for patterns, which are in float32.
LEGALISE: tuple[Pass, ...] = (WidenFloats(),)

# What QuantizeLinear and DequantizeLinear say together, before the others see floats.
FUSE_QUANTIZED: tuple[Pass, ...] = (
    FuseRoundedMatmul(),  # products of integers, while both operands are dequantised
    FuseRounding(),  # what was quantised between floats
)

# Repeated until nothing changes: a factor folded lets a shift be folded.
FOLD_CONVOLUTIONS: tuple[Pass, ...] = (
    FoldPad(),
    ExpandBatchNormalization(),
    FoldAffine(),
    FOLD_CONSTANTS,
)

# Whole subgraphs with a kernel of their own; attention before products take in its scale.
FUSE_SUBGRAPHS: tuple[Pass, ...] = (
    FuseLayerNorm(),
    FuseGelu(),  # before epilogues take in its parts
    FuseSwish(),
    FuseRotary(),  # attention then reads what it writes
    FuseAttention(),
    LowerAttention(),  # where the exporter kept it whole (opset 23)
)

# Matrix products and convolutions take in what is around them.
FUSE_PRODUCTS: tuple[Pass, ...] = (
    FuseDequantizedMatmul(),  # while it is a MatMul
    CanonicalizeMatmul(),  # transpositions, alpha, beta, bias
    SinkReshape(),  # [B * S, K] around every Gemm
    REMOVE_IDENTITY,
    CANONICALIZE_VIEWS,
    ELIMINATE_COMMON,  # before Adds of shared masks are fused apart
    FUSE_EPILOGUE,  # bias, activation, residual
    MergeQkv(),  # three projections are one; when their biases are inside
)

# What is left over.
FUSE_REST: tuple[Pass, ...] = (
    FuseElementwise(),  # chains and DAGs of elementwise ops
    FUSE_EPILOGUE,  # DAGs behind a product, such as x * sigmoid(x)
    FOLD_CONSTANTS,  # transposed weights that no product took in
    ELIMINATE_DEAD,
)


@gc_young_only
def optimize(graph: Graph, level: int = 2, keep_quantized: bool = False) -> PassReport:
    """Rewrites a graph in place into an equal one that runs faster.

    Every decision holds for all shapes, where dims stay symbolic, and for all devices: compiled
    models hold the result. What depends on the device is `clrt.passes.device_pipeline`'s.

    Args:
        level: 0 does nothing, 1 cleans up, 2 fuses.
        keep_quantized: Whether quantised weights stay so, for ONNX Runtime, which has kernels for
            such; clrt computes with floats, and its products read 4 bits, or what is large, as is.

    Raises:
        PassError: A pass broke an invariant (a bug in clrt).
    """
    return _optimize(graph, level, keep_quantized, fold_budget(graph))


def _optimize(graph: Graph, level: int, keep_quantized: bool, budget: FoldBudget) -> PassReport:
    folds = FoldConstants(dequantize=not keep_quantized, products=level < 2)
    instead = [folds] if keep_quantized or level < 2 else []
    session = PassRunner(graph, *instead, budget=budget)
    if level >= 1:
        _tidy(session)
    if level == 1:
        clean_up(session, CLEAN_UP_AFTER)
    if level >= 2:
        if not keep_quantized:
            clean_up(session, (*FUSE_QUANTIZED, FOLD_CONSTANTS))
        clean_up(session, FOLD_CONVOLUTIONS)
        for stage in (FUSE_SUBGRAPHS, FUSE_PRODUCTS):
            _run(session, stage)
            clean_up(session, CLEAN_UP_AFTER)
        _run(session, FUSE_REST)
    for node in graph.nodes:
        assert isinstance(node.op, Op)
        for inner in node.op.graphs:
            _optimize(inner, level, keep_quantized, budget)
    return session.report


def tidy(graph: Graph) -> None:
    """The first stage of `optimize`: nothing is fused, what is known of shapes is folded."""
    _tidy(PassRunner(graph))


def find_subgraphs(graph: Graph) -> PassReport:
    """The first stages of `optimize`: attention and rotations become nodes, products stay plain."""
    session = PassRunner(graph)
    _tidy(session)
    _run(session, FUSE_SUBGRAPHS)
    clean_up(session, CLEAN_UP)
    return session.report


def _tidy(session: PassRunner) -> None:
    clean_up(session, CLEAN_UP)
    if _run(session, LEGALISE):
        clean_up(session, CLEAN_UP)


def _run(session: PassRunner, passes: tuple[Pass, ...]) -> int:
    hits = 0
    for pass_ in passes:
        if not session.report.stopped:
            hits += len(session.run(pass_).hits)
    return hits


def clean_up(session: PassRunner, passes: tuple[Pass, ...]) -> None:
    """Repeats passes until nothing changes."""
    for _ in range(MAX_ROUNDS):
        if not _run(session, passes):
            break
        session.infer_types()
