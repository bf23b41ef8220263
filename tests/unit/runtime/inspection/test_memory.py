"""Memory limits, batch search and out-of-memory errors, without a device."""

from __future__ import annotations

import pytest

from clrt.errors import InputError, OutOfMemoryError
from clrt.ir.dims import Dim, symbol
from clrt.ir.dtypes import DType
from clrt.ir.graph import Value
from clrt.ir.op import TensorType
from clrt.plan.memory import Memory, batch_resizer, largest_batch, out_of_memory
from clrt.util.formatting import format_bytes, format_flops, format_shapes, parse_bytes


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(7, 7), ("7", 7), ("2GiB", 2 << 30), ("512 MB", 512 << 20), ("1.5k", 1536), ("1e3", 1000)],
)
def test_memory_limits_are_parsed(text: int | str, wanted: int) -> None:
    assert parse_bytes(text) == wanted


@pytest.mark.parametrize("text", ["", "GiB", "2 apples", 0, -1, "nan", "inf"])
def test_invalid_memory_limit_is_refused(text: int | str) -> None:
    with pytest.raises(InputError, match="not a memory limit"):
        parse_bytes(text)


@pytest.mark.parametrize("limit", [0, 9, 10, 11, 999, 1000, 1001])
def test_largest_batch_within_limit_is_found(limit: int) -> None:
    assert largest_batch(lambda n: 10 * n, limit) == limit // 10


def test_out_of_memory_batch_does_not_fit() -> None:
    def needed(batch: int) -> int:
        if batch > 37:
            raise OutOfMemoryError("too large")
        return batch

    assert largest_batch(needed, 1 << 60) == 37


def _value(name: str, *dims: Dim) -> Value:
    return Value(name, TensorType(DType.FLOAT32, dims))


def test_batch_is_symbol_of_axis_0() -> None:
    b, s = symbol("b"), symbol("s")
    inputs = [_value("k", 4, s), _value("x", b, s), _value("y", b * s), _value("z", symbol("n"), b)]
    shapes = {"k": (4, 5), "x": (2, 5), "y": (10,), "z": (2, 2)}
    resized = batch_resizer(inputs, {"b": 2, "s": 5, "n": 2}, shapes)
    assert resized(7) == {"k": (4, 5), "x": (7, 5), "y": (35,), "z": (7, 7)}
    other = batch_resizer(inputs, {"b": 2, "s": 5, "n": 9}, {**shapes, "z": (9, 2)})
    assert other(7)["z"] == (9, 7)
    with pytest.raises(InputError, match="no free batch axis"):
        batch_resizer(inputs[:1], {"s": 5}, shapes)


def test_out_of_memory_error_states_need_and_fitting_batch() -> None:
    memory = Memory(1 << 20, 0, 3 << 20, 5)
    error = out_of_memory("x=8x4", memory, 1 << 20, "memory_limit allows", 3)
    assert (error.needed_bytes, error.available_bytes, error.fitting_batch) == (
        4 << 20,
        1 << 20,
        3,
    )
    assert str(error) == (
        "Running x=8x4 needs 4.0 MiB on the device (weights 1.0 MiB, constants of the plan 0 B, "
        "arena 3.0 MiB), and memory_limit allows 1.0 MiB. A batch of 3 would fit."
    )
    none = out_of_memory("x=1", memory, 1, "the device has", 0)
    assert none.fitting_batch is None
    assert "Not even a batch of 1" in str(none)
    assert memory.to_dict()["total_bytes"] == (4 << 20) + 5


def test_bytes_flops_and_shapes_are_formatted() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 << 29)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 GiB",
    ]
    assert [format_flops(n) for n in (7, 2_500, 10**12)] == ["7 FLOP", "2.5 kFLOP", "1.0 TFLOP"]
    assert format_shapes({"a": (8, 128), "b": (1,)}) == "a=8x128,b=1"
