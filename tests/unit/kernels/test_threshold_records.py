"""Records of thresholds: each threshold that a record sets changes a plan."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clrt
from clrt.device.caps import DeviceCaps
from clrt.device.gpu_matrix_shapes import MMA
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.kernels.cost import WorkEstimate, rates_of, seconds
from clrt.kernels.spec import BufferArg, Scratch
from clrt.kernels.thresholds import GROUPS
from clrt.kernels.tuning_records import device_thresholds, record_for, save
from clrt.ops.base import Op
from clrt.ops.conv.channels_last import ChannelsLastConv
from clrt.ops.conv.conv import Conv
from clrt.ops.generation.sample_tokens import SampleTokens
from clrt.ops.matmul.fused_matmul import FusedMatMul
from clrt.ops.module_index import import_all
from clrt.ops.op_builder import OpBuilder, ints
from clrt.ops.recurrent.dynamic_quantize_lstm import DynamicQuantizeLSTM
from clrt.ops.vision.pooling_last import ChannelsLastMaxPool
from clrt.ops.vision.resize_image import ResizeImage
from clrt.passes.device_pipeline import prepare
from clrt.plan.make_plan import make_plan
from clrt.plan.specialise import specialise
from clrt.plan.steps import launches_of
from tests.ops.sample_plans import sample_graph
from tests.ops.samples import samples

import_all()  # declares the thresholds of all ops

CPU = DeviceCaps("Test", "cpu", "Test", "1", "cpu", compute_units=4, float_lanes=8)
GPU = replace(CPU, kind="gpu", max_work_group_size=256, local_mem_bytes=48 << 10, compute_units=48)
MATRIX_GPU = replace(GPU, matrix_shapes=frozenset(MMA), compute_units=132)
FLOAT = DType.FLOAT32


def _graph(op: str | Op, *inputs: tuple[int | str, ...] | Array | None, **attributes: Any) -> Graph:
    """Returns a graph of one node; shapes are float32 inputs, arrays constants."""
    build = OpBuilder()
    values = [
        build.feed(f"x{i}", FLOAT, *x) if isinstance(x, tuple) else x for i, x in enumerate(inputs)
    ]
    return build.graph("g", build.inputs, [build(op, *values, **attributes)], ["y"])


def _ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def _sample(cls: type[Op], number: int) -> Graph:
    return sample_graph(list(samples(cls))[number])


def _sample_tokens() -> Graph:
    build = OpBuilder()
    shapes = (FLOAT, 4, 1 << 17), (FLOAT, 4, 8), (DType.INT32, 4, 4), (DType.INT32, 4, 9)
    inputs = [build.feed(f"x{i}", *s) for i, s in enumerate((*shapes, (DType.INT32, 4)))]
    return build.graph("g", build.inputs, build.add_all(SampleTokens(), *inputs), ["y", "z"])


def _tied_embedding() -> Graph:
    build = OpBuilder()
    table = build.constant(_ones(512, 64))
    indices = build.feed("i", DType.INT32, 7)
    rows = build("Gather", table, indices)
    product = build.add(FusedMatMul(trans_b=1), build.feed("x", FLOAT, 64, 64), table)
    return build.graph("g", build.inputs, [rows, product], ["y", "z"])


def _split() -> Graph:
    """Returns a Split with a narrow part that three poolings read."""
    build = OpBuilder()
    x = build.feed("x", FLOAT, 1, 64, 64, 64)
    narrow, wide = build.node("Split", [x, build.ints(8, 56)], 2, axis=-1)
    pools = [ChannelsLastMaxPool(kernel_shape=(n, n)) for n in (2, 3, 4)]
    values = [wide, *(build.add(pool, narrow) for pool in pools)]
    return build.graph("g", build.inputs, values, ["a", "b", "c", "d"])


def _half_product(m: int, n: int, k: int) -> Graph:
    build = OpBuilder()
    x, w = build.feed("x", FLOAT, m, k), build.feed("w", DType.FLOAT16, k, n)
    product = build.add(FusedMatMul(a_dtype=DType.FLOAT16), x, w)
    return build.graph("g", build.inputs, [product], ["y"])


def _fft() -> Graph:
    build = OpBuilder()
    x = build.feed("x", FLOAT, 2, 64, 1)
    return build.graph("g", build.inputs, [build("DFT", x, None, np.array(1))], ["y"])


def _scaled_image() -> Graph:
    """Returns a convolution of an image, behind two nodes that are no views."""
    build = OpBuilder()
    x = build("Relu", build("Softmax", build.feed("x", FLOAT, 1, 3, 20, 20)))
    conv = build("Conv", x, _ones(16, 3, 3, 3), pads=[1, 1, 1, 1])
    return build.graph("g", build.inputs, [conv], ["y"])


PRODUCT = partial(_graph, "MatMul")
CONV = partial(_graph, "Conv", (2, 64, 56, 56), _ones(64, 64, 3, 3), pads=[1, 1, 1, 1])
DEPTHWISE = partial(_graph, "Conv", (1, 16, 20, 20), _ones(64, 1, 3, 3), group=16)
WINOGRAD = ChannelsLastConv(pads=(1, 1, 1, 1))


def _on(
    caps: DeviceCaps, *makers: Callable[[], Graph]
) -> tuple[tuple[DeviceCaps, Callable[[], Graph]], ...]:
    return tuple((caps, make) for make in makers)


# Groups of passes; graphs of other groups are planned without passes for a device.
PASSES = ("block_conv", "channels_last", "fourier_matrices", "sub_pixels")
# Values of the thresholds that records set, as multiples of the default; 0 for 1.
FACTORS = (0, 0.5, 2, 64, 4096)
# Group -> devices and graphs; each threshold of the group changes the plan of one.
CASES: Mapping[str, tuple[tuple[DeviceCaps, Callable[[], Graph]], ...]] = {
    "block_conv": _on(CPU, *(partial(_graph, "Conv", (1, 1, 999), _ones(1, 1, 64)),)),
    "channels_last": _on(
        CPU,
        *(
            partial(_graph, "Conv", (1, 12, 20, 20), _ones(12, 2, 3, 3), group=6),
            _scaled_image,
        ),
    ),
    "fourier_matrices": _on(CPU, *(_fft,)),
    "gemm_unit_gpu_costs": _on(
        MATRIX_GPU,
        *(
            partial(_half_product, m, n, k)
            for m, n, k in ((16, 384, 384), (64, 384, 384), (64, 64, 4096), (1024, 512, 4096))
        ),
    ),
    "sub_pixels": _on(
        CPU,
        *(partial(_graph, "ConvTranspose", (1, 4, 9, 9), _ones(4, 4, 3, 3), strides=[2, 2]),),
    ),
    "subviews": _on(CPU, *(_split,)),
    "winograd_costs": _on(
        CPU,
        *(
            partial(_graph, WINOGRAD, (1, 28, 28, 128), _ones(128, 128, 3, 3)),
            partial(_graph, WINOGRAD, (1, "H", "W", 128), _ones(128, 128, 3, 3)),
            partial(_graph, WINOGRAD, (1, 28, 28, 16), _ones(16, 16, 3, 3)),
        ),
    ),
    "argmax_shares": _on(CPU, *(partial(_graph, "ArgMax", (1024, 8), axis=1),)),
    "channel_norm_shares": _on(
        CPU,
        *(partial(_graph, "BatchNormalization", (8, 128, 4, 4), *[_ones(128)] * 4),),
    ),
    "chunk_shares": _on(CPU, *(partial(_graph, "ArgMax", (1024, 8), axis=1),)),
    "col2im_shares": _on(
        CPU,
        *(partial(_graph, "Col2Im", (1, 9 * 64, 900), ints(32, 32), ints(3, 3)),),
    ),
    "column_shares": _on(CPU, *(partial(_graph, "ArgMax", (2048, 4, 16), axis=1),)),
    "conv_gpu_costs": _on(
        GPU,
        *(
            CONV,
            partial(_graph, "Conv", (1, 512, 7, 7), _ones(512, 512, 3, 3)),
            partial(_graph, "Conv", (1, 3, 224, 224), _ones(64, 3, 7, 7)),
            partial(_graph, "Conv", (1, 64, 56, 56), _ones(256, 64, 1, 1)),
        ),
    ),
    "cum_shares": _on(
        CPU,
        *(
            partial(_graph, "CumSum", (2048, 4, 64), np.array(1)),
            partial(_graph, "CumSum", (4, 64, 8192), np.array(1)),
        ),
    ),
    "gather_panels_shares": _on(CPU, *(_tied_embedding,)),
    "gemm_gpu_splits": _on(
        GPU,
        *(
            partial(_graph, "MatMul", (64, 4096), (4096, 64)),
            partial(_graph, "MatMul", (512, 4096), (4096, 512)),
            partial(_graph, "MatMul", (4, 4096), (4096, 64)),
            partial(_graph, "MatMul", (4, 4096), (4096, 4096)),
            partial(_graph, "Conv", (1, 512, 7, 7), _ones(512, 512, 3, 3)),
        ),
    ),
    "image_chunks": _on(CPU, *(partial(_graph, "Conv", (4, 8, 32, 32), _ones(16, 8, 3, 3)),)),
    "move_shares": _on(
        CPU,
        *(
            partial(_graph, "Transpose", (512, 512), perm=[1, 0]),
            partial(_graph, "GatherElements", (256, 256), np.zeros((256, 256), np.int64)),
            partial(_graph, "Pad", (64, 64), ints(1, 1, 1, 1)),
        ),
    ),
    "pool_shares": _on(CPU, *(partial(_graph, "MaxPool", (4, 16, 64, 64), kernel_shape=[2, 2]),)),
    "quantize_shares": _on(
        CPU,
        *(partial(_graph, "QuantizeLinear", (4096,), _ones(), np.array(0, np.uint8)),),
    ),
    "reduce_shares": _on(
        CPU,
        *(partial(_graph, "ReduceSum", (4096, 4), ints(-1)),),
    )
    + _on(GPU, partial(_graph, "ReduceSum", (1, 1 << 20), ints(-1))),
    "resample_shares": _on(
        CPU,
        *(
            partial(_graph, "Resize", (1, 64, 32, 32), None, _ones(4) * 2, mode="linear"),
            partial(_graph, "Resize", (1, 64, 32, 32), None, np.float32([1, 1, 2, 1])),
        ),
    ),
    "resize_image_shares": _on(CPU, *(partial(_sample, ResizeImage, 3),)),
    "round_shares": _on(GPU, *(partial(_sample, DynamicQuantizeLSTM, 0),)),
    "row_items": _on(GPU, partial(_graph, "ReduceSum", (64, 300), ints(-1))),
    "sample_shares": _on(CPU, *(_sample_tokens,)),
    "scatter_nd_shares": _on(
        CPU,
        *(partial(_graph, "ScatterND", (64, 4096), ints(3).reshape(1, 1), (1, 4096)),),
    ),
    "tensor_scatter_shares": _on(
        CPU, *(partial(_graph, "TensorScatter", (2, 4, 9, 64), (2, 4, 2, 64)),)
    ),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLRT_CACHE_DIR", str(tmp_path))


def _record(group: str, name: str, factor: float) -> None:
    """Saves a user's record that sets a threshold."""
    declared = GROUPS[group].declared()[name]
    value = min(max(int(factor * declared.default), 1), declared.most)
    save([{"kernel": group, "tunables": {name: value}}])


def _launches(graph: Graph, caps: DeviceCaps, prepared: bool) -> list[Any]:
    """Returns kernels, sizes, numbers and scratch memory of the launches of a graph's plan."""
    graph = graph.copy()
    if prepared:
        prepare(graph, caps)
    symbols = {"H": 28, "W": 28} if any(not v.type.is_static for v in graph.inputs) else {}
    plan = make_plan(specialise(graph, symbols), caps, partial(record_for, caps=caps))
    return [
        (
            x.kernel,
            x.global_size,
            [a for a in x.args if not isinstance(a, BufferArg)],
            [b.elems for b in x.buffers if isinstance(b, Scratch)],
        )
        for x in launches_of(plan.steps)
    ]


@pytest.mark.parametrize("group", CASES)
def test_record_of_each_threshold_changes_plan(group: str) -> None:
    cases = [(make(), caps, group in PASSES) for caps, make in CASES[group]]
    defaults = [_launches(*case) for case in cases]
    for name in GROUPS[group].declared():
        for factor in FACTORS:
            _record(group, name, factor)
            if any(_launches(*c) != d for c, d in zip(cases, defaults, strict=True)):
                break
        else:
            pytest.fail(f"no record of {group}.{name} changes a plan")


@pytest.mark.parametrize(("group", "caps"), [("cpu_rates", CPU), ("gpu_rates", GPU)])
def test_record_of_each_rate_changes_rates(group: str, caps: DeviceCaps) -> None:
    before = rates_of(caps)
    for name in GROUPS[group].declared():
        _record(group, name, 2)
        assert rates_of(caps) != before, name


def test_record_of_each_efficiency_changes_cost_of_variants() -> None:
    groups = {v.speed for v in Conv.variants}
    assert {g.group for g in groups} > {"fast_kernels", "plain_kernels", "direct_conv_cpu"}
    works = {"compute": WorkEstimate(1 << 40), "memory": WorkEstimate(0, 1 << 40)}
    for group, (name, work) in product(groups, works.items()):
        before = seconds(work, device_thresholds(group, CPU), CPU)
        _record(group.group, name, 0.5)
        assert seconds(work, device_thresholds(group, CPU), CPU) > before, (group, name)


def test_record_of_each_conv_cost_changes_cost_of_variants() -> None:
    (node,) = _graph("Conv", (1, 16, 20, 20), _ones(80, 1, 3, 3), group=16).nodes

    def costs() -> list[tuple[int, int]]:
        works = (v.work(node, CPU) for v in Conv.variants)
        return [(w.flops, w.nbytes) for w in works]

    before = costs()
    for name in GROUPS["conv_costs"].declared():
        _record("conv_costs", name, 64)
        assert costs() != before, name


def test_record_of_rate_changes_choice_of_variant() -> None:
    graph = _graph(WINOGRAD, (1, 28, 28, 32), _ones(32, 32, 3, 3))

    def kernels() -> set[str]:
        return {launch[0].entry for launch in _launches(graph, CPU, False)}

    assert kernels() == {"winograd_cpu"}
    save([{"kernel": "cpu_rates", "tunables": {"mbytes": 1}}])
    assert kernels() == {"conv_rows_cpu"}


def test_tunables_command_imports_every_module_with_thresholds() -> None:
    pattern = re.compile(r'^    group: ClassVar(?:\[str\])? = "(\w+)"', re.MULTILINE)
    sources = (f.read_text("utf-8") for f in Path(clrt.__file__).parent.rglob("*.py"))
    declared = {name for text in sources for name in pattern.findall(text)}
    program = (
        "import clrt.cli.tunables as t; t.import_all(); "
        "from clrt.kernels.thresholds import GROUPS; print(*GROUPS)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == declared
