"""Malicious GGUF files: refused with an error that names the cause, within bounded memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from clrt.errors import ClrtError
from clrt.formats.gguf.file import GgufFile, read_gguf
from tests.security.mutation_values import INTS, flipped
from tests.unit.formats.gguf_files import file_of, pair, record, text, write_small

_COUNT = int(os.environ.get("CLRT_FUZZ_FILES", "3000"))
# What a file of a few kilobytes may take.
_MOST_BYTES = 4 << 20
U32, U64 = struct.Struct("<I").pack, struct.Struct("<Q").pack
HUGE = 2**64 - 1
ONE = [pair("k", 8, text("v"))]


def _array(kind: int, count: int, data: bytes = b"") -> list[bytes]:
    return [pair("k", 9, U32(kind) + U64(count) + data)]


def _tensor(dims: tuple[int, ...], kind: int = 0, offset: int = 0, data: int = 64) -> bytes:
    return file_of(ONE, [record("w", dims, kind, offset)], data)


# The file, and how its error goes on after the path.
CASES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "is not a GGUF file"),
    "another format": (bytes(100), "is not a GGUF file"),
    "a header cut short": (b"GGUF\x03\0\0\0\0\0", "it ends within its header"),
    "version 1": (file_of([], [], version=1), "has version 1 of GGUF, and clrt reads 2 and 3"),
    "version 4": (file_of([], [], version=4), "has version 4 of GGUF"),
    "big-endian": (b"GGUF\0\0\0\3" + bytes(16), "is a big-endian GGUF file"),
    "keys without an end": (file_of(ONE, [], counts=(0, HUGE)), "no room for the 18446744073709"),
    "tensors without an end": (file_of(ONE, [], counts=(2**40, 1)), "no room for the 1099511627"),
    "one key more": (file_of(ONE * 1, [], 32, counts=(0, 2)), "the key of metadata 1 has 0 bytes"),
    "a key twice": (file_of(ONE * 2, []), "the key 'k' is there twice"),
    "an empty key": (file_of([pair("", 8, text("v"))], []), "the key of metadata 0 has 0 bytes"),
    "a long key": (file_of([pair("k" * 70_000, 8, text(""))], []), "metadata 0 has 70000 bytes"),
    "a key past the end": (
        file_of([U64(1000) + bytes(20)], []),
        "it ends within the key of metadata 0",
    ),
    "a key that is no text": (
        file_of([pair(b"\xff", 8, text("v"))], []),
        "the key of metadata 0 is not UTF-8",
    ),
    "a value that is no text": (
        file_of([pair("k", 8, text(b"\xc3"))], []),
        "text 0 of the metadata 'k' is not UTF-8",
    ),
    "one of many that is no text": (
        file_of(_array(8, 3, text("a") + text("b") + text(b"\xed\xa0\x80")), []),
        "text 2 of the metadata 'k' is not UTF-8",
    ),
    "an unknown type": (file_of([pair("k", 13, b"\0")], []), "'k' has the unknown type 13"),
    "a text past the end": (
        file_of([pair("k", 8, U64(HUGE))], []),
        "it ends within the metadata 'k'",
    ),
    "an array past the end": (
        file_of(_array(12, 2**61), []),
        "it ends within the metadata 'k'",
    ),
    "texts without an end": (file_of(_array(8, 2**60), []), "'k' announces 1152921504606846976"),
    "texts past the end": (
        file_of(_array(8, 2, text("a") + U64(2**63)), []),
        "it ends within the metadata 'k'",
    ),
    "an array of arrays": (file_of(_array(9, 1, _array(4, 1)[0]), []), "is an array of arrays"),
    "an array of unknown type": (file_of(_array(99, 1), []), "'k' has the unknown type 99"),
    "no alignment": (
        file_of([pair("general.alignment", 4, U32(0))], []),
        "its 'general.alignment' is 0, not a power of two",
    ),
    "an odd alignment": (
        file_of([pair("general.alignment", 4, U32(48))], []),
        "its 'general.alignment' is 48",
    ),
    "an alignment of text": (
        file_of([pair("general.alignment", 8, text("a"))], []),
        "is a text and not an integer",
    ),
    "a huge alignment": (
        file_of([pair("general.alignment", 4, U32(2**31))], [record("w", (1,))], 64),
        "tensor 'w' is outside the file",
    ),
    "an empty name": (file_of(ONE, [record("", (1,))], 64), "the name of tensor 0 has 0 bytes"),
    "a name that is no text": (
        file_of(ONE, [record(b"\xff", (1,))], 64),
        "the name of tensor 0 is not UTF-8",
    ),
    "a tensor twice": (
        file_of(ONE, [record("w", (1,)), record("w", (1,), 0, 32)], 64),
        "the tensor 'w' is there twice",
    ),
    "tensors over each other": (
        file_of(ONE, [record("w", (9,)), record("v", (1,), 0, 32)], 64),
        "tensor 'v' overlaps 'w'",
    ),
    "two tensors at one place": (
        file_of(ONE, [record("w", (1,)), record("v", (1,))], 64),
        "tensor 'v' overlaps 'w'",
    ),
    "five axes": (_tensor((1, 1, 1, 1, 1)), "tensor 'w' has 5 axes"),
    "axes without an end": (
        file_of(ONE, [text("w") + U32(2**32 - 1)], 64),
        "tensor 'w' has 4294967295 axes",
    ),
    "no elements": (_tensor((4, 0)), "tensor 'w' has no elements, [0, 4]"),
    "giant dims": (_tensor((HUGE, HUGE, HUGE, HUGE)), "tensor 'w' is outside the file"),
    "dims whose product is small in 64 bits": (
        _tensor((2**32, 2**32)),
        "tensor 'w' is outside the file",
    ),
    "a tensor past the end": (_tensor((17,)), "tensor 'w' is outside the file: [17] of F32"),
    "an offset past the end": (_tensor((1,), 0, 2**63), "tensor 'w' is outside the file"),
    "an offset between": (
        _tensor((1,), 0, 4),
        "the offset 4 of tensor 'w' is not a multiple of 32",
    ),
    "an unknown block type": (_tensor((1,), 999), "has the unknown type 999"),
    "an old block type": (_tensor((32,), 4), "has the unknown type 4"),
    "half a block": (
        _tensor((48,), 2),
        "tensor 'w' has rows of 48 elements, which blocks of 32 (Q4_0) do not divide",
    ),
    "a shard of very many": (
        file_of([pair("split.count", 2, struct.pack("<H", 65535))], []),
        "is one of 65535 shards, and its name does not end in '-00001-of-65535.gguf'",
    ),
    "a count of shards that is text": (
        file_of([pair("split.count", 8, text("2"))], []),
        "'split.count' of ",
    ),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
}


def _use(file: GgufFile) -> None:
    """Everything that a caller could ask of it."""
    assert len(dict(file.metadata)) == len(file.metadata)
    for tensor in file.tensors.values():
        assert tensor.dequantise().shape == tensor.shape
        if tensor.type.coding is not None:
            tensor.type.levels(tensor.raw.reshape(-1, tensor.raw.shape[-1]))


@pytest.mark.parametrize("name", CASES)
def test_malicious_gguf_is_refused_within_memory_bound(name: str, tmp_path: Path) -> None:
    content, expected = CASES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(ClrtError) as caught:
            _use(read_gguf(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert expected in str(caught.value)
    assert str(path) in str(caught.value)
    assert str(caught.value).count("; ") >= 1  # the remedy
    assert peak < _MOST_BYTES


def test_gguf_path_without_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClrtError, match="cannot be read: Is a directory"):
        read_gguf(tmp_path)
    with pytest.raises(ClrtError, match="cannot be read: No such file"):
        read_gguf(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ClrtError, match="is a pipe or a device"):
        read_gguf(tmp_path / "pipe.gguf")


def _mutant(seed: int, whole: bytes) -> bytes:
    rng = Random(f"gguf {seed}")
    match rng.randrange(4):
        case 0:
            return whole[: rng.randrange(len(whole))]
        case 1:
            return flipped(rng, whole)
        case 2:  # near the start, where most bytes say what others mean
            return flipped(rng, whole[:1500]) + whole[1500:]
    at = rng.randrange(1500)
    size = rng.choice((4, 8))
    number = (rng.choice(INTS) % 2 ** (8 * size)).to_bytes(size, "little")
    return whole[:at] + number + whole[at + size :]


def test_gguf_mutants_are_read_or_raise_clrt_error(tmp_path: Path) -> None:
    """Only clrt errors, within bounded memory; CLRT_FUZZ_FILES sets the number of mutants."""
    path = tmp_path / "m.gguf"
    write_small(path)
    whole = path.read_bytes()
    assert len(whole) > 1500
    endings: Counter[str] = Counter()
    tracemalloc.start()
    try:
        for seed in range(_COUNT):
            path.unlink()  # the mapped one lives on
            path.write_bytes(_mutant(seed, whole))
            tracemalloc.reset_peak()
            try:
                _use(read_gguf(path))
                endings["read"] += 1
            except ClrtError as error:
                endings[type(error).__name__] += 1
            assert tracemalloc.get_traced_memory()[1] < _MOST_BYTES, seed
    finally:
        tracemalloc.stop()
    assert endings["read"] > _COUNT / 20, endings
    assert endings["ModelError"] > _COUNT / 20, endings


def test_unmutated_gguf_seed_is_read(tmp_path: Path) -> None:
    """Otherwise every mutant might be refused for a fault of its seed."""
    written = write_small(tmp_path / "m.gguf")
    with np.errstate(all="ignore"):
        _use(file := read_gguf(tmp_path / "m.gguf"))
    assert file.tensors.keys() == written.keys()
