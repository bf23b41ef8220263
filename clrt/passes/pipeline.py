"""Pass pipeline of the optimiser: passes by stage, in execution order."""

from __future__ import annotations

from clrt.ir.graph import Graph
from clrt.ops.base import Op
from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.canonicalize_views import CanonicalizeViews, SimplifyTransposes
from clrt.passes.driver import Pass, PassReport, PassRunner, fold_budget
from clrt.passes.elide_split_concat import ElideSplitConcat
from clrt.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from clrt.passes.eliminate_dead import EliminateDead
from clrt.passes.fold_affine import ExpandBatchNormalization, FoldAffine
from clrt.passes.fold_constants import FoldConstants, FoldShapeData
from clrt.passes.fold_pad import FoldPad
from clrt.passes.fuse_attention import FuseAttention
from clrt.passes.fuse_dequantized_matmul import FuseDequantizedMatmul
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.fuse_epilogue import FuseEpilogue
from clrt.passes.fuse_fake_quantize import FuseFakeQuantize, FuseRoundedMatmul
from clrt.passes.fuse_gelu import FuseGelu
from clrt.passes.fuse_group_norm import FuseGroupNorm
from clrt.passes.fuse_layer_norm import FuseLayerNorm
from clrt.passes.fuse_rotary import FuseRotary
from clrt.passes.fuse_swish import FuseSwish
from clrt.passes.hoist_loop_invariants import HoistLoopInvariants
from clrt.passes.inline_subgraphs import InlineSubgraphs
from clrt.passes.lower_attention import LowerAttention
from clrt.passes.merge_qkv import MergeQkv
from clrt.passes.promote_to_float32 import PromoteToFloat32
from clrt.passes.propagate_loop_dims import PropagateLoopDims
from clrt.passes.remove_identity import RemoveIdentity
from clrt.passes.simplify_affine_gathers import SimplifyAffineGathers
from clrt.passes.simplify_algebra import SimplifyAlgebra
from clrt.passes.sink_captures import SinkCaptures
from clrt.passes.sink_expand import SinkExpand
from clrt.passes.sink_reshape import SinkReshape
from clrt.passes.sink_slice import SinkSlice
from clrt.util.gc_control import gc_young_only
from clrt.util.host_limits import FoldBudget

# Maximum number of repetitions of a group of passes that is repeated until nothing changes.
MAX_ROUNDS = 6

# Repeated until nothing changes: each pass creates matches for others.
CLEAN_UP: tuple[Pass, ...] = (
    EliminateDead(),  # before passes that count users
    FoldShapeData(),  # Shape and arithmetic on shapes -> constants, perhaps symbolic
    FoldConstants(),  # nodes whose inputs are all constant
    HoistLoopInvariants(),  # loop-carried values that never change, such as weights
    PropagateLoopDims(),  # dims of loop-carried values that stay the same in each iteration
    SinkCaptures(),  # into inner graphs, which are optimised after this one
    InlineSubgraphs(),  # If with a constant condition, Einsum
    RemoveIdentity(),  # Dropout, casts and views that change nothing, neutral operands
    CanonicalizeViews(transposes=False),  # Flatten, Squeeze, Unsqueeze -> Reshape, merged
    SimplifyTransposes(),  # merges two; removes Reshapes around batched ones
    EliminateCommonSubexpressions(),  # exporters repeat masks and shapes in every layer
    SimplifyAlgebra(),  # cheaper elementwise forms
    SimplifyAffineGathers(),  # gathers of all elements in order, as in exported masks
    SinkExpand(),  # compute first, broadcast later
    ElideSplitConcat(),  # Concat of all outputs of a Split
    SinkSlice(),  # position embeddings are a slice of a constant
)

# Clean-up after pattern matching: Transposes of a single token become views too, which attention
# matching relied on.
CLEAN_UP_AFTER = tuple(
    CanonicalizeViews() if isinstance(p, CanonicalizeViews) else p for p in CLEAN_UP
)

# Before pattern matching: patterns are in float32.
LEGALISE: tuple[Pass, ...] = (PromoteToFloat32(),)

# Patterns of QuantizeLinear and DequantizeLinear, before constants are dequantized.
FUSE_QUANTIZED: tuple[Pass, ...] = (
    FuseRoundedMatmul(),  # int8 products, while both operands are DequantizeLinear
    FuseFakeQuantize(),  # QuantizeLinear followed by DequantizeLinear
)

# Repeated until nothing changes: folding a factor allows to fold the shift after it.
FOLD_CONVOLUTIONS: tuple[Pass, ...] = (
    FoldPad(),
    ExpandBatchNormalization(),
    FoldAffine(),
    FoldConstants(),
)

# Subgraphs that have a hand-written kernel; attention before products absorb its scale.
FUSE_SUBGRAPHS: tuple[Pass, ...] = (
    FuseLayerNorm(),
    FuseGroupNorm(),
    FuseGelu(),  # before epilogues absorb its nodes
    FuseSwish(),
    FuseRotary(),  # before attention, which reads its output
    FuseAttention(),
    LowerAttention(),  # ONNX Attention (opset 23)
)

# Matrix products and convolutions absorb transposes, bias, activation and residual.
FUSE_PRODUCTS: tuple[Pass, ...] = (
    FuseDequantizedMatmul(),  # before it becomes a FusedMatMul
    CanonicalizeMatmul(),  # transpositions, alpha, beta, bias
    SinkReshape(),  # [B * S, K] around every Gemm
    RemoveIdentity(),
    CanonicalizeViews(),
    EliminateCommonSubexpressions(),  # before Adds of shared masks are fused into several nodes
    FuseEpilogue(),  # bias, activation, residual
    MergeQkv(),  # after bias fusion: three projections -> one product
)

# Remaining elementwise nodes.
FUSE_REST: tuple[Pass, ...] = (
    FuseElementwise(),  # chains and DAGs of elementwise ops
    FuseEpilogue(),  # fused DAGs after a product, such as x * sigmoid(x)
    FoldConstants(),  # transposed weights that no product absorbed
    EliminateDead(),
)


@gc_young_only
def optimize(graph: Graph, level: int = 2, keep_quantized: bool = False) -> PassReport:
    """Optimises a graph in place, independently of input shapes and devices.

    Dims stay symbolic, and compiled models store the result. Device-dependent passes are in
    `clrt.passes.device_pipeline`.

    Args:
        graph: Graph to optimise, with its inner graphs.
        level: 0 does nothing, 1 cleans up, 2 also fuses.
        keep_quantized: Whether DequantizeLinear of weights is kept, for ONNX Runtime and its
            quantized kernels. Otherwise small weights of more than 4 bits become floats; products
            read 4-bit and large weights as they are.

    Returns:
        Records of the pass runs on the graph, without inner graphs.

    Raises:
        PassError: A pass broke an invariant (a bug in clrt).
    """
    return _optimize(graph, level, keep_quantized, fold_budget(graph))


def _optimize(graph: Graph, level: int, keep_quantized: bool, budget: FoldBudget) -> PassReport:
    """Runs the passes of an optimization level on a graph and its inner graphs.

    Args:
        graph: Graph, changed in place.
        level: As for `optimize`: 0 does nothing, 1 cleans up, 2 also fuses.
        keep_quantized: Whether DequantizeLinear of weights is kept.
        budget: Budget for constant folding, shared with the inner graphs.

    Returns:
        Records of the pass runs on the graph, without inner graphs.
    """
    folds = FoldConstants(dequantize=not keep_quantized, products=level < 2)
    instead = [folds] if keep_quantized or level < 2 else []
    runner = PassRunner(graph, *instead, budget=budget)
    if level >= 1:
        _tidy(runner)
    if level == 1:
        clean_up(runner, CLEAN_UP_AFTER)
    if level >= 2:
        if not keep_quantized:
            clean_up(runner, (*FUSE_QUANTIZED, FoldConstants()))
        clean_up(runner, FOLD_CONVOLUTIONS)
        for stage in (FUSE_SUBGRAPHS, FUSE_PRODUCTS):
            _run(runner, stage)
            clean_up(runner, CLEAN_UP_AFTER)
        _run(runner, FUSE_REST)
    for node in graph.nodes:
        op = node.op_as(Op)
        for inner in op.graphs:
            _optimize(inner, level, keep_quantized, budget)
    return runner.report


def tidy(graph: Graph) -> None:
    """Runs the first stage of `optimize` on a graph, in place: clean-up, promotion to float32."""
    _tidy(PassRunner(graph))


def find_subgraphs(graph: Graph) -> PassReport:
    """Optimises a graph in place up to fused norms, activations, rotary embeddings and attention.

    Unlike `optimize`, does not rewrite matrix products. Returns records of the pass runs.
    """
    runner = PassRunner(graph)
    _tidy(runner)
    _run(runner, FUSE_SUBGRAPHS)
    clean_up(runner, CLEAN_UP)
    return runner.report


def _tidy(runner: PassRunner) -> None:
    """Cleans up a graph, promotes 16-bit floats to float32, and cleans up again if any were."""
    clean_up(runner, CLEAN_UP)
    if _run(runner, LEGALISE):
        clean_up(runner, CLEAN_UP)


def _run(runner: PassRunner, passes: tuple[Pass, ...]) -> int:
    """Runs passes in order, up to the limit of patches; returns the number of patches applied."""
    hits = 0
    for pass_ in passes:
        if not runner.report.stopped:
            hits += len(runner.run(pass_).hits)
    return hits


def clean_up(runner: PassRunner, passes: tuple[Pass, ...]) -> None:
    """Repeats passes until none matches, at most `MAX_ROUNDS` times; infers types in between."""
    for _ in range(MAX_ROUNDS):
        if not _run(runner, passes):
            break
        runner.infer_types()
