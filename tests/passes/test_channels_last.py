"""Channels-last convolutions, and sinking of the transposes around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from clrt.device.caps import DeviceCaps
from clrt.ir.dims import match_symbols
from clrt.ir.graph import Graph
from clrt.models.onnx.importer import import_model
from clrt.ops.conv.channels_last import MAX_DEPTHWISE_TAPS, ChannelsLastConv
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.channels_last import SinkChannels
from clrt.passes.device_pipeline import prepare
from clrt.passes.pipeline import optimize
from clrt.plan.specialise import specialise
from tests.passes.helpers import assert_same_results, check_miss, graph_of, random_inputs
from tests.plans import plan
from tools.benchmark.conv_nets import conv_nets

SIZES = {"N": 2, "H": 6, "W": 8}
CPU = DeviceCaps("p", "cpu", "v", "1", "cpu")
X = "%x: float32[N,8,H,W]"
CONV = "Conv{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}"
WEIGHTS = "const %w: float32[8,8,3,3] = ...\nconst %v: float32[8,8,3,3] = ...\n"
START = f"{WEIGHTS}%a: float32[N,8,H,W] = {CONV}(%x, %w)\n"


def prepared(
    body: str,
    inputs: str = X,
    outputs: str = "%y",
    caps: DeviceCaps = CPU,
    sizes: Mapping[str, int] = SIZES,
) -> Graph:
    """The graph as a device runs it; it computes the same."""
    graph = graph_of(body, inputs, outputs)
    optimize(graph)
    feeds = random_inputs(graph, sizes)
    before = evaluate(graph, feeds)
    prepare(graph, caps)
    assert_same_results(before, evaluate(graph, feeds))
    return graph


def ops(graph: Graph) -> Counter[str]:
    """How many nodes there are of each op."""
    return Counter(n.op.name for n in graph.nodes)


# What stands between two convolutions, of %a to %b, and how many transposes remain besides the
# two at the ends.
BETWEEN = {
    "nothing": ("%b: float32[N,8,H,W] = Identity(%a)", 0),
    "activation": ("%b: float32[N,8,H,W] = HardSwish(%a)", 0),
    "scale by channel": (
        "const %s: float32[8,1,1] = ...\n%t: float32[N,8,H,W] = Mul(%a, %s)\n"
        "%b: float32[N,8,H,W] = Div(%t, %a)",
        0,
    ),
    "residual": (
        f"%r: float32[N,8,H,W] = {CONV}(%a, %v)\n%t: float32[N,8,H,W] = Add(%r, %a)\n"
        "%b: float32[N,8,H,W] = Relu(%t)",
        0,
    ),
    "squeeze and excite": (
        "%m: float32[N,8,1,1] = GlobalAveragePool(%a)\n%g: float32[N,8,1,1] = Sigmoid(%m)\n"
        "%b: float32[N,8,H,W] = Mul(%a, %g)",
        0,
    ),
    "max pool": ("%b: float32[N,8,H - 1,W - 1] = MaxPool{kernel_shape=[2, 2]}(%a)", 0),
    "average pool": ("%b: float32[N,8,H - 1,W - 1] = AveragePool{kernel_shape=[2, 2]}(%a)", 0),
    "resize": (
        "const %s: float32[4] = [1.0, 1.0, 2.0, 2.0]\n"
        '%b: float32[N,8,2*H,2*W] = Resize{mode="nearest"}(%a, _, %s)',
        0,
    ),
    "concat and slice": (
        "%t: float32[N,16,H,W] = Concat{axis=1}(%a, %a)\nconst %i: int64[1] = [4]\n"
        "const %j: int64[1] = [12]\nconst %k: int64[1] = [1]\n"
        "%b: float32[N,8,H,W] = Slice(%t, %i, %j, %k)",
        0,
    ),
    "split": (
        "%p: float32[N,4,H,W], %q: float32[N,4,H,W] = Split{axis=1, num_outputs=2}(%a)\n"
        "%b: float32[N,8,H,W] = Concat{axis=1}(%q, %p)",
        0,
    ),
    "group norm": (
        "const %s: int64[3] = [0, 4, -1]\n%m: float32[N,4,2*H*W] = Reshape(%a, %s)\n"
        "const %o: float32[4] = [1.0, 1.0, 1.0, 1.0]\n"
        "const %u: float32[4] = [0.0, 0.0, 0.0, 0.0]\n"
        "%i: float32[N,4,2*H*W] = InstanceNormalization(%m, %o, %u)\n%h: int64[4] = Shape(%a)\n"
        "%g: float32[N,8,H,W] = Reshape(%i, %h)\nconst %f: float32[8,1,1] = ...\n"
        "const %e: float32[8,1,1] = ...\n%t: float32[N,8,H,W] = Mul(%g, %f)\n"
        "%b: float32[N,8,H,W] = Add(%t, %e)",
        0,
    ),
    "instance norm": (
        "const %s: float32[8] = ...\nconst %t: float32[8] = ...\n"
        "%b: float32[N,8,H,W] = InstanceNormalization(%a, %s, %t)",
        0,
    ),
    "softmax": ("%b: float32[N,8,H,W] = Softmax{axis=1}(%a)", 0),
    "pad": (
        "const %p: int64[8] = [0, 0, 1, 2, 0, 0, 3, 0]\n"
        '%b: float32[N,8,H + 4,W + 2] = Pad{mode="reflect"}(%a, %p)',
        0,
    ),
    "tokens": (
        "const %s: int64[3] = [0, 0, -1]\n%m: float32[N,8,H*W] = Reshape(%a, %s)\n"
        "%t: float32[N,H*W,8] = Transpose{perm=[0, 2, 1]}(%m)\n"
        "const %k: float32[8] = ...\n%g: float32[N,H*W,8] = Mul(%t, %k)\n"
        "%q: float32[N,8,H*W] = Transpose{perm=[0, 2, 1]}(%g)\n%h: int64[4] = Shape(%a)\n"
        "%b: float32[N,8,H,W] = Reshape(%q, %h)",
        0,
    ),
    "a view across channels": (
        "const %s: int64[3] = [0, 4, -1]\n%m: float32[N,4,2*H*W] = Reshape(%a, %s)\n"
        "%h: int64[4] = Shape(%a)\n%g: float32[N,4,2*H*W] = Softmax{axis=1}(%m)\n"
        "%b: float32[N,8,H,W] = Reshape(%g, %h)",
        2,
    ),
    "an op of its own": ("%b: float32[N,2,2*H,2*W] = DepthToSpace{blocksize=2}(%a)", 2),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_conv_chain_stays_channels_last(between: str) -> None:
    text, more = BETWEEN[between]
    last = "%z" if "DepthToSpace" in text else "%v"
    body = f"const %z: float32[8,2,3,3] = ...\n{START}{text}\n"
    shape = text.rpartition("%b: float32[")[2].partition("]")[0].split(",", 2)[2]
    found = ops(prepared(f"{body}%y: float32[N,8,{shape}] = {CONV}(%b, {last})"))
    assert found["Transpose"] == 2 + more
    assert found["ChannelsLastConv"] >= 2 and not found["Conv"]


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
def test_conv_reads_channels_first_image_without_transpose(channels: int) -> None:
    weights = f"const %w: float32[8,{channels},3,3] = ...\n"
    conv = "Conv{kernel_shape=[3, 3], pads=[1, 0, 2, 1]}(%x, %w)"
    body = f"{weights}%y: float32[N,8,H + 1,W - 1] = {conv}"
    found = ops(prepared(body, f"%x: float32[N,{channels},H,W]"))
    assert found["Transpose"] == (2 if channels == 5 else 1)


def test_conv_chain_of_three_channels_stays_channels_last() -> None:
    weights = "const %w: float32[3,3,3,3] = ...\n"
    body = f"{weights}%a: float32[N,3,H,W] = {CONV}(%x, %w)\n%b: float32[N,3,H,W] = Relu(%a)\n"
    found = ops(prepared(f"{body}%y: float32[N,3,H,W] = {CONV}(%b, %w)", "%x: float32[N,3,H,W]"))
    assert found["Transpose"] == 1


def test_activation_after_instance_norm_is_fused() -> None:
    body = f"""{START}const %s: float32[8] = ...
const %t: float32[8] = ...
%i: float32[N,8,H,W] = InstanceNormalization(%a, %s, %t)
%g: float32[N,8,H,W] = Sigmoid(%i)
%b: float32[N,8,H,W] = Mul(%i, %g)
%y: float32[N,8,H,W] = {CONV}(%b, %v)"""
    found = ops(prepared(body))
    assert found == {"Transpose": 2, "ChannelsLastConv": 2, "ChannelsLastGroupNormalization": 1}


def test_instance_norm_without_channels_stays_channels_first() -> None:
    body = """const %e: float32[0] = []
%a: float32[B,0,S,T] = Transpose{perm=[0,3,1,2]}(%x)
%b: float32[B,0,S,T] = InstanceNormalization(%a, %e, %e)
%y: float32[B,S,T,0] = Transpose{perm=[0,2,3,1]}(%b)"""
    check_miss(SinkChannels(), "%x: float32[B,S,T,0]", body, "no kernel for float32[B,0,S,T]")


def test_global_mean_of_channels_last_conv_needs_no_transpose() -> None:
    body = f"""{START}
      const %axes: int64[2] = [2, 3]
      %y: float32[N,8] = ReduceMean{{keepdims=0}}(%a, %axes)
    """
    found = ops(prepared(body))
    assert found["Transpose"] == 1 and found["ReduceMean"] == 1


def test_channels_last_value_is_transposed_for_other_readers_only() -> None:
    body = f"{START}%b: float32[N,8,H,W] = {CONV}(%a, %v)\n%y: float32[N,8,H,W] = Neg(%b)"
    graph = prepared(body, outputs="%y, %a")
    assert ops(graph)["Transpose"] == 3
    assert ops(graph)["ChannelsLastConv"] == 2


def test_mono_audio_becomes_channels_last_by_reshape() -> None:
    body = """const %w: float32[32,1,16] = ...
      %y: float32[N,32,H - 15] = Conv{kernel_shape=[16]}(%x, %w)"""
    found = ops(prepared(body.replace("H - 15", "5"), "%x: float32[N,1,20]"))
    assert found["Transpose"] == 1 and found["Reshape"] == 1


KEPT = {
    "computed weights": (
        "",
        f"%y: float32[N,8,H,W] = {CONV}(%x, %k)",
        f"{X}, %k: float32[8,8,3,3]",
    ),
    "narrow groups": (
        "const %w: float32[13,2,3,3] = ...\n",
        f"%y: float32[N,13,H,W] = {CONV[:-1]}, group=13}}(%x, %w)",
        "%x: float32[N,26,H,W]",
    ),
    "float64": (
        "const %w: float64[8,8,3,3] = ...\n",
        f"%y: float64[N,8,H,W] = {CONV}(%x, %w)",
        X.replace("float32", "float64"),
    ),
    "a large window": (
        f"const %w: float32[8,1,1,{MAX_DEPTHWISE_TAPS + 1}] = ...\n",
        "%y: float32[N,8,H,W] = Conv{group=8, pads=[0, 64, 0, 64]}(%x, %w)",
        X,
    ),
}


@pytest.mark.parametrize("why", KEPT)
def test_unsupported_convs_stay_channels_first(why: str) -> None:
    constants, node, inputs = KEPT[why]
    found = ops(prepared(constants + node, inputs))
    assert not found["ChannelsLastConv"] and not found["Transpose"]


def test_gpu_convs_stay_channels_first() -> None:
    found = ops(
        prepared(
            f"{START}%y: float32[N,8,H,W] = Neg(%a)", caps=DeviceCaps("p", "g", "v", "1", "gpu")
        )
    )
    assert not found["ChannelsLastConv"]


@pytest.mark.parametrize("name", ["ResNet-50", "MobileNetV2", "EfficientNet-B0"])
def test_conv_net_plan_has_no_transpose_and_compact_arena(name: str) -> None:
    graph = import_model(conv_nets()[name])
    optimize(graph)
    prepare(graph, CPU)
    assert not ops(graph)["Conv"]
    image = graph.inputs[0]
    found = plan(specialise(graph, match_symbols(image.shape or (), (1, 3, 224, 224))))
    assert all(n.op.name != "Transpose" for s in found.steps for n in s.nodes)
    assert found.arena.nbytes <= 1.10 * found.live_bytes


@pytest.mark.parametrize(
    "channels, maps, groups",
    [(8, 8, 2), (32, 32, 8), (12, 24, 3), (10, 20, 5), (16, 8, 4), (6, 12, 6)],
)
def test_narrow_conv_groups_are_merged(channels: int, maps: int, groups: int) -> None:
    conv = CONV.replace("}", f", group={groups}}}")
    body = f"""
      const %w: float32[{maps},{channels // groups},3,3] = ...
      %y: float32[N,{maps},H,W] = {conv}(%x, %w)
    """
    graph = prepared(body, f"%x: float32[N,{channels},H,W]")
    (op,) = (n.op for n in graph.nodes if isinstance(n.op, ChannelsLastConv))
    assert op.group < groups


# Along one axis, channels move to the back as they move to the front.
ALONG_ONE_AXIS = {
    "as many operands": "%b: float32[1,8,6] = HardSwish(%a)\n%y: float32[1,8,6] = Div(%b, %x)",
    "a column": "%m: float32[1,8,1] = ReduceMax(%a, %axes)\n%y: float32[1,8,1] = Add(%m, %z)",
    "concat": "%y: float32[1,16,6] = Concat{axis=1}(%a, %x)",
    "concat with a constant": (
        "const %k: float32[1,8,6] = ...\n%y: float32[1,24,6] = Concat{axis=1}(%a, %x, %k)"
    ),
}


@pytest.mark.parametrize("why", ALONG_ONE_AXIS)
def test_conv1d_with_mixed_layout_readers_stays_channels_last(why: str) -> None:
    body = f"""const %w: float32[8,8,3] = ...
      const %axes: int64[1] = [2]
      %a: float32[1,8,6] = Conv{{kernel_shape=[3], pads=[1, 1]}}(%x, %w)
      {ALONG_ONE_AXIS[why]}"""
    found = ops(prepared(body, "%x: float32[1,8,6], %z: float32[1,8,1]"))
    assert found["ChannelsLastConv"] == 1
