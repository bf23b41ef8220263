"""Small GGUF files, written by llama.cpp's Python package or byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

TEXTS = ["", "a", "Ġthe", "日本", "▁x", "🙂", "x" * 300]


def quantised(kind: Kind, *shape: int) -> np.ndarray:
    """Returns random block bytes of shape [*shape[:-1], bytes per row]."""
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(int(kind))
    return rng.integers(0, 256, (*shape[:-1], shape[-1] // elements * nbytes), np.uint8)


def write_small(path: Path, **options: Any) -> dict[str, np.ndarray]:
    """Writes a file with metadata of every type and some tensors; returns the tensors."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_uint8("n.u8", 200)
    writer.add_int8("n.i8", -3)
    writer.add_uint16("n.u16", 60_000)
    writer.add_int16("n.i16", -300)
    writer.add_uint32("n.u32", 4_000_000_000)
    writer.add_int32("n.i32", -70_000)
    writer.add_uint64("n.u64", 2**63)
    writer.add_int64("n.i64", -(2**40))
    writer.add_float32("n.f32", 0.5)
    writer.add_float64("n.f64", 0.1)
    writer.add_bool("n.yes", True)
    writer.add_bool("n.no", False)
    writer.add_string("n.text", "é🙂")
    writer.add_array("a.texts", TEXTS)
    writer.add_array("a.ints", [3, -1, 2])
    writer.add_array("a.floats", [0.5, -0.25])
    writer.add_array("a.bools", [True, False, True])
    rng = np.random.default_rng(0)
    tensors = {
        "plain.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "half.weight": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "bias": np.arange(7, dtype=np.int32),
        "q4.weight": quantised(Kind.Q4_0, 3, 64),
        "q6.weight": quantised(Kind.Q6_K, 2, 256),
    }
    for name, array in tensors.items():
        raw = {"q4.weight": Kind.Q4_0, "q6.weight": Kind.Q6_K}.get(name)
        writer.add_tensor(name, array, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def record(name: str | bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + sizes + struct.pack("<IQ", kind, offset)


def file_of(
    pairs: list[bytes],
    records: list[bytes],
    data_bytes: int = 0,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """Returns a complete file; tensor data starts at a multiple of 32 bytes.

    Args:
        counts: Numbers of tensors and of keys in the header; None for the actual numbers.
    """
    tensors, keys = counts or (len(records), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys)
    made = head + b"".join(pairs) + b"".join(records)
    return made + bytes(-len(made) % 32) + bytes(data_bytes)
