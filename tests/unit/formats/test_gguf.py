"""GGUF metadata, tensors and shards compared with llama.cpp's Python package."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from clrt.errors import ModelError
from clrt.formats.gguf.file import read_gguf
from tests.unit.formats.gguf_files import TEXTS, file_of, pair, record, text, write_small


def test_metadata_matches_gguf_reader(tmp_path: Path) -> None:
    write_small(tmp_path / "m.gguf")
    meta = read_gguf(tmp_path / "m.gguf").metadata
    oracle = gguf.GGUFReader(tmp_path / "m.gguf").fields
    assert list(meta) == [k for k in oracle if not k.startswith("GGUF.")]
    for key, value in meta.items():
        theirs = oracle[key].contents()
        ours = value.tolist() if isinstance(value, np.ndarray) else value
        assert (list(ours) if isinstance(ours, tuple) else ours) == theirs, key
        assert meta[key] is value  # decoded once
    assert len(meta) == len(list(meta))
    assert "none" not in meta
    assert meta["n.yes"] is True


def test_typed_metadata_accessors_check_types(tmp_path: Path) -> None:
    write_small(tmp_path / "m.gguf")
    meta = read_gguf(tmp_path / "m.gguf").metadata
    assert meta.text("n.text") == "é🙂"
    assert meta.integer("n.i64") == -(2**40)
    assert meta.number("n.u8") == 200.0
    assert meta.number("n.f32") == 0.5
    assert meta.flag("n.no") is False
    assert meta.texts("a.texts") == tuple(TEXTS)
    assert meta.numbers("a.ints").tolist() == [3, -1, 2]
    assert meta.numbers("a.bools").dtype == np.bool_
    assert meta.integer("none", 7) == 7
    assert meta.texts("none", ()) == ()
    with pytest.raises(ModelError, match=r"has no metadata 'none'; convert"):
        meta.text("none")
    with pytest.raises(ModelError, match=r"'n.text' of .*m.gguf is a text and not an integer"):
        meta.integer("n.text")
    with pytest.raises(ModelError, match=r"'n.yes' of .* is a bool and not an integer"):
        meta.integer("n.yes", 1)
    with pytest.raises(
        ModelError, match=r"'a.ints' of .* is an array of int32 and not an array of"
    ):
        meta.texts("a.ints")
    with pytest.raises(ValueError, match="read-only"):
        meta.numbers("a.ints")[0] = 1


def test_tensors_match_gguf_reader(tmp_path: Path) -> None:
    written = write_small(tmp_path / "m.gguf")
    file = read_gguf(str(tmp_path / "m.gguf"))
    assert file.version == 3
    assert file.files == (file.path,)
    oracle = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert list(file.tensors) == list(oracle)
    for name, tensor in file.tensors.items():
        theirs = oracle[name]
        assert tensor.name == name
        assert tensor.type.code == theirs.tensor_type
        assert tensor.shape == tuple(reversed(theirs.shape.tolist()))
        assert tensor.start == theirs.data_offset
        assert tensor.raw.tobytes() == written[name].tobytes()
        assert not tensor.raw.flags.writeable
        assert not tensor.raw.flags.owndata
        assert tensor.dequantise().shape == tensor.shape
    assert file.tensors["q6.weight"].shape == (2, 256)
    assert file.tensors["q6.weight"].raw.shape == (2, 210)
    half = file.tensors["half.weight"].dequantise()
    assert np.array_equal(half, written["half.weight"].astype(np.float32))
    assert "raw" not in repr(file.tensors["bias"])


def test_version_2_file_with_alignment_and_scalar_is_read(tmp_path: Path) -> None:
    pairs = [pair("general.alignment", 4, struct.pack("<I", 8))]
    head = file_of(pairs, [record("a", ()), record("b", (2, 1), 0, 8)], version=2)
    (tmp_path / "m.gguf").write_bytes(head + np.array([1, 0, 2, 3], "<f4").tobytes())
    file = read_gguf(tmp_path / "m.gguf")
    assert file.version == 2
    assert {n: t.dequantise().tolist() for n, t in file.tensors.items()} == {
        "a": 1.0,
        "b": [[2.0, 3.0]],
    }


def test_file_without_tensors_is_read(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(file_of([pair("a", 8, text("x"))], []))
    file = read_gguf(tmp_path / "m.gguf")
    assert file.tensors == {}
    assert dict(file.metadata) == {"a": "x"}


@pytest.mark.parametrize("given", [0, 1, 2])
def test_shards_are_joined(tmp_path: Path, given: int) -> None:
    written = write_small(tmp_path / "m.gguf", split_max_tensors=2)
    shards = sorted(tmp_path.iterdir())
    assert len(shards) == 3
    file = read_gguf(shards[given])
    assert file.path == shards[0]
    assert file.files == tuple(shards)
    assert file.metadata.text("general.architecture") == "llama"
    assert {n: t.raw.tobytes() for n, t in file.tensors.items()} == {
        n: a.tobytes() for n, a in written.items()
    }
    assert [t.file for t in file.tensors.values()] == [shards[i] for i in (0, 0, 1, 1, 2)]


def test_missing_or_inconsistent_shards_are_refused(tmp_path: Path) -> None:
    write_small(tmp_path / "m.gguf", split_max_tensors=2)
    one, two, three = sorted(tmp_path.iterdir())
    two.rename(tmp_path / "away.gguf")
    with pytest.raises(ModelError, match=r"00002-of-00003.gguf is missing: it is shard 2 of 3"):
        read_gguf(one)
    with pytest.raises(
        ModelError, match=r"away.gguf is one of 3 shards, and its name does not end"
    ):
        read_gguf(tmp_path / "away.gguf")
    two.write_bytes(three.read_bytes())
    with pytest.raises(
        ModelError, match=r"00002-of-00003.gguf is damaged: its header says that it is shard 3"
    ):
        read_gguf(one)
    other = tmp_path / "other"
    other.mkdir()
    write_small(other / "m.gguf", split_max_tensors=4)
    files = sorted(other.iterdir())
    whole = files[0].read_bytes()
    (other / "part.gguf").write_bytes(whole)
    (other / files[1].name).write_bytes(whole.replace(*_numbered(0, 1)))
    with pytest.raises(ModelError, match="another shard has the tensor 'bias', too"):
        read_gguf(files[0])


def _numbered(old: int, new: int) -> tuple[bytes, bytes]:
    """Returns the bytes of the key split.no with an old and a new value."""
    made = [pair("split.no", 2, struct.pack("<H", n)) for n in (old, new)]
    return made[0], made[1]


def test_wrong_shard_tensor_count_is_refused(tmp_path: Path) -> None:
    write_small(tmp_path / "m.gguf", split_max_tensors=4)
    one = sorted(tmp_path.iterdir())[0]
    old, new = (pair("split.tensors.count", 5, struct.pack("<i", n)) for n in (5, 6))
    one.write_bytes(one.read_bytes().replace(old, new))
    with pytest.raises(ModelError, match="its shards have 5 tensors and not 6"):
        read_gguf(one)


def test_large_gguf_opens_quickly(tmp_path: Path) -> None:
    """Vocabulary of 256,000 strings and a sparse file with 2 GB of tensors."""
    count = 256_000
    vocabulary = b"".join(text(f"token {i}") for i in range(count))
    pairs = [pair("tokens", 9, struct.pack("<IQ", 8, count) + vocabulary)]
    rows = 2_000_000_000 // 4096 // 300
    size = rows * 4096
    records = [record(f"blk.{i}.weight", (1024, rows), 0, i * size) for i in range(300)]
    path = tmp_path / "m.gguf"
    head = file_of(pairs, records)
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + 300 * size)
    start = time.process_time()
    file = read_gguf(path)
    assert time.process_time() - start < 0.3
    assert len(file.tensors) == 300
    start = time.process_time()
    assert file.metadata.texts("tokens")[-1] == f"token {count - 1}"
    assert time.process_time() - start < 0.5
