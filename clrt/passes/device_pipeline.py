"""Device-dependent passes, run after the portable ones and before planning.

Their results belong to the loaded model; compiled models do not store them.
"""

from __future__ import annotations

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph, all_graphs
from clrt.passes.block_conv1d import BlockConv1d
from clrt.passes.channels_last import UseChannelsLast
from clrt.passes.demote_exact_weights import DemoteExactWeights
from clrt.passes.driver import Pass, PassRunner, fold_budget
from clrt.passes.expand_quantization import ExpandQuantization
from clrt.passes.lower_conv_transpose import LowerConvTranspose
from clrt.passes.lower_fourier import LowerFourier
from clrt.passes.pipeline import clean_up, optimize
from clrt.passes.quantize_activations import QuantizeActivations
from clrt.passes.report import PassReport
from clrt.passes.requantized_conv import FuseRequantizedConv
from clrt.passes.share_gather_weights import ShareGatherWeights
from clrt.passes.undo_rounded_matmul import UndoRoundedMatmul
from clrt.util.gc_control import gc_young_only

# In execution order; each pass says which devices it is for, and which passes follow it.
DEVICE_PASSES: tuple[Pass, ...] = (
    UndoRoundedMatmul(),  # int8 products -> float products, if these are faster
    LowerFourier(),  # DFT and STFT -> products, which have faster kernels; not in compiled models
    DemoteExactWeights(),  # precision: 16-bit weights if that is lossless
    QuantizeActivations(),  # precision: int8 dot products, if the model allows them
    ShareGatherWeights(),  # precision: Gather tables in the form that float32 products read
    LowerConvTranspose(),  # ConvTranspose -> Conv, which has faster kernels on CPUs
    BlockConv1d(),  # 1-D filters -> convolutions that fill SIMD vectors
    FuseRequantizedConv(),  # layout and precision: quantized convolutions in bytes
    ExpandQuantization(),  # fusion: residual sums of quantized nets in one launch
    UseChannelsLast(),  # layout: CPU kernels vectorise over channels
)


def optimize_for(graph: Graph, caps: DeviceCaps, level: int) -> PassReport:
    """Optimises a graph in place for a device: portable and device-dependent passes.

    Args:
        level: 0 does nothing, 1 cleans up, 2 also fuses and runs the device-dependent passes.

    Returns:
        Records of the pass runs; of the portable passes only those on `graph` itself, not on its
        inner graphs.

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
    passes = [p.tuned(caps) for p in DEVICE_PASSES if p.is_for(caps)]
    budget = fold_budget(graph)
    for one in list(all_graphs(graph)):
        runner = PassRunner(one, budget=budget)
        for pass_ in passes:
            if runner.run(pass_).hits:
                clean_up(runner, pass_.follow_ups)
        report.append(runner.report)
    return report
