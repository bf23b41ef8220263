"""Device-dependent passes, run after the portable ones and before planning.

Their results belong to the loaded model; compiled models do not store them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.graph import Graph
from clrt.ops.base import all_graphs
from clrt.passes.block_conv1d import BlockConv1d
from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.canonicalize_views import SimplifyTransposes
from clrt.passes.channels_last import SinkChannels, UseChannelsLast
from clrt.passes.demote_exact_weights import DemoteExactWeights
from clrt.passes.driver import Pass, PassRunner, fold_budget
from clrt.passes.fuse_dequantized_matmul import FuseDequantizedMatmul
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.lower_conv_transpose import LowerConvTranspose
from clrt.passes.lower_fourier import LowerFourier
from clrt.passes.pipeline import (
    CANONICALIZE_VIEWS,
    ELIMINATE_COMMON,
    ELIMINATE_DEAD,
    FOLD_CONSTANTS,
    FUSE_EPILOGUE,
    REMOVE_IDENTITY,
    clean_up,
    optimize,
)
from clrt.passes.quantize_activations import QuantizeActivations
from clrt.passes.report import PassReport
from clrt.passes.share_gather_weights import ShareGatherWeights
from clrt.passes.sink_transpose import SinkTranspose
from clrt.passes.undo_rounded_matmul import UndoRoundedMatmul
from clrt.util.gc_control import gc_young_only

ForDevice: TypeAlias = Callable[[DeviceCaps], "Pass | None"]


def _restore_rounded(caps: DeviceCaps) -> Pass | None:
    return None if VNNI_INT8 in caps.matrix_shapes else UndoRoundedMatmul()


def _use_fourier_matrices(caps: DeviceCaps) -> Pass | None:
    """Returns the pass for all devices; not in `optimize`, so compiled models store no matrices."""
    return LowerFourier()


def _narrow_weights(caps: DeviceCaps) -> Pass | None:
    """Returns the pass for all devices: GEMM kernels read 16-bit weights, accumulate in float32."""
    return DemoteExactWeights()


def _round_activations(caps: DeviceCaps) -> Pass | None:
    return QuantizeActivations() if caps.int8_dot_isa else None


def _keep_scales(caps: DeviceCaps) -> Pass | None:
    return None if caps.is_cpu else ShareGatherWeights()


def _use_sub_pixels(caps: DeviceCaps) -> Pass | None:
    return LowerConvTranspose() if caps.is_cpu else None


def _widen_lines(caps: DeviceCaps) -> Pass | None:
    return BlockConv1d() if caps.is_cpu else None


def _use_channels_last(caps: DeviceCaps) -> Pass | None:
    return UseChannelsLast() if caps.is_cpu else None


# Pass factories in execution order. Each returns None if the pass does not apply to the device.
DEVICE_PASSES: tuple[ForDevice, ...] = (
    _restore_rounded,  # int8 products -> float products, if these are faster
    _use_fourier_matrices,  # DFT and STFT -> products, which have faster kernels
    _narrow_weights,  # precision: 16-bit weights if that is lossless
    _round_activations,  # precision: int8 dot products, if the model allows them
    _keep_scales,  # precision: Gather tables in the form that float32 products read
    _use_sub_pixels,  # ConvTranspose -> Conv, which has faster kernels on CPUs
    _widen_lines,  # 1-D filters -> convolutions that fill SIMD vectors
    _use_channels_last,  # layout: CPU kernels vectorise over channels
)
# Passes by the name of the pass that they follow if it changed anything; repeated until nothing
# changes.
FOLLOW_UP_PASSES: dict[str, tuple[Pass, ...]] = {
    # Fuses float products as `optimize` does.
    UndoRoundedMatmul.name: (
        ELIMINATE_COMMON,  # one RoundToScale for all products of the same A
        FOLD_CONSTANTS,
        FuseDequantizedMatmul(),
        CanonicalizeMatmul(),
        FUSE_EPILOGUE,
        FuseElementwise(),
        ELIMINATE_DEAD,
    ),
    LowerFourier.name: (SimplifyTransposes(), REMOVE_IDENTITY, CANONICALIZE_VIEWS),
    # Cancels the transposes around channels-last nodes.
    UseChannelsLast.name: (
        SimplifyTransposes(),
        SinkTranspose(),
        SinkChannels(),
        REMOVE_IDENTITY,
        CANONICALIZE_VIEWS,
        ELIMINATE_COMMON,
        ELIMINATE_DEAD,
    ),
}


def optimize_for(graph: Graph, caps: DeviceCaps, level: int) -> PassReport:
    """Optimises a graph in place for a device: portable and device-dependent passes.

    Args:
        level: 0 does nothing, 1 cleans up, 2 also fuses and runs the device-dependent passes.

    Returns:
        Records of all pass runs.

    Raises:
        PassError: A pass broke an invariant (a bug in clrt).
    """
    report = optimize(graph, level)
    if level == 2:
        report.append(prepare(graph, caps))
    return report


@gc_young_only
def prepare(graph: Graph, caps: DeviceCaps) -> PassReport:
    """Runs the device-dependent passes on an optimised graph and its inner graphs, in place.

    Rewrites hold for all input shapes: dims stay symbolic. A second call changes nothing.

    Returns:
        Records of the pass runs on all graphs.

    Raises:
        PassError: A pass broke an invariant (a bug in clrt).
    """
    report = PassReport()
    passes = [p for factory in DEVICE_PASSES if (p := factory(caps)) is not None]
    budget = fold_budget(graph)
    for one in list(all_graphs(graph)):
        runner = PassRunner(one, budget=budget)
        for pass_ in passes:
            if runner.run(pass_).hits:
                clean_up(runner, FOLLOW_UP_PASSES.get(pass_.name, ()))
        report.append(runner.report)
    return report
