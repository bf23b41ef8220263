"""Checks SentencePiece's text normalization table (precompiled_charsmap)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from clrt.formats.safetensors import damaged


def check_charsmap(raw: bytes, file: Path, key: str) -> int:
    """Checks a normalization table, which the tokenizers library follows without bounds checks.

    The table is a double-array trie of 32-bit units, followed by the replacement texts of its
    leaves.

    Args:
        raw: The table.
        file: Source of the table, for messages.
        key: Name of the table in the file, for messages.

    Returns:
        Length in bytes of the longest replacement text.

    Raises:
        ModelError: The table is truncated, a unit of the trie or a leaf points out of it, or
            replacement texts are not UTF-8.
    """
    size = struct.unpack("<I", raw[:4])[0] if len(raw) >= 4 else 0
    if size == 0 or size % 4 or size > len(raw) - 4:
        raise damaged(file, f"the table '{key}' is shorter than it says")
    units, texts = np.frombuffer(raw, "<u4", size // 4, 4), raw[4 + size :]
    offsets = (units >> 10) << ((units & 0x200) >> 6)
    inner = units < 2**31
    inner[0] = True  # lookups follow the root whatever its flags
    children = (np.arange(len(units), dtype=np.uint32) ^ offsets)[inner]
    leaves = children[(units[inner] & 0x100) != 0]
    if (children | 0xFF).max(initial=0) >= len(units):
        raise damaged(file, f"the table '{key}' points outside itself")
    starts = units[leaves] & 0x7FFFFFFF
    characters = np.frombuffer(texts + b"\0", np.uint8)
    if starts.max(initial=0) >= len(characters) or (characters[starts] & 0xC0 == 0x80).any():
        raise damaged(file, f"a leaf of the table '{key}' points outside its texts")
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(file, f"the texts of the table '{key}' are not UTF-8") from error
    return max(map(len, texts.split(b"\0")))
