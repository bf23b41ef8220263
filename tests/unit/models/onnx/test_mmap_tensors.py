"""Large tensors are views of the mapped file; validity is that of a plain protobuf parse."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from clrt.errors import ClrtError, ModelError
from clrt.ir.graph import Graph
from clrt.models.onnx import mmap_tensors as onnx_mapped
from clrt.models.onnx import read as onnx_read
from clrt.models.onnx.importer import import_model
from clrt.models.onnx.mmap_tensors import MIN_VIEW_BYTES, cut_tensors
from tests.models.fixtures import DATA, family_names, load_family
from tests.unit.models.onnx.onnx_models import info, model, weight

FIXTURES = sorted(DATA.glob("*.onnx"))
LARGE = np.arange(5, 5 + MIN_VIEW_BYTES // 4 + 5, dtype=np.float32)
FLAGS = np.arange(MIN_VIEW_BYTES + 3) % 3 == 0
pytestmark = pytest.mark.skipif(sys.byteorder == "big", reason="nothing is cut there")


def large_model(**graph: Any) -> onnx.ModelProto:
    """Returns a model with a large initializer, a large Constant and small tensors."""
    nodes = [
        helper.make_node("Constant", [], ["flags"], "constant", value=weight("", FLAGS)),
        helper.make_node("Add", ["x", "small"], ["s"], "before"),
        helper.make_node("Add", ["s", "large"], ["y"], "after"),
        helper.make_node("Not", ["flags"], ["z"], "not"),
    ]
    tensors = [weight("large", LARGE), weight("small", np.float32([2]))]
    outputs = [info("y", ["n"]), info("z", ["m"], TensorProto.BOOL)]
    return model(nodes, [info("x", ["n"])], outputs, initializer=tensors, **graph)


MODEL = large_model().SerializeToString()


def parse(data: bytes) -> onnx.ModelProto | None:
    """Parses a model with protobuf; None if it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return onnx.ModelProto.FromString(data)
        except DecodeError:
            return None


def parse_cut(data: bytes, min_bytes: int) -> onnx.ModelProto | None:
    """Parses a model with its large tensors cut out, then restores them."""
    rest, views = cut_tensors(data, min_bytes)
    proto = parse(rest)
    if proto is not None:
        attributes = [a.t for n in proto.graph.node for a in n.attribute if a.HasField("t")]
        for tensor in [*proto.graph.initializer, *attributes]:
            if tensor.raw_data in views:
                tensor.raw_data = views[tensor.raw_data].tobytes()
    return proto


def parses_same(data: bytes, min_bytes: int = 40) -> bool:
    plain, cut = parse(data), parse_cut(data, min_bytes)
    if plain is None or cut is None:
        return plain is cut
    # Unlike ==, this takes NaN for NaN and looks at unknown fields.
    return bool(plain.SerializeToString() == cut.SerializeToString())


def constants(graph: Graph) -> dict[str, np.ndarray[Any, Any]]:
    return {v.name: v.numbers for v in graph.constants() if v.numbers is not None}


def outcome(source: bytes | onnx.ModelProto | None) -> object:
    """Returns the imported graph and constants, or the error class."""
    if source is None:
        return ModelError
    try:
        graph = import_model(source)
    except ClrtError as error:
        return type(error)
    found = {n: (a.dtype, a.shape, a.tobytes()) for n, a in constants(graph).items()}
    return str(graph), found


def memory_owner(array: np.ndarray[Any, Any]) -> object:
    """Returns the object that owns an array's memory."""
    owner: Any = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    return owner


def varint(value: int, pad_to: int = 0) -> bytes:
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F)
    groups += [0] * (pad_to - len(groups))
    return bytes([*(g | 0x80 for g in groups[:-1]), groups[-1]])


def message(number: int, body: bytes, pad_to: int = 0) -> bytes:
    """Returns a length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(body), pad_to) + body


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_exported_files_match_plain_parse(path: Path) -> None:
    assert parses_same(path.read_bytes())


@pytest.mark.parametrize("name", family_names())
def test_mapped_weights_match_plain_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = load_family(name)
    data = proto.SerializeToString()
    assert cut_tensors(data, 256)[1]
    assert parses_same(data)
    monkeypatch.setattr(onnx_read, "cut_tensors", partial(cut_tensors, min_bytes=256))
    mapped, plain = constants(import_model(data)), constants(import_model(proto))
    assert mapped.keys() == plain.keys()
    for key, array in plain.items():
        np.testing.assert_array_equal(mapped[key], array, strict=True)


def test_large_file_tensors_are_views_of_mapping(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL)
    found = constants(import_model(path))
    if sys.platform != "win32":
        path.unlink()
    for name, array in {"large": LARGE, "flags": FLAGS}.items():
        assert isinstance(memory_owner(found[name]), mmap.mmap)
        assert not found[name].flags.writeable
        np.testing.assert_array_equal(found[name], array, strict=True)
    assert not isinstance(memory_owner(found["small"]), mmap.mmap)


def test_large_tensors_from_bytes_are_views() -> None:
    found = constants(import_model(MODEL))
    given_bytes = np.frombuffer(MODEL, np.uint8)
    assert np.shares_memory(found["large"], given_bytes)
    assert np.shares_memory(found["flags"], given_bytes)


def test_protobuf_gets_only_small_tensors() -> None:
    rest, views = cut_tensors(MODEL)
    assert len(rest) < 1000
    assert sorted(v.nbytes for v in views.values()) == sorted([LARGE.nbytes, FLAGS.nbytes])


@pytest.mark.parametrize("offset", [0, 3])
def test_large_external_tensor_is_a_view(tmp_path: Path, offset: int) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(offset) + LARGE.tobytes())
    array = constants(import_model(external(tmp_path, LARGE.shape, offset)))["w"]
    assert isinstance(memory_owner(array), mmap.mmap)
    np.testing.assert_array_equal(array, LARGE, strict=True)


def test_external_tensor_over_2_gib_is_read(tmp_path: Path) -> None:
    size, offset = (1 << 29) + 4, (1 << 32) + 4
    with (tmp_path / "w.bin").open("wb") as file:
        # Only what is written takes space.
        file.truncate(offset + 4 * size)
        file.seek(offset + 4 * (size - 2))
        file.write(np.float32([3, 4]).tobytes())
    array = constants(import_model(external(tmp_path, (size,), offset)))["w"]
    assert array.nbytes == 4 * size
    np.testing.assert_array_equal(array[-3:], np.float32([0, 3, 4]))


def external(folder: Path, shape: tuple[int, ...], offset: int) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": offset}.items():
        tensor.external_data.add(key=key, value=str(value))
    node = helper.make_node("Gather", ["w", "i"], ["y"])
    inputs, outputs = [info("i", ["n"], TensorProto.INT64)], [info("y", ["n"])]
    path = folder / "m.onnx"
    path.write_bytes(model([node], inputs, outputs, initializer=[tensor]).SerializeToString())
    return path


def test_file_over_2_gib_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(MODEL)
    os.truncate(path, 1 << 31)
    with pytest.raises(ModelError, match="external data"):
        import_model(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_model_is_read_from_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(MODEL,))
    writer.start()
    found = constants(import_model(path))
    writer.join()
    np.testing.assert_array_equal(found["large"], LARGE)


@pytest.mark.parametrize("change", ["dims", "segment", "bytes"])
def test_damaged_large_tensor_is_named(change: str) -> None:
    proto = large_model()
    tensor = proto.graph.initializer[0]
    if change == "dims":
        tensor.dims[0] += 1
    elif change == "segment":
        tensor.segment.end = 4
    else:
        tensor.raw_data = tensor.raw_data[:-1]
    with pytest.raises(ModelError, match="'large'"):
        import_model(proto.SerializeToString())


RAW = bytes(range(100))
TENSOR = b"\x08\x64\x10\x02" + message(9, RAW)


@pytest.mark.parametrize(
    ("data", "cut"),
    [
        pytest.param(message(7, message(5, TENSOR)), 1, id="plain"),
        pytest.param(message(7, message(5, TENSOR)) * 2, 2, id="graphs that merge"),
        pytest.param(message(7, message(5, TENSOR + message(9, RAW[1:]))), 2, id="raw_data twice"),
        pytest.param(message(7, message(5, TENSOR, 5), 5), 1, id="lengths in five bytes"),
        pytest.param(message(7, message(5, TENSOR, 6), 5), 0, id="length in six bytes"),
        pytest.param(message(7, message(99, RAW) + message(5, TENSOR)), 1, id="unknown field"),
        pytest.param(message(7, b"\xa3\x06\xa4\x06" + message(5, TENSOR)), 0, id="group before"),
        pytest.param(message(7, message(5, TENSOR) + b"\xa3\x06\xa4\x06"), 1, id="group behind"),
        pytest.param(message(7, message(5, TENSOR) + b"\xa3\x06"), 1, id="group without end"),
        pytest.param(message(7, message(5, TENSOR) + b"\x2a\xff\xff\xff\xff\x0f"), 1, id="4 GiB"),
        pytest.param(message(7, b"\x2a" + b"\xff" * 9 + b"\x01" + TENSOR), 0, id="64-bit length"),
        pytest.param(message(7, b"\x08" + b"\xff" * 11 + message(5, TENSOR)), 0, id="long varint"),
        pytest.param(message(7, message(5, TENSOR) + b"\x00\x00"), 1, id="field 0"),
        pytest.param(message(7, message(5, TENSOR + b"\x09\x00")), 1, id="short fixed64"),
        pytest.param(message(7, message(5, TENSOR))[:-1], 0, id="truncated"),
        pytest.param(b"\x3a\x05" + message(5, TENSOR), 0, id="graph shorter than its tensor"),
        pytest.param(message(7, message(5, b"\x4d" + bytes(4) + TENSOR)), 1, id="wrong wire type"),
    ],
)
def test_unusual_protobuf_encodings_match_plain_parse(data: bytes, cut: int) -> None:
    assert parses_same(data)
    assert len(cut_tensors(data, 40)[1]) == cut


def test_deep_nesting_is_left_to_protobuf() -> None:
    data = b""
    for _ in range(5000):
        data = message(5, message(6, message(1, data)))
    data = message(7, message(1, data))
    assert parses_same(data)
    with pytest.raises(ModelError):
        import_model(data)


def test_field_limit_stops_tensor_cutting(monkeypatch: pytest.MonkeyPatch) -> None:
    data = message(7, message(5, TENSOR) + b"\x98\x06\x01" * 50 + message(5, TENSOR))
    assert len(cut_tensors(data, 40)[1]) == 2
    monkeypatch.setattr(onnx_mapped, "_MAX_FIELDS", 40)
    assert len(cut_tensors(data, 40)[1]) == 1
    assert parses_same(data)


# Most bytes are elements; the first and last ones hold the structure.
POSITIONS = st.one_of(
    st.integers(0, 300),
    st.integers(len(MODEL) - 500, len(MODEL) - 1),
    st.integers(0, len(MODEL) - 1),
    st.sampled_from(
        [i for i in (MODEL.find(LARGE.tobytes()), MODEL.find(FLAGS.tobytes()))]
    ).flatmap(lambda i: st.integers(i - 30, i - 1)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(POSITIONS, st.integers(0, 255)), max_size=3), st.none() | POSITIONS)
def test_damaged_model_matches_plain_parse(
    changes: list[tuple[int, int]], length: int | None
) -> None:
    damaged = bytearray(MODEL)
    for position, value in changes:
        damaged[position] = value
    data = bytes(damaged[:length])
    assert parses_same(data)
    assert outcome(data) == outcome(parse(data))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mapped_parse_of_damaged_small_model_matches_plain_parse(draw: st.DataObject) -> None:
    data = bytearray(FIXTURES[0].read_bytes())
    places = st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255))
    for position, value in draw.draw(st.lists(places, min_size=1, max_size=20)):
        data[position] = value
    assert parses_same(bytes(data))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.binary(min_size=41, max_size=60))
def test_random_bytes_match_plain_parse(data: bytes, raw: bytes) -> None:
    tensor = message(9, raw)
    for wrapped in (data, message(7, data), message(7, message(5, tensor + data) + data)):
        assert parses_same(wrapped)
