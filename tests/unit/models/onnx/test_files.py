"""Files that are no ONNX model, and tensors in external files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from clrt.errors import ModelError, UnsupportedError
from clrt.models.onnx.importer import import_model
from clrt.ops.movement.concat import Concat
from tests.unit.models.onnx.onnx_models import info, model, weight

NODE = helper.make_node("Add", ["x", "w"], ["y"], "add")
ELEMENTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def external(location: str, **entries: Any) -> onnx.ModelProto:
    tensor = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model([NODE], initializer=[tensor])


def save(folder: Path, proto: onnx.ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_file_bytes_and_proto_give_same_graph(tmp_path: Path) -> None:
    proto = model([NODE], initializer=[weight("w", ELEMENTS)])
    path = save(tmp_path, proto)
    for source in (path, str(path), path.read_bytes(), proto):
        graph = import_model(source)
        assert [n.name for n in graph.nodes] == ["add"]
        assert graph.output_names == ["y"]


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.onnx"):
        import_model(tmp_path / "nothing.onnx")


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        import_model(tmp_path)


def test_text_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("<html><body>404: not found</body></html>\n")
    with pytest.raises(ModelError, match="text file"):
        import_model(path)


def test_git_lfs_pointer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5\n")
    with pytest.raises(ModelError, match="git lfs pull"):
        import_model(path)


def test_truncated_protobuf_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, model([NODE], initializer=[weight("w", ELEMENTS)]))
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ModelError, match="truncated"):
        import_model(path)


@pytest.mark.parametrize("data", [b"", onnx.ModelProto(ir_version=8).SerializeToString()])
def test_empty_model_is_refused(data: bytes) -> None:
    with pytest.raises(ModelError):
        import_model(data)


def test_graph_without_outputs_is_refused() -> None:
    proto = model([helper.make_node("Identity", ["x"], ["y"])])
    del proto.graph.output[:]
    with pytest.raises(ModelError, match="outputs"):
        import_model(proto)


def test_unknown_opset_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="opset 999"):
        import_model(model([helper.make_node("Identity", ["x"], ["y"])], opset=999))


def test_missing_opset_means_opset_1_in_ir_version_2() -> None:
    proto = model([helper.make_node("Concat", ["x", "x"], ["y"])])
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="imports no opset"):
        import_model(proto)
    proto.ir_version = 2
    (node,) = import_model(proto).nodes
    assert node.op == Concat(axis=1)
    proto.opset_import.add(version=0)
    with pytest.raises(ModelError, match="opset 0"):
        import_model(proto)


def test_damaged_initializer_is_named() -> None:
    tensor = weight("w", ELEMENTS)
    tensor.raw_data = tensor.raw_data[:-3]
    with pytest.raises(ModelError, match="'w'"):
        import_model(model([NODE], initializer=[tensor]))


def test_external_data_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"head" + ELEMENTS.tobytes())
    graph = import_model(save(tmp_path, external("w.bin", offset=4, length=24)))
    (constant,) = graph.constants()
    assert constant.numbers is not None
    np.testing.assert_array_equal(constant.numbers, ELEMENTS)


def test_unaligned_external_data_is_read_aligned(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"hea" + ELEMENTS.tobytes())
    graph = import_model(save(tmp_path, external("w.bin", offset=3)))
    (constant,) = graph.constants()
    assert constant.numbers is not None
    np.testing.assert_array_equal(constant.numbers, ELEMENTS)
    assert constant.numbers.flags.aligned


def test_missing_external_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"(?s)gone\.bin.*'w'|'w'.*gone\.bin"):
        import_model(save(tmp_path, external("gone.bin")))


def test_truncated_external_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(ELEMENTS.tobytes()[:-1])
    with pytest.raises(ModelError, match="truncated"):
        import_model(save(tmp_path, external("w.bin")))


@pytest.mark.parametrize(
    "location", ["../secret", "a/../../secret", "/etc/passwd", "..\\secret", "C:\\secret", ""]
)
def test_external_path_outside_folder_is_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(ELEMENTS.tobytes())
    with pytest.raises(ModelError):
        import_model(save(folder, external(location)))


def test_external_symlink_outside_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(ELEMENTS.tobytes())
    (folder / "w.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="outside"):
        import_model(save(folder, external("w.bin")))


def test_external_symlink_into_hugging_face_blobs_is_read(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1234").write_bytes(ELEMENTS.tobytes())
    (snapshot / "w.bin").symlink_to(blobs / "1234")
    assert len(import_model(save(snapshot, external("w.bin"))).nodes) == 1


@pytest.mark.parametrize("entries", [{"offset": "-4"}, {"offset": "x"}, {"length": 7}])
def test_damaged_external_entries_are_refused(tmp_path: Path, entries: dict[str, Any]) -> None:
    (tmp_path / "w.bin").write_bytes(ELEMENTS.tobytes() * 2)
    with pytest.raises(ModelError):
        import_model(save(tmp_path, external("w.bin", **entries)))


def test_external_data_without_model_path_is_refused() -> None:
    with pytest.raises(ModelError, match="path"):
        import_model(external("w.bin"))


def test_initializer_listed_as_input_is_a_constant() -> None:
    proto = model([NODE], [info("x"), info("w")], initializer=[weight("w", ELEMENTS)])
    graph = import_model(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    assert [v.name for v in graph.constants()] == ["w"]


def test_sparse_initializer_is_densified() -> None:
    values, indices = weight("w", np.float32([5, 7])), weight("i", np.int64([1, 5]))
    sparse = helper.make_sparse_tensor(values, indices, [2, 3])
    graph = import_model(model([NODE], sparse_initializer=[sparse]))
    (constant,) = graph.constants()
    assert constant.numbers is not None
    np.testing.assert_array_equal(constant.numbers, np.float32([[0, 5, 0], [0, 0, 7]]))
