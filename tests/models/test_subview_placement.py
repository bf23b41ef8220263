"""Subview placement: Concat, Split and Slice without copies, as parts of other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.device_pipeline import prepare
from clrt.passes.pipeline import optimize
from tests.harness import SWEEP, all_devices, name_of, plan_graph
from tests.models.part_graphs import image_graph, matrix_graph
from tests.passes.helpers import graph_of, random_inputs

DEVICES = pytest.mark.parametrize("device", all_devices(), ids=name_of)
CPUS = pytest.mark.parametrize("device", [d for d in all_devices() if d.caps.is_cpu], ids=name_of)
IMAGE = "%x: float32[N,16,12,20]"
WINDOW = "Conv{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}"
POINT = "Conv{kernel_shape=[1, 1]}"
HALF = "float32[N,8,12,20]"
FULL = "float32[N,16,12,20]"
COPIES = ("copy_parts", "copy_strided")

# YOLO's C2f: half of what a convolution makes goes through two others and a sum, and all stand
# side by side in what the last one reads.
C2F = f"""
const %w: float32[16,16,1,1] = ...
const %v: float32[8,8,3,3] = ...
const %u: float32[8,8,3,3] = ...
const %z: float32[16,24,1,1] = ...
%a: {FULL} = {POINT}(%x, %w)
%b: {HALF}, %c: {HALF} = Split{{axis=1, num_outputs=2}}(%a)
%d: {HALF} = {WINDOW}(%c, %v)
%e: {HALF} = {WINDOW}(%d, %u)
%f: {HALF} = Add(%c, %e)
%g: float32[N,24,12,20] = Concat{{axis=1}}(%b, %c, %f)
%y: {FULL} = {POINT}(%g, %z)
"""

# A level of a U-Net: what the encoder made waits in what the decoder reads.
U_NET = f"""
const %w: float32[16,16,3,3] = ...
const %v: float32[8,16,3,3] = ...
const %u: float32[16,24,3,3] = ...
const %s: float32[4] = [1, 1, 2, 2]
%a: {FULL} = {WINDOW}(%x, %w)
%b: float32[N,16,6,10] = MaxPool{{kernel_shape=[2, 2], strides=[2, 2]}}(%a)
%c: float32[N,8,6,10] = {WINDOW}(%b, %v)
%d: {HALF} = Resize{{mode="nearest"}}(%c, _, %s)
%e: float32[N,24,12,20] = Concat{{axis=1}}(%d, %a)
%y: {FULL} = {WINDOW}(%e, %u)
"""

# SPPF: each pool reads a part and makes the next one.
PYRAMID = f"""
const %w: float32[8,16,1,1] = ...
const %v: float32[16,24,1,1] = ...
%a: {HALF} = {POINT}(%x, %w)
%b: {HALF} = MaxPool{{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}}(%a)
%c: {HALF} = MaxPool{{kernel_shape=[3, 3], pads=[1, 1, 1, 1]}}(%b)
%d: float32[N,24,12,20] = Concat{{axis=1}}(%a, %b, %c)
%y: {FULL} = {POINT}(%d, %v)
"""

# A Concat in a Concat, of two kinds of convolution.
NESTED = f"""
const %w: float32[8,16,1,1] = ...
const %v: float32[8,1,3,3] = ...
const %u: float32[8,16,3,3] = ...
const %z: float32[16,24,1,1] = ...
%a: {HALF} = {POINT}(%x, %w)
%b: {HALF} = Conv{{kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=8}}(%a, %v)
%c: {FULL} = Concat{{axis=1}}(%a, %b)
%d: {HALF} = {WINDOW}(%c, %u)
%e: float32[N,24,12,20] = Concat{{axis=1}}(%d, %c)
%y: {FULL} = {POINT}(%e, %z)
"""


def feeds_of(graph: Graph, images: int = 2) -> Mapping[str, Array]:
    return random_inputs(graph, {"N": images})


def check(graph: Graph, device: clrt.DeviceInfo, *feeds: Mapping[str, Array]) -> clrt.Model:
    """Returns the model of a graph after comparing its results with the references."""
    wanted = [evaluate(graph, f) for f in feeds]
    model = clrt.load(graph, device=device.index, strict=True)
    for given, expected in zip(feeds, wanted, strict=True):
        for _ in range(2):  # what a run leaves in the arena must not matter to the next
            found = model.run(dict(given))
        for name, array in expected.items():
            np.testing.assert_allclose(
                found[name],
                array,
                rtol=1e-5,
                atol=1e-5 * np.abs(array).max(initial=1),
                err_msg=name,
            )
    return model


def entries(model: clrt.Model, feeds: Mapping[str, Array]) -> list[str]:
    """Returns the entry points of the launched kernels, in order."""
    rows = model.explain({n: a.shape for n, a in feeds.items()}).rows
    return [k.entry for row in rows for k in row.kernels]


def copies(model: clrt.Model, feeds: Mapping[str, Array]) -> int:
    """Returns the number of copy launches, without the two layout changes at the ends."""
    return sum(e.startswith(COPIES) for e in entries(model, feeds)) - 2


@CPUS
@pytest.mark.parametrize(
    "body", [C2F, U_NET, PYRAMID, NESTED], ids=["c2f", "u_net", "pyramid", "nested"]
)
def test_convolution_blocks_need_no_copies(body: str, device: clrt.DeviceInfo) -> None:
    graph = graph_of(body, IMAGE, "%y")
    feeds = [feeds_of(graph, n) for n in (2, 1, 3)]
    model = check(graph, device, *feeds)
    for given in feeds:
        assert copies(model, given) == 0


# What stands in a Concat beside what can be placed, and the launches that copy.
BESIDE = {
    "the same value twice": ("%q: float32[N,24,12,20] = Concat{axis=1}(%a, %b, %b)", "%y", 1),
    "an output of the model": ("%q: float32[N,16,12,20] = Concat{axis=1}(%a, %b)", "%y, %a", 2),
    "a weight": (
        "const %k: float32[2,8,12,20] = ...\n%q: float32[N,16,12,20] = Concat{axis=1}(%a, %k)",
        "%y",
        1,
    ),
    "a value of two Concats": (
        "%p: float32[N,16,12,20] = Concat{axis=1}(%b, %a)\n"
        "const %i: int64[1] = [4]\nconst %j: int64[1] = [12]\nconst %k: int64[1] = [1]\n"
        "%r: float32[N,8,12,20] = Slice(%p, %i, %j, %k)\n"
        "%q: float32[N,24,12,20] = Concat{axis=1}(%a, %b, %r)",
        "%y",
        1,
    ),
}


@CPUS
@pytest.mark.parametrize("name", list(BESIDE))
def test_unplaceable_subviews_are_copied_with_reason(name: str, device: clrt.DeviceInfo) -> None:
    joined, outputs, launches = BESIDE[name]
    body = f"""
const %w: float32[8,16,1,1] = ...
const %v: float32[8,16,3,3] = ...
%a: {HALF} = {POINT}(%x, %w)
%b: {HALF} = {WINDOW}(%x, %v)
{joined}
const %z: float32[16,{joined[joined.rindex("float32[N,") + 10 :].split(",")[0]},1,1] = ...
%y: {FULL} = {POINT}(%q, %z)
"""
    graph = graph_of(body, IMAGE, outputs)
    feeds = feeds_of(graph)
    model = check(graph, device, feeds)
    assert copies(model, feeds) == launches
    rows = model.explain({"x": feeds["x"].shape}).rows
    assert any("is copied:" in reason for row in rows for reason in row.rejected)


@DEVICES
def test_outermost_axis_subviews_need_no_copies(device: clrt.DeviceInfo) -> None:
    """A part is one contiguous block if all sizes before the axis are 1."""
    body = """
%a: float32[32,64] = Exp(%x)
%b: float32[32,64] = Sin(%x)
%c: float32[64,64] = Concat{axis=0}(%a, %b)
%d: float32[64,64] = Neg(%c)
%e: float32[32,64], %f: float32[32,64] = Split{axis=0, num_outputs=2}(%d)
%g: float32[32,64] = Softmax(%e)
%h: float32[32,64] = Cos(%f)
const %k: int64[1] = [8]
const %l: int64[1] = [24]
const %m: int64[1] = [0]
%i: float32[16,64] = Slice(%d, %k, %l, %m)
%j: float32[16,64] = Softmax(%i)
"""
    graph = graph_of(body, "%x: float32[32,64]", "%g, %h, %j")
    feeds = feeds_of(graph)
    model = check(graph, device, feeds)
    assert not [e for e in entries(model, feeds) if e.startswith(COPIES)]
    rows = {r.op: r for r in model.explain({"x": (32, 64)}).rows}
    for op in ("Concat", "Split", "Slice"):
        assert "no kernel runs" in rows[op].why


@DEVICES
def test_unaligned_subviews_are_copied(device: clrt.DeviceInfo) -> None:
    body = """
%a: float32[3,5] = Exp(%x)
%b: float32[3,5] = Sin(%x)
%c: float32[6,5] = Concat{axis=0}(%a, %b)
%d: float32[6,5] = Softmax(%c)
"""
    graph = graph_of(body, "%x: float32[3,5]", "%d")
    model = check(graph, device, feeds_of(graph))
    assert any(e.startswith(COPIES) for e in entries(model, {"x": np.zeros((3, 5))}))


@DEVICES
def test_deep_concat_nesting_is_placed_up_to_limit(device: clrt.DeviceInfo) -> None:
    """Placement of each part considers all parts nested in it."""
    lines, y, rows = ["%a0: float32[32,8] = Sin(%x)"], "a0", 32
    for i in range(1, 61):
        rows += 32
        lines += [f"%a{i}: float32[32,8] = Softmax(%a{i - 1})"]
        lines += [f"%d{i}: float32[{rows},8] = Concat{{axis=0}}(%{y}, %a{i})"]
        y = f"d{i}"
    lines += [f"%y: float32[{rows},8] = Neg(%{y})"]
    graph = graph_of("\n".join(lines), "%x: float32[32,8]", "%y")
    model = check(graph, device, feeds_of(graph))
    rejected = [r for row in model.explain({"x": (32, 8)}).rows for r in row.rejected]
    assert sum("nested with more than" in r for r in rejected) == 3


@DEVICES
def test_subviews_of_device_inputs_and_outputs_need_no_copies(device: clrt.DeviceInfo) -> None:
    body = """
%a: float32[32,64], %b: float32[32,64] = Split{axis=0, num_outputs=2}(%x)
%c: float32[32,64] = Exp(%a)
%d: float32[32,64] = Softmax(%b)
%e: float32[64,64] = Concat{axis=0}(%d, %c)
"""
    graph = graph_of(body, "%x: float32[64,64]", "%e")
    feeds = feeds_of(graph)
    with clrt.load(graph, device=device.index) as model:
        for donate in ([], ["x"]):
            first = model.run(dict(feeds), device_outputs=True)["e"]
            second = model.run({"x": first}, device_outputs=True, donate=donate)["e"]
            expected = evaluate(graph, {"x": evaluate(graph, feeds)["e"]})["e"]
            np.testing.assert_allclose(second.numpy(), expected, rtol=1e-5)
        assert not [e for e in entries(model, feeds) if e.startswith(COPIES)]


@DEVICES
def test_batch_of_1_compiles_kernels_of_larger_batches(
    device: clrt.DeviceInfo, tmp_path: Path
) -> None:
    body = """
%a: float32[N,64] = Exp(%x)
%b: float32[N,64] = Sin(%x)
%c: float32[N,128] = Concat{axis=1}(%a, %b)
%d: float32[N,64], %e: float32[N,64] = Split{axis=1, num_outputs=2}(%c)
%f: float32[N,64] = Softmax(%e)
"""
    graph = graph_of(body, "%x: float32[N,64]", "%f")
    one = feeds_of(graph, 1)
    model = clrt.load(graph, device=device.index, strict=True, cache_dir=tmp_path)
    model.run(dict(one))
    assert not [e for e in entries(model, one) if e.startswith(COPIES)]
    before = model._session.programs.requests
    for images in (3, 2, 1, 7):
        feeds = feeds_of(graph, images)
        found = model.run(dict(feeds))["f"]
        np.testing.assert_allclose(found, evaluate(graph, feeds)["f"], rtol=1e-5, atol=1e-7)
    assert model._session.programs.requests == before


@CPUS
def test_split_halves_and_gathered_rows_are_read_in_place(device: clrt.DeviceInfo) -> None:
    """For example gates of decoders, and the first token of encoders."""
    body = """
const %w: float32[32,64] = ...
const %v: float32[32,5] = ...
const %i: int64[] = [-1]
const %j: int64[1] = [9]
%a: float32[N,S,64] = MatMul(%x, %w)
%b: float32[N,S,32], %c: float32[N,S,32] = Split{axis=2, num_outputs=2}(%a)
%d: float32[N,S,32] = Sigmoid(%b)
%e: float32[N,S,32] = Mul(%d, %c)
%f: float32[N,32] = Gather{axis=1}(%e, %i)
%y: float32[N,5] = MatMul(%f, %v)
%g: float32[N,1,32] = Gather{axis=1}(%e, %j)
%z: float32[N,5] = Einsum{equation="bij,jk->bk"}(%g, %v)
"""
    graph = graph_of(body, "%x: float32[N,S,32]", "%y, %z")
    feeds = [random_inputs(graph, {"N": n, "S": s}) for n, s in ((3, 11), (1, 10), (2, 12))]
    model = check(graph, device, *feeds)
    for given in feeds:
        launched = entries(model, given)
        assert not [e for e in launched if e.startswith(COPIES)]
        # Of several sequences the rows lie apart.
        one = len(given["x"]) == 1
        assert launched.count("gather_cpu") == (0 if one else 2)
    short = random_inputs(graph, {"N": 2, "S": 9})
    with pytest.raises(clrt.ModelError, match="constant of the model is 9"):
        model.run(dict(short))


def test_subview_is_copied_if_gaps_cost_more() -> None:
    """A pool that reads a skip connection from memory would load its gaps twice."""
    cpu = DeviceCaps("p", "cpu", "v", "1", "cpu", compute_units=2)
    for side, copied in ((24, 0), (512, 1)):
        body = U_NET.replace("12,20", f"{side},{side}").replace("6,10", f"{side // 2},{side // 2}")
        # The skip connection has 16 of 64 channels.
        for old, new in (("[8,16,", "[48,16,"), ("[16,24,", "[16,64,"), ("[N,24,", "[N,64,")):
            body = body.replace(old, new)
        body = body.replace("[N,8,", "[N,48,")
        image = f"%x: float32[1,16,{side},{side}]"
        graph = graph_of(body.replace("[N,", "[1,"), image, "%y")
        optimize(graph)
        prepare(graph, cpu)
        plan = plan_graph(graph, cpu)
        reasons = [p.reason for p in plan.subviews]
        assert len(reasons) == 2
        assert len([r for r in reasons if "move more than a copy" in r]) == copied


def test_node_order_does_not_change_placement() -> None:
    """If two Concats compete for a value, their outputs decide which one places it."""
    cpu = DeviceCaps("p", "cpu", "v", "1", "cpu", compute_units=2)
    lines = [
        "%b: float32[64,64] = Concat{axis=0}(%a, %z)",
        "%c: float32[64,64] = Concat{axis=0}(%z, %a)",
    ]
    placed = []
    for some in (lines, lines[::-1]):
        body = "%a: float32[32,64] = Exp(%x)\n%z: float32[32,64] = Sin(%x)\n" + "\n".join(some)
        body += "\n%y: float32[64,64] = Sub(%b, %c)\n"
        graph = graph_of(body, "%x: float32[32,64]", "%y")
        plan = plan_graph(graph, cpu)
        placed.append({(p.value.name, p.parent.name) for p in plan.subviews if not p.reason})
    assert placed[0] == placed[1] == {("a", "b"), ("z", "b")}


@SWEEP
def test_random_image_graphs_match_references(device: clrt.DeviceInfo) -> None:
    for seed in range(40):
        graph = image_graph(seed)
        check(graph, device, feeds_of(graph, 1 + seed % 2), feeds_of(graph, 3)).close()


@SWEEP
def test_random_matrix_graphs_match_references(device: clrt.DeviceInfo) -> None:
    for seed in range(60):
        graph = matrix_graph(seed)
        check(graph, device, feeds_of(graph, 1 + seed % 2), feeds_of(graph, 4)).close()
