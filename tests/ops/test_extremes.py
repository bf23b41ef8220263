"""Extreme values: results, and independence of neighbouring vector elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import Array, ElementwiseInstruction, TensorType
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.norm.group_normalization import GroupNormalization
from clrt.ops.norm.layer_normalization import LayerNormalization
from clrt.ops.pointwise.activations import Elu
from clrt.ops.pointwise.base import Pointwise
from clrt.ops.pointwise.cast import Cast
from clrt.ops.pointwise.fused import Fused, Literal
from clrt.ops.pointwise.table import (
    Abs,
    Add,
    BitShift,
    Cos,
    Div,
    Exp,
    Gelu,
    Mod,
    Mul,
    Pow,
    Sin,
    Sqrt,
    Tan,
    Tanh,
)
from clrt.ops.pointwise.variadic import MAX_OPERANDS, Max, Mean, Min, Sum
from clrt.ops.reduce.reduce import ReduceMean
from clrt.ops.reference_interpreter import evaluate
from clrt.passes.pipeline import optimize
from clrt.plan.specialise import specialise
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import plan_graph, quick_device, run_graph, run_plan, sample_graph
from tests.ops.samples import Sample, samples
from tests.ops.test_ops import DEVICES

LANES = 16  # of the widest vectors, which a row of numbers fills
FLOATS = [np.nan, np.inf, -np.inf, 1e7, -1e7, 1e30, -1e30, 1e-40, 3.4028235e38, 0.0, -0.0]
POINTWISE = sorted(
    (c for c in REGISTRY.all_classes().values() if issubclass(c, Pointwise)), key=lambda c: c.name
)
PROGRAMS = {
    "waves": (
        ElementwiseInstruction(Sin(), (0,)),
        ElementwiseInstruction(Cos(), (1,)),
        ElementwiseInstruction(Literal(2.5), ()),
        ElementwiseInstruction(Mul(), (2, 3)),
        ElementwiseInstruction(Tan(), (4,)), ElementwiseInstruction(Add(), (5, 0)),
    ),
    "powers": (
        ElementwiseInstruction(Abs(), (0,)),
        ElementwiseInstruction(Literal(0.3), ()),
        ElementwiseInstruction(Pow(), (1, 2)),
        ElementwiseInstruction(Exp(), (3,)),
        ElementwiseInstruction(Sqrt(), (4,)), ElementwiseInstruction(Div(), (0, 5)),
    ),
    "activations": (
        ElementwiseInstruction(Gelu(), (0,)),
        ElementwiseInstruction(Tanh(), (1,)),
        ElementwiseInstruction(Elu(), (2,)),
        ElementwiseInstruction(Sin(), (3,)),
    ),
}  # fmt: skip


def _forms(cls: type[Pointwise]) -> Iterator[tuple[Pointwise, tuple[DType, ...]]]:
    """Yields the attributes and dtypes of an op's samples; floats also in 16 and 64 bits."""
    seen = dict.fromkeys(
        (s.op, tuple(DType.of(a.dtype) for a in s.inputs if a is not None)) for s in samples(cls)
    )
    for op, dtypes in seen:
        assert isinstance(op, Pointwise)
        (type_,) = op.infer([TensorType(d, (1,)) for d in dtypes])
        if any(d.storage != "plain" for d in (*dtypes, type_.dtype)):
            continue
        yield op, dtypes
        if DType.FLOAT32 in dtypes:
            for other in (DType.FLOAT16, DType.FLOAT64):
                yield op, tuple(other if d is DType.FLOAT32 else d for d in dtypes)


def _extremes(dtype: DType) -> Array:
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return np.array(FLOATS).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return np.array([False, True])
    info = np.iinfo(dtype.value)
    return np.array([info.min, info.max, 0, 1, info.max // 2], dtype.numpy)


def _lanes(dtypes: tuple[DType, ...]) -> tuple[list[Array], Array]:
    """Returns operands in rows of LANES values, and the reference row of each element.

    Rows come in blocks: first each combination of operands alone in its row, then rows that mix
    them. The second result says for each element which row has its operands alone.
    """
    rng = np.random.default_rng(len(dtypes))
    ordinary = [
        np.asarray(rng.uniform(0.1, 0.9, LANES) if d.is_float else rng.integers(0, 2, LANES))
        .astype(d.numpy) for d in dtypes
    ]  # fmt: skip
    alone = list(zip(*ordinary, strict=True))
    rows = []
    for k, dtype in enumerate(dtypes):
        for extreme in _extremes(dtype):
            for lane in range(LANES):
                operands = list(alone[lane])
                operands[k] = extreme
                row = np.arange(LANES)
                row[lane] = len(alone)
                alone.append(tuple(operands))
                rows.append(row)
    picks = np.concatenate([np.repeat(np.arange(len(alone)), LANES), *rows])
    return [np.array([a[k] for a in alone], d.numpy)[picks] for k, d in enumerate(dtypes)], picks


def _kinds(array: Array) -> Array:
    """Returns 0 for finite numbers, 1 for NaN, 2 and 3 for the infinities."""
    wide = array.astype(np.float64)
    return np.isnan(wide) + 2 * np.isposinf(wide) + 3 * np.isneginf(wide)


def _bits(array: Array) -> Array:
    """Returns bit patterns for comparison, with one pattern for NaN."""
    return np.where(np.isnan(array), np.nan, array) if array.dtype.kind == "f" else array


def _check_lanes(op: Op, dtypes: tuple[DType, ...], device: DeviceInfo) -> None:
    operands, picks = _lanes(dtypes)
    inputs = [Value(f"x{k}", TensorType(d, (picks.size,))) for k, d in enumerate(dtypes)]
    (type_,) = op.infer([v.type for v in inputs])
    output = Value("y", type_)
    graph = Graph("lanes", inputs, [output], [Node("node", op, inputs, [output])])
    feeds = {v.name: a for v, a in zip(inputs, operands, strict=True)}
    (expected,) = op.reference(*operands)
    # The quickest compiler alone takes what GPUs get, too: others take as long for each.
    kinds = (device.caps.kind, "gpu") if device is quick_device() else (device.caps.kind,)
    for caps in dict.fromkeys(replace(device.caps, kind=kind) for kind in kinds):
        plan = plan_graph(graph, caps)
        if plan.host_steps:
            assert DType.FLOAT64 in dtypes, plan.host_steps
            return
        actual = run_plan(plan, feeds, device)["y"]
        name = f"{op} of {', '.join(map(str, dtypes))} by a {caps.kind}"
        # The first lane of the row where a number is alone.
        np.testing.assert_array_equal(
            _bits(actual), _bits(actual[picks * LANES]), f"{name}: neighbours change results"
        )
        if actual.dtype.kind != "f":
            rounded = isinstance(op, Pow) and any(d.is_float for d in dtypes)
            wide = (a.astype(np.float64) for a in (actual, expected))
            np.testing.assert_allclose(*wide, rtol=1e-6 if rounded else 0, err_msg=name)
            continue
        np.testing.assert_array_equal(_kinds(actual), _kinds(expected), name)
        finite = np.isfinite(expected)
        info = np.finfo(actual.dtype)
        np.testing.assert_allclose(
            actual[finite].astype(np.float64),
            expected[finite].astype(np.float64),
            rtol=op.accuracy.value * float(info.eps),
            atol=float(np.finfo(np.float32).tiny) if info.bits > 16 else 6e-8,
            err_msg=name,
        )


@DEVICES
@pytest.mark.parametrize("cls", POINTWISE, ids=lambda c: c.name)
def test_pointwise_result_is_independent_of_vector_neighbours(
    cls: type[Pointwise], device: DeviceInfo
) -> None:
    if device.caps.simulator:
        pytest.skip("a simulator has no vector units")
    forms = list(_forms(cls))
    assert forms
    for op, dtypes in forms:
        _check_lanes(op, dtypes, device)


@DEVICES
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16], ids=str)
def test_fused_result_is_independent_of_vector_neighbours(
    program: str, dtype: DType, device: DeviceInfo
) -> None:
    if device.caps.simulator:
        pytest.skip("a simulator has no vector units")
    steps = tuple(
        replace(s, op=replace(s.op, dtype=dtype)) if isinstance(s.op, Literal) else s
        for s in PROGRAMS[program]
    )
    _check_lanes(Fused(steps), (dtype,), device)


@DEVICES
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("n", [3, 68])
def test_norm_of_overflowing_rows_gives_bias_or_nan(n: int, kind: str, device: DeviceInfo) -> None:
    """A constant row gives the bias; infinity and NaN give NaN."""
    x = np.array([3.4e38, -3.4028235e38, 2, np.inf, np.nan], np.float32)[:, None] * np.ones(n)
    x = x.astype(np.float32)
    scale, channels = np.ones(n, np.float32), np.ones(len(x), np.float32)
    cases = [
        (LayerNormalization(), (x, scale, scale * 5)),
        (GroupNormalization(num_groups=len(x)), (x[None], channels, channels * 5)),
    ]
    for op, arrays in cases:
        graph = sample_graph(Sample(op, arrays))
        plan = plan_graph(graph, replace(device.caps, kind=kind))
        feeds = {f"x{k}": a for k, a in enumerate(arrays)}
        y = run_plan(plan, feeds, device)["y0"].reshape(x.shape)
        np.testing.assert_array_equal(y[:3], 5)
        assert np.isnan(y[3:]).all()


def _operands(count: int, dtype: DType) -> tuple[Array, ...]:
    rng = np.random.default_rng(count)
    shapes = ((3, 1), (1, 5))
    return tuple(np.asarray(rng.uniform(-9, 9, shapes[k % 2]), dtype.numpy) for k in range(count))


@DEVICES
@pytest.mark.parametrize("op", [Sum(), Mean(), Max(), Min()], ids=lambda op: op.name)
@pytest.mark.parametrize("count", [MAX_OPERANDS + 1, 260, 1000, 3000])
def test_variadic_op_with_many_operands_matches_reference(
    op: Pointwise, count: int, device: DeviceInfo
) -> None:
    if device.caps.simulator:
        pytest.skip("large grids take a simulator minutes")
    # Ten values in turn: the arena of 3000 live ones takes long to place.
    few = _operands(10, DType.FLOAT32)
    inputs = [Value(f"x{k}", TensorType(DType.FLOAT32, a.shape)) for k, a in enumerate(few)]
    operands = [inputs[k % 10] for k in range(count)]
    y = Value("y", TensorType(DType.FLOAT32, (3, 5)))
    graph = Graph("wide", inputs, [y], [Node("node", op, operands, [y])])
    results, plan = run_graph(graph, {f"x{k}": a for k, a in enumerate(few)}, device)
    assert not plan.host_steps
    assert max(len(n.inputs) for n in plan.graph.nodes) <= MAX_OPERANDS
    (expected,) = op.reference(*(few[k % 10].astype(np.float64) for k in range(count)))
    largest = np.abs(expected).max()
    np.testing.assert_allclose(results["y"], expected, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("op", [Max(), Min()], ids=lambda op: op.name)
def test_variadic_op_with_many_integers_is_split(op: Pointwise) -> None:
    arrays = _operands(100, DType.INT64)
    graph = specialise(sample_graph(Sample(op, arrays)), {})
    assert len(graph.nodes) > 1 and {n.op.name for n in graph.nodes} == {op.name}


@DEVICES
def test_long_and_wide_elementwise_graph_matches_reference(device: DeviceInfo) -> None:
    """Hundreds of elementwise nodes, in sequence and in parallel."""
    if device.caps.simulator:
        pytest.skip("large grids take a simulator minutes")
    x = np.linspace(-1, 1, 33).astype(np.float32)
    source = Value("x", TensorType(DType.FLOAT32, x.shape))
    ops = (Sin(), Abs(), Tanh(), Cos())
    nodes: list[Node] = []
    value = source
    for k in range(600):
        nodes.append(Node(f"c{k}", ops[k % 4], [value], [Value(f"c{k}", source.type)]))
        value = nodes[-1].output
    level = [value, source]
    for k in range(300):
        arguments = [level[k], source]
        nodes.append(Node(f"w{k}", Add(), arguments, [Value(f"w{k}", source.type)]))
        level.append(nodes[-1].output)
    nodes.append(Node("sum", Mean(), level[2:], [Value("y", source.type)]))
    graph = Graph("long", [source], [nodes[-1].output], nodes)
    expected = evaluate(graph, {"x": x})["y"]
    optimize(graph)
    assert len(graph.nodes) < 400
    results, _ = run_graph(graph, {"x": x}, device)
    np.testing.assert_allclose(results["y"], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


CASTS = {
    DType.UINT8: [255, 168, 0, 44, 0, 0, 0, 0],
    DType.INT8: [-1, -88, 0, 44, 0, 0, 0, 0],
    DType.INT16: [-1, -88, 256, 300, 0, 0, 0, 0],
    DType.INT32: [-1, -88, 256, 300, *[-(1 << 31)] * 4],
    DType.UINT32: [(1 << 32) - 1, (1 << 32) - 88, 256, 300, 1 << 31, 0, 0, 0],
    DType.INT64: [-1, -88, 256, 300, 1 << 31, *[-(1 << 63)] * 3],
    DType.UINT64: [(1 << 64) - 1, (1 << 64) - 88, 256, 300, 1 << 31, *[1 << 63] * 3],
}


@DEVICES
@pytest.mark.parametrize("to", CASTS, ids=str)
def test_cast_of_out_of_range_floats_matches_reference(to: DType, device: DeviceInfo) -> None:
    x = np.array([-1, -88.9, 256, 300.5, 2.0**31, 1e30, np.nan, -np.inf], np.float32)
    wanted = np.array(CASTS[to], to.numpy)
    np.testing.assert_array_equal(Cast(to).reference(x)[0], wanted)
    results, plan = run_graph(sample_graph(Sample(Cast(to), (x,))), {"x0": x}, device)
    assert not plan.host_steps
    np.testing.assert_array_equal(results["y0"], wanted)


INTEGERS: list[tuple[Pointwise, int, int, int]] = [
    (Div(), 7, 0, 0), (Div(), -128, -1, -128), (Div(), -7, 2, -3), (Mod(), 7, 0, 0),
    (Mod(), -128, -1, 0), (Mod(1), 7, 0, 0), (Mod(1), -128, -1, 0), (Mod(), -7, 3, 2),
    (Mod(1), -7, 3, -1), (Pow(), 0, -1, 0), (Pow(), 2, -1, 0), (Pow(), -1, -3, -1),
    (Pow(), -128, -128, 0), (Pow(), 3, 5, -13), (Pow(), -2, 7, -128),
]  # fmt: skip


@DEVICES
def test_integer_ops_undefined_in_c_match_reference(device: DeviceInfo) -> None:
    """Division by 0, minimum integer by -1, negative powers: int8, also by literals."""
    for op, a, b, wanted in INTEGERS:
        arrays = np.array([a], np.int8), np.array([b], np.int8)
        np.testing.assert_array_equal(op.reference(*arrays)[0], [wanted], str(op))
        results, plan = run_graph(
            sample_graph(Sample(op, arrays)), dict(zip(("x0", "x1"), arrays, strict=True)), device
        )
        assert not plan.host_steps
        np.testing.assert_array_equal(results["y0"], [wanted], str(op))
        steps = (
            ElementwiseInstruction(Literal(b, DType.INT8), ()),
            ElementwiseInstruction(op, (0, 1)),
        )
        results, _ = run_graph(
            sample_graph(Sample(Fused(steps), arrays[:1])), {"x0": arrays[0]}, device
        )
        np.testing.assert_array_equal(results["y0"], [wanted], f"{op} by a literal")


@DEVICES
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.UINT64], ids=str)
def test_shift_by_bit_width_or_more_gives_0(dtype: DType, device: DeviceInfo) -> None:
    width = 8 * dtype.itemsize
    by = np.array([0, 1, width - 1, width, 200], dtype.numpy)
    x = np.full(5, 0xB5, dtype.numpy)
    most = (1 << width) - 1
    for direction, wanted in (
        ("LEFT", [0xB5, 0x16A & most, (0xB5 << (width - 1)) & most, 0, 0]),
        ("RIGHT", [0xB5, 0x5A, 0xB5 >> (width - 1), 0, 0]),
    ):
        op, expected = BitShift(direction), np.array(wanted, dtype.numpy)
        np.testing.assert_array_equal(op.reference(x, by)[0], expected)
        results, _ = run_graph(sample_graph(Sample(op, (x, by))), {"x0": x, "x1": by}, device)
        np.testing.assert_array_equal(results["y0"], expected)


@DEVICES
@pytest.mark.parametrize("dtype", [DType.INT32, DType.UINT8], ids=str)
def test_mean_of_empty_integer_axis_is_0(dtype: DType, device: DeviceInfo) -> None:
    sample = Sample(ReduceMean(), (np.zeros((2, 0, 3), dtype.numpy), np.array([1])))
    np.testing.assert_array_equal(sample.op.reference(*sample.inputs)[0], 0)  # type: ignore[attr-defined]
    feeds = {f"x{k}": a for k, a in enumerate(sample.inputs) if a is not None}
    results, _ = run_graph(sample_graph(sample), feeds, device)
    np.testing.assert_array_equal(results["y0"], 0)
