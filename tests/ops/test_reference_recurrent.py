"""LSTM, GRU and RNN against ONNX's node tests and, with random attributes, ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clrt
from clrt.errors import ShapeError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array, TensorType
from clrt.ops.recurrent.gru import GRU
from clrt.ops.recurrent.lstm import LSTM
from clrt.ops.recurrent.recurrent import Recurrent
from clrt.ops.recurrent.rnn import RNN
from clrt.runtime.opencl.devices import DeviceInfo
from tests.harness import SWEEP
from tests.ops.onnx_cases import Case, cases

OP_TYPES = {"GRU", "LSTM", "RNN"}
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
ACTIVATIONS = {"GRU": 2, "LSTM": 3, "RNN": 1}
# Those that take an alpha or a beta, as ONNX Runtime counts them.
ALPHAS = {"Affine", "Elu", "HardSigmoid", "LeakyRelu", "ScaledTanh", "ThresholdedRelu"}
BETAS = {"Affine", "HardSigmoid", "ScaledTanh"}
NAMES = ["Tanh", "Sigmoid", "Relu", "Softsign", "Softplus", *sorted(ALPHAS)]


@pytest.mark.parametrize("case", cases(OP_TYPES), ids=lambda c: c.name)
def test_recurrent_reference_matches_onnx(case: Case) -> None:
    for result, expected in zip(case.op.reference(*case.inputs), case.outputs, strict=False):
        if expected is not None:
            assert result.dtype == expected.dtype
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-6)


def _draw(
    op_type: str, seed: int
) -> tuple[dict[str, Any], dict[str, Array], dict[str, Array], list[str]]:
    """Returns attributes, run-time inputs, weights, and the order of the inputs."""
    rng = np.random.default_rng(seed)
    time, batch, depth, hidden = (int(rng.integers(1, n)) for n in (6, 5, 40, 40))
    direction = str(rng.choice(["forward", "reverse", "bidirectional"]))
    directions = 2 if direction == "bidirectional" else 1
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if rng.integers(2):
        names = [str(n) for n in rng.choice(NAMES, ACTIVATIONS[op_type] * directions)]
        attrs["activations"] = names
        attrs["activation_alpha"] = [float(rng.uniform(0.2, 1)) for n in names if n in ALPHAS]
        attrs["activation_beta"] = [float(rng.uniform(0.1, 0.5)) for n in names if n in BETAS]
    if rng.integers(2):
        attrs["clip"] = float(rng.uniform(0.2, 1))
    if op_type == "GRU":
        attrs["linear_before_reset"] = int(rng.integers(2))
    wide = GATES[op_type] * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "X": (time, batch, depth),
        "W": (directions, wide, depth),
        "R": (directions, wide, hidden),
        "B": (directions, 2 * wide),
        "lens": (batch,),
        "h": (directions, batch, hidden),
        "c": (directions, batch, hidden),
        "P": (directions, 3 * hidden),
    }
    names = list(shapes)[: 8 if op_type == "LSTM" else 6]
    kept = [n for n in names if n in "XWR" or rng.integers(2)]
    arrays = {n: (rng.uniform(-1, 1, shapes[n]) / 2).astype(np.float32) for n in kept}
    if "lens" in kept:
        arrays["lens"] = rng.integers(1, time + 1, batch).astype(np.int32)
    weights = {n: arrays.pop(n) for n in ("W", "R", "B", "P") if n in arrays and seed % 4}
    return attrs, arrays, weights, [n if n in kept else "" for n in names]


def _model(
    op_type: str,
    attrs: dict[str, Any],
    feeds: dict[str, Array],
    weights: dict[str, Array],
    names: list[str],
) -> bytes:
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op_type == "LSTM" else 2]
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    tensors = [helper.make_tensor(n, TensorProto.FLOAT, a.shape, a) for n, a in weights.items()]
    given = {k: v for k, v in attrs.items() if v != []}
    node = helper.make_node(op_type, names, outputs, **given)
    graph = helper.make_graph([node], "g", infos, results, tensors)
    opset = [helper.make_opsetid("", 14)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


@SWEEP
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op_type", sorted(OP_TYPES))
def test_random_recurrent_op_matches_onnxruntime(
    op_type: str, seed: int, device: DeviceInfo
) -> None:
    attrs, feeds, weights, names = _draw(op_type, seed)
    model = _model(op_type, attrs, feeds, weights, names)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    expected = theirs.run(None, feeds)
    with clrt.load(model, device=device.index, strict=True) as ours:
        found = ours.run(feeds)
    for (name, array), wanted in zip(found.items(), expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=2e-5, err_msg=f"{name} {attrs}")


@SWEEP
@pytest.mark.parametrize("op_type", sorted(OP_TYPES))
def test_recurrent_layout_1_swaps_axes(op_type: str, device: DeviceInfo) -> None:
    attrs, feeds, weights, names = _draw(op_type, 5)
    results = []
    for layout in (0, 1):
        given = {
            n: a.swapaxes(0, 1).copy() if layout and n in ("X", "h", "c") else a
            for n, a in feeds.items()
        }
        model = _model(op_type, {**attrs, "layout": layout}, given, weights, names)
        with clrt.load(model, device=device.index, strict=True) as loaded:
            results.append(list(loaded.run(given).values()))
    (y, *states), (swapped, *swapped_states) = results
    np.testing.assert_allclose(y.transpose(2, 0, 1, 3), swapped, rtol=1e-5, atol=1e-6)
    for state, other in zip(states, swapped_states, strict=True):
        np.testing.assert_allclose(state.swapaxes(0, 1), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", [GRU, LSTM, RNN])
def test_recurrent_inputs_of_mixed_dtypes_are_refused(cls: type[Recurrent]) -> None:
    types = [TensorType(DType.FLOAT32, (1, 2, 3)) for _ in range(3)]
    types[2] = TensorType(DType.FLOAT16, (1, 2, 3))
    with pytest.raises(ShapeError, match=r"input 2 is .*expected one dtype"):
        cls(hidden_size=3).check_inputs(types)
