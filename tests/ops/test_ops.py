"""Every op of the registry: each kernel variant on each device, against the op's reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from inspect import get_annotations
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from clrt.device.caps import DeviceCaps
from clrt.device.requires import CPU
from clrt.errors import ClrtError
from clrt.ir.dims import provably_equal, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array, TensorType
from clrt.kernels.gemm_matrix_unit_gpu import GPU_UNIT
from clrt.kernels.gemm_problem import Epilogue
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.tuned import TUNED
from clrt.kernels.variant import Variant, lacks_float64
from clrt.ops import REGISTRY
from clrt.ops.base import Op
from clrt.ops.conv.conv import Conv
from clrt.ops.conv.conv_transpose import ConvTranspose
from clrt.ops.matmul.matmul_integer import MatMulInteger
from clrt.ops.movement.pad import Pad
from clrt.ops.pointwise.conversions import widened
from clrt.ops.signal.dft import STFT
from clrt.ops.tensor.constant_of_shape import ConstantOfShape
from clrt.ops.text.strings import StringNormalizer
from clrt.ops.vision.pooling import MaxPool
from clrt.plan.plan import Plan
from clrt.plan.steps import DeviceStep, launches_of
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import (
    all_devices,
    name_of,
    plan_graph,
    quick_device,
    run_plan,
    sample_graph,
    sample_values,
    tolerance,
)
from tests.ops.samples import Sample, error_samples, samples

ROOT = Path(__file__).resolve().parents[2]
CLASSES = sorted(REGISTRY.all_classes().values(), key=lambda c: (c.domain, c.name))
ON_DEVICE = [c for c in CLASSES if c.variants and not c.memory_traits.always_view]
DEVICES = pytest.mark.parametrize("device", all_devices(), ids=name_of)

# Tiles so small that the samples have whole ones, several of them, and a rest.
SMALL: dict[str, dict[str, int]] = {
    "depthwise_rows_cpu": {"T_MR": 3, "T_NV": 2, "T_VW": 4},
    "conv_bytes_cpu": {"T_VW": 8},
    "depthwise_bytes_cpu": {"T_MR": 3, "T_VW": 4},
    "dynamic_quantize_linear": {"T_VW": 4},
    "elementwise_cpu": {"T_VW": 4, "T_ELEMS": 6},
    "argmax_columns": {"T_VW": 4, "T_NV": 2},
    "argmax_rows": {"T_VW": 4},
    "batch_normalization_cpu": {"T_VW": 4},
    "conv_depthwise_cpu": {"T_VW": 4},
    "conv_depthwise_gpu": {"T_ROWS": 3},
    "conv_gpu": {"T_RM": 1, "T_RN": 2, "T_TK": 4, "T_SIDE": 4},
    "conv_image_cpu": {"T_MR": 3, "T_NV": 2, "T_VW": 4},
    "conv_rows_cpu": {"T_MR": 3, "T_NV": 2, "T_VW": 4, "T_MC": 7},
    "copy_tiled": {"T_ITEMS": 4},
    "cum_cpu": {"T_VW": 4},
    "few_rows_gpu": {"T_LANES": 4, "T_SLICES": 2},
    "fused_attention_cpu": {"T_VW": 4, "T_NQ": 2, "T_MK": 3, "T_MV": 2, "T_KB": 6},
    "fused_attention_gpu": {"T_LANES": 4, "T_LINES": 2, "T_RQ": 2, "T_RK": 2, "T_TD": 8},
    "gather_cpu": {"T_BYTES": 72},
    "group_normalization_cpu": {"T_VW": 4},
    "group_normalization_last": {"T_VW": 4},
    "gemm_blocks_cpu": {"T_MR": 3, "T_NV": 1, "T_VW": 4, "T_MB": 3, "T_KC": 6},
    "gemm_cpu": {"T_MR": 3, "T_NV": 1, "T_VW": 4, "T_MC": 7},
    "gemm_integer_cpu": {"T_MR": 3, "T_NV": 1, "T_VW": 4},
    "gemm_levels_cpu": {"T_VW": 4},
    "gemm_typed_cpu": {"T_MR": 3, "T_NV": 1, "T_VW": 2, "T_MC": 7},
    "gemm_gpu": {"T_RM": 1, "T_RN": 2, "T_TK": 4},
    "layer_normalization_cpu": {"T_VW": 4, "T_ROWS": 3},
    "layer_normalization_group": {"T_ITEMS": 4, "T_HELD": 2},
    "routed_matmul_cpu": {"T_VW": 4, "T_MR": 2, "T_NR": 2, "T_ROWS": 4},
    "paged_attention_gpu": {"T_ITEMS": 16},
    "paged_attention_cpu": {"T_VW": 4, "T_MR": 3, "T_NK": 1, "T_ROWS": 6, "T_PAGES": 2},
    "pool_planar": {"T_VW": 4},
    "pool_rows": {"T_VW": 4},
    "recurrent_sequence": {"T_VW": 4},
    "recurrent_steps": {"T_MR": 3, "T_VW": 4},
    "reduce_columns": {"T_VW": 4, "T_NV": 2},
    "reduce_group": {"T_ITEMS": 4},
    "reduce_joined": {"T_ITEMS": 4},
    "reduce_parts": {"T_ITEMS": 4},
    "reduce_pieces": {"T_VW": 4},
    "reduce_rows": {"T_VW": 4, "T_ROWS": 3},
    "rotary_cpu": {"T_VW": 4},
    "sample_draw": {"T_VW": 4, "T_CHUNK": 16, "T_LIST": 4, "T_ITEMS": 4},
    "softmax_columns": {"T_VW": 4, "T_NV": 2},
    "softmax_cpu": {"T_VW": 4, "T_ROWS": 3},
    "softmax_group": {"T_ITEMS": 4},
    "winograd_cpu": {"T_MR": 3, "T_NV": 2, "T_VW": 4},
}
# Of kernels for GPUs, which compilers for CPUs take seconds for; test_gemm_gpu.py has larger tiles.
SHORT = {
    "T_RM": 2,
    "T_RN": 2,
    "T_TK": 8,
    "T_LANES": 4,
    "T_LINES": 4,
    "T_RQ": 1,
    "T_RK": 1,
    "T_SLICES": 4,
    "T_SIDE": 4,
}

# So many samples all run where compiling takes long; of those behind them a fourth does.
WHOLE = 4


def check(name: str, actual: Array, expected: Array, limit: float) -> None:
    assert actual.dtype == expected.dtype, name
    assert actual.shape == expected.shape, name
    actual, expected = widened(actual), widened(expected)  # NaN of ml_dtypes does not equal itself
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(actual, expected, err_msg=name)
        return
    np.testing.assert_allclose(actual, expected, rtol=0, atol=limit, err_msg=name)


def feeds_of(sample: Sample) -> dict[str, Array]:
    assert isinstance(sample.op, Op)
    return {
        f"x{i}": np.asarray(a, order="C")
        for i, a in enumerate(sample.inputs)
        if a is not None and i not in sample.op.input_traits.plan_time
    }


def _stand_ins(caps: DeviceCaps) -> list[DeviceCaps]:
    """Returns the device capabilities to plan for: a CPU also runs GPU kernels."""
    return [caps, replace(caps, kind="gpu")] if caps.is_cpu else [caps]


def _plans(graph: Graph, device: DeviceInfo) -> list[Plan]:
    """Returns the plans to run on a device; none if the op's only variant is unsupported there."""
    for caps in _stand_ins(device.caps):
        plan = plan_graph(graph, caps, None if caps.is_cpu else SHORT)
        if not plan.host_steps:
            return _simulated(plan, caps) if caps.simulator else [plan]
    return []


def _simulated(plan: Plan, caps: DeviceCaps) -> list[Plan]:
    """What a simulator runs instead of a plan: small tiles besides, but no large grids.

    What it finds depends on how tiles cover the sizes. It takes a second for some 2000 work-items
    with barriers, so that kernels for GPUs get small tiles only.
    """
    launches = [x for s in plan.steps if isinstance(s, DeviceStep) for x in s.launches]
    tuned = {x.kernel.entry for x in launches} & TUNED.keys()
    plans = [plan] if not tuned or not any(map(_is_shared, launches)) else []
    plans += [plan_graph(plan.graph, caps, SMALL[entry]) for entry in tuned]
    return [p for p in plans if _is_short(p)]


def _is_shared(launch: Launch) -> bool:
    """Returns whether work-groups have several work-items, and may use barriers."""
    return math.prod(launch.local_size or ()) > 1


def _but_epilogue(kernel: KernelSpec) -> KernelSpec:
    """Returns a kernel without its epilogue, whose code is the same in all kernels."""
    kept = tuple((k, v) for k, v in kernel.defines if k not in Epilogue().defines)
    return replace(kernel, defines=kept)


def _is_short(plan: Plan) -> bool:
    """Returns whether a simulator finishes within a few seconds."""
    launches = [x for s in plan.steps if isinstance(s, DeviceStep) for x in s.launches]
    items = sum(math.prod(x.global_size) for x in launches)
    shared = sum(x.flops for x in launches if _is_shared(x))
    return items <= 2048 and shared <= 200_000


def _is_second_choice(cls: type[Op], variant: Variant) -> bool:
    """Returns whether CPUs have a preferred kernel instead of the variant."""
    return "cpu" not in variant.name and any("cpu" in v.name for v in cls.variants)


def _runs() -> list[ParameterSet]:
    """Returns each variant on each device; second choices are marked slow if compiling is slow."""
    runs = []
    for device, cls in product(all_devices(), ON_DEVICE):
        for variant in cls.variants:
            slow = device is not quick_device() and _is_second_choice(cls, variant)
            name = f"{cls.name}-{variant.name}-{name_of(device)}"
            runs += [pytest.param(cls, variant, device, marks=[pytest.mark.slow] * slow, id=name)]
    return runs


def _whole(device: DeviceInfo, launches: Sequence[Launch], *, is_known: bool) -> float:
    """Returns how many samples of a variant all run before the test skips most of the rest.

    Of the rest one in four runs, or one in eight of those whose kernels are known. Kernels with
    barriers take minutes in a simulator, and other devices take long to compile; the quickest
    device runs all samples in their place. `make portability` runs all on each device.

    Args:
        device: Runs the samples.
        launches: Launches of the next sample.
        is_known: Whether all kernels of the next sample have run before, in another sample.
    """
    is_shared = any(map(_is_shared, launches))
    if device.caps.simulator and is_known:
        return 0 if is_shared else 8
    if device is quick_device() or (is_known and not is_shared):
        return math.inf
    return 2 if is_shared else WHOLE


@pytest.mark.parametrize(("cls", "variant", "device"), _runs())
def test_variant_matches_reference(
    cls: type[Op], variant: Variant, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cls, "variants", (variant,))
    ran, fitting, known = 0, 0, set[KernelSpec]()
    for number, sample in enumerate(samples(cls)):
        assert isinstance(sample.op, cls)
        expected = sample.op.reference(*sample.inputs)
        for plan in _plans(sample_graph(sample), device):
            launches = launches_of(plan.steps)
            kernels = {_but_epilogue(x.kernel) for x in launches}
            fitting += 1
            is_known = kernels <= known
            few = ran >= _whole(device, launches, is_known=is_known)
            if few and fitting % (8 if is_known else 4):
                continue
            known |= kernels
            ran += 1
            for array, (name, actual) in zip(
                expected, run_plan(plan, feeds_of(sample), device).items(), strict=False
            ):
                text = f"sample {number} {sample.op} {name}"
                check(text, actual, array, tolerance(sample.op, array))
    if not ran:
        pytest.skip(f"no sample of {cls.name} fits; other ops with this variant have some")


@DEVICES
def test_every_variant_is_reached_by_samples(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {v: f"{c.name}.{v.name}" for c in ON_DEVICE for v in c.variants}
    # No device here has what it needs: test_gemm_matrix_unit_gpu.py runs it with a unit in C.
    left = {v: n for v, n in left.items() if v.requires is not GPU_UNIT}
    # It takes constant weights, which samples do not have: see test_matmul_integer.py.
    left.pop(MatMulInteger.variants[0])
    if not device.caps.is_cpu:  # a GPU is taken for nothing else
        left = {v: n for v, n in left.items() if v.requires.kinds != CPU.kinds}
    for cls in ON_DEVICE:
        for variant in left.keys() & set(cls.variants):
            monkeypatch.setattr(cls, "variants", (variant,))
            if any(_plans(sample_graph(s), device) for s in samples(cls)):
                del left[variant]
            monkeypatch.undo()
    assert not left


def test_non_attribute_fields_are_dataclass_fields() -> None:
    for cls in CLASSES:
        assert cls.onnx_traits.non_attribute_fields <= {f.name for f in fields(cls)}, cls.name


def test_declared_attributes_are_fields() -> None:
    """A class that declares attributes must be a dataclass itself; inheriting is not enough."""
    for cls in CLASSES:
        declared = {n for n, hint in get_annotations(cls).items() if "ClassVar" not in hint}
        assert declared <= {f.name for f in fields(cls)}, cls.name


def test_every_op_with_kernels_has_samples() -> None:
    assert not [c.name for c in ON_DEVICE if next(samples(c), None) is None]


@DEVICES
@pytest.mark.parametrize("cls", ON_DEVICE, ids=lambda c: c.name)
def test_op_samples_have_kernels(cls: type[Op], device: DeviceInfo) -> None:
    for sample in samples(cls):
        graph = sample_graph(sample)
        # Only for CPUs are rows of A rounded (clrt/passes/device_pipeline.py).
        if not device.caps.is_cpu and getattr(sample.op, "a_bits", 0):
            continue
        steps = plan_graph(graph, device.caps).host_steps
        dtypes = {v.dtype for v in (*graph.inputs, *graph.outputs)}
        assert not steps or lacks_float64(dtypes, device.caps), sample


@pytest.mark.parametrize("alike", [True, False], ids=["per size", "per axis"])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.name)
def test_symbolic_shape_inference_agrees_with_numeric(cls: type[Op], alike: bool) -> None:
    """Dims become symbols, one per size or per axis, which are also bound to other sizes."""
    for sample in samples(cls):
        op, types = sample.op, [None if v is None else v.type for v in sample_values(sample)]
        assert isinstance(op, cls)
        sizes: dict[str, int] = {}
        for index, type_ in enumerate(types):
            if type_ is not None and type_.known_elements is None:
                shape = type_.static_shape or ()
                names = [f"n{d}" if alike else f"n{index}_{axis}" for axis, d in enumerate(shape)]
                sizes.update(zip(names, shape, strict=True))
                types[index] = TensorType(type_.dtype, tuple(map(symbol, names)))
        symbolic = op.infer_with_data(types)
        for less in range(-2, 9):
            bindings = {n: size if size == 1 else max(size - less, 0) for n, size in sizes.items()}
            try:
                numbers = op.infer_with_data([t and t.bind(bindings) for t in types])
            except ClrtError:
                continue
            for found, expected in zip(symbolic, numbers, strict=True):
                assert found.bind(bindings).is_compatible(expected), (op, found, expected)


def test_inferred_dims_are_known_non_negative() -> None:
    x = TensorType(DType.FLOAT32, (1, 4, symbol("n")))
    weights = TensorType(DType.FLOAT32, (4, 4, 3))
    pads = TensorType.of(np.array([0, 0, -2, 0, 0, 0]))
    step, length = TensorType.of(np.array(2)), TensorType.of(np.array(8))
    signal = TensorType(DType.FLOAT32, (4, symbol("n")))
    shape = TensorType.of_dims([1, 1, symbol("n") - 2])
    cases: list[tuple[Op, list[TensorType | None]]] = [
        (MaxPool((3,), (2,)), [x]),
        (Conv(strides=(2,)), [x, weights]),
        (ConvTranspose(pads=(4, 4)), [x, weights]),
        (Pad(), [x, pads]),
        (STFT(), [signal, step, None, length]),
        (ConstantOfShape(), [shape]),
    ]
    for op, inputs in cases:
        (found,) = op.infer(inputs)
        assert found.shape is not None and all(dim >= 0 for dim in found.shape)


def test_string_normalizer_keeps_symbolic_row_count() -> None:
    n = symbol("n")
    (found,) = StringNormalizer().infer([TensorType(DType.STRING, (n, n))])
    assert found.shape is not None and provably_equal(found.shape[0], n)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.name)
def test_op_error_samples_are_refused(cls: type[Op]) -> None:
    for sample, error in error_samples(cls):
        with pytest.raises(error):
            sample_graph(sample)


def test_sample_files_mirror_op_files() -> None:
    for path in (ROOT / "tests/ops/samples").glob("*/*.py"):
        assert (ROOT / "clrt/ops" / path.parent.name / path.name).exists(), path
