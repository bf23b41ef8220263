"""Record layout of GGUF weight blocks, and restoring the blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from clrt.formats.gguf.block_types import BLOCK_TYPES_BY_NAME
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Node, Value
from clrt.ir.op import PackedConstant, TensorType
from clrt.kernels.packed_layouts import packed_shape, restoring
from clrt.kernels.spec import PackedWeight
from clrt.models.compiled import CompiledModel, read_compiled, write_compiled
from clrt.ops.matmul.gguf_format import GgufFormat
from clrt.ops.matmul.quantized_matmul import QuantizedMatMul

TYPES = ("Q4_0", "Q4_1", "Q8_0")


def _weight(name: str, n: int, k: int) -> Value:
    """Returns random blocks with finite scales and minima."""
    type_ = BLOCK_TYPES_BY_NAME[name]
    rng = np.random.default_rng(len(name) + n)
    raw = rng.integers(0, 256, (n, type_.row_bytes(k)), np.uint8)
    blocks = raw.reshape(n, -1, type_.nbytes)
    blocks[..., 1 : 2 * (1 + type_.has_minima) : 2] &= 0xBB
    return Value("w", TensorType.of(raw))


def _records(name: str, n: int, k: int, weight: Value) -> PackedWeight:
    return GgufFormat(BLOCK_TYPES_BY_NAME[name], n, k, weight).panels().packed


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("n", "k"), [(64, 256), (37, 32), (1, 96)])
def test_records_restore_to_original_blocks(name: str, n: int, k: int) -> None:
    weight = _weight(name, n, k)
    raw = weight.numbers
    assert raw is not None
    packed = _records(name, n, k, weight)
    records = packed.pack(raw)
    assert records.shape == packed_shape(packed.layout, raw.shape)
    restore = restoring(packed.layout, raw.shape)
    assert restore is not None
    np.testing.assert_array_equal(restore(records), raw)


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL"])
def test_only_q4_0_q4_1_and_q8_0_records_restore_to_blocks(name: str) -> None:
    weight = _weight(name, 32, 256)
    assert restoring(_records(name, 32, 256, weight).layout, weight.dims) is None


@pytest.mark.parametrize(
    "layout",
    [
        "records8x32:64x256:Q4_0",
        "records4x16:64x256:Q4_0",
        "records4x32:64x250:Q4_0",
        "records4x32:064x256:Q4_0",
        "records4x32:0x256:Q4_0",
        "records4x32:64x256:Q4_K",
    ],
)
def test_invalid_record_layout_names_cannot_be_restored(layout: str) -> None:
    assert restoring(layout, (64, 144)) is None


def test_record_shape_requires_matching_block_shape() -> None:
    assert packed_shape("records4x32:64x256:Q4_0", (64, 144)) == (2, 8, 576)
    assert packed_shape("records4x32:64x256:Q4_0", (64, 145)) is None
    assert packed_shape("records4x32:65x256:Q4_0", (64, 144)) is None


@pytest.mark.parametrize("name", TYPES)
def test_compiled_model_stores_records(tmp_path: Path, name: str) -> None:
    n, k, path = 37, 64, tmp_path / "m.clrt"
    weight = _weight(name, n, k)
    x = Value("x", TensorType(DType.FLOAT32, (3, k)))
    y = Value("y", TensorType(DType.FLOAT32, (3, n)))
    op = QuantizedMatMul(type=name, K=k, N=n, a_bits=8)
    graph = Graph("main", [x], [y], [Node("product", op, [x, weight], [y])], ["y"])
    packed = _records(name, n, k, weight)
    write_compiled(CompiledModel(graph), path, "a test", [packed])
    stored = read_compiled(path).graph.nodes[0].arg(1)
    assert isinstance(stored.type.known_elements, PackedConstant)
    assert stored.type.known_elements.layout == packed.layout
    np.testing.assert_array_equal(stored.numbers, weight.numbers)
