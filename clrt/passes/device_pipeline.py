"""The passes that know the device, between the portable ones and planning.

What they make stays with the model that was loaded: compiled models do not hold it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from clrt.device.caps import VNNI_INT8, DeviceCaps
from clrt.ir.graph import Graph
from clrt.ops.base import all_graphs
from clrt.passes.block_conv1d import WidenLines
from clrt.passes.canonicalize_matmul import CanonicalizeMatmul
from clrt.passes.canonicalize_views import SimplifyTransposes
from clrt.passes.channels_last import SinkChannels, UseChannelsLast
from clrt.passes.demote_exact_weights import NarrowWeights
from clrt.passes.driver import Pass, PassRunner, fold_budget
from clrt.passes.fuse_dequantized_matmul import FuseDequantizedMatmul
from clrt.passes.fuse_elementwise import FuseElementwise
from clrt.passes.lower_conv_transpose import UseSubPixels
from clrt.passes.lower_fourier import UseFourierMatrices
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
from clrt.passes.quantize_activations import RoundActivations
from clrt.passes.report import PassReport
from clrt.passes.share_gather_weights import KeepScales
from clrt.passes.sink_transpose import SinkTranspose
from clrt.passes.undo_rounded_matmul import RestoreRounded
from clrt.util.gc_control import gc_young_only

ForDevice: TypeAlias = Callable[[DeviceCaps], "Pass | None"]


def _restore_rounded(caps: DeviceCaps) -> Pass | None:
    return None if VNNI_INT8 in caps.matrix_shapes else RestoreRounded()


def _use_fourier_matrices(caps: DeviceCaps) -> Pass | None:
    """Not among the portable passes: compiled models have the ops, which take no memory."""
    return UseFourierMatrices()


def _narrow_weights(caps: DeviceCaps) -> Pass | None:
    """Every device's kernels of products read 16 bits as they are and sum in float32."""
    return NarrowWeights()


def _round_activations(caps: DeviceCaps) -> Pass | None:
    return RoundActivations() if caps.int8_dot_isa else None


def _keep_scales(caps: DeviceCaps) -> Pass | None:
    return None if caps.is_cpu else KeepScales()


def _use_sub_pixels(caps: DeviceCaps) -> Pass | None:
    return UseSubPixels() if caps.is_cpu else None


def _widen_lines(caps: DeviceCaps) -> Pass | None:
    return WidenLines() if caps.is_cpu else None


def _use_channels_last(caps: DeviceCaps) -> Pass | None:
    return UseChannelsLast() if caps.is_cpu else None


# In order. Each gives a pass for a device, or None where it has nothing to do there.
DEVICE_PASSES: tuple[ForDevice, ...] = (
    _restore_rounded,  # products of integers, where those of floats are faster
    _use_fourier_matrices,  # products, which have the better kernels everywhere
    _narrow_weights,  # precision: products read what loses nothing in half the bytes
    _round_activations,  # precision: dots of bytes, where the model allows them
    _keep_scales,  # precision: tables as products of float32 read them
    _use_sub_pixels,  # ConvTranspose as a convolution, which has the better kernels there
    _widen_lines,  # filters of signals as convolutions that fill vectors
    _use_channels_last,  # layout: CPUs read windows as whole vectors of channels
)
# What is repeated behind a pass that changed something, until nothing changes.
FOLLOW_UP_PASSES: dict[str, tuple[Pass, ...]] = {
    # Products of floats, as `optimize` makes them.
    RestoreRounded.name: (
        ELIMINATE_COMMON,  # products of one A round it once
        FOLD_CONSTANTS,
        FuseDequantizedMatmul(),
        CanonicalizeMatmul(),
        FUSE_EPILOGUE,
        FuseElementwise(),
        ELIMINATE_DEAD,
    ),
    UseFourierMatrices.name: (SimplifyTransposes(), REMOVE_IDENTITY, CANONICALIZE_VIEWS),
    # The transposes that a layout needs meet others, and vanish.
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
    """Rewrites a graph in place into an equal one that runs faster on a device.

    Args:
        level: As `optimize` takes it; what depends on the device is part of 2.

    Raises:
        PassError: A pass broke an invariant (a bug in clrt).
    """
    report = optimize(graph, level)
    if level == 2:
        report.append(prepare(graph, caps))
    return report


@gc_young_only
def prepare(graph: Graph, caps: DeviceCaps) -> PassReport:
    """Rewrites an optimised graph in place into an equal one that runs faster on a device.

    Every decision holds for all shapes: dims stay symbolic. Doing it again changes nothing.

    Raises:
        PassError: A pass broke an invariant (a bug in clrt).
    """
    report = PassReport()
    passes = [made for make in DEVICE_PASSES if (made := make(caps)) is not None]
    budget = fold_budget(graph)
    for one in list(all_graphs(graph)):
        session = PassRunner(one, budget=budget)
        for pass_ in passes:
            if session.run(pass_).hits:
                clean_up(session, FOLLOW_UP_PASSES.get(pass_.name, ()))
        report.append(session.report)
    return report
