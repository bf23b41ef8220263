"""Checks the table by which SentencePiece normalises text."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from clrt.formats.safetensors import damaged


def check_charsmap(raw: bytes, file: Path, key: str) -> int:
    """Checks a table; the tokenizers library follows it without a check.

    It is a trie, as a double array of 32-bit units, and the texts that its leaves point to.

    Args:
        raw: The table.
        file: Where it is from, for messages.
        key: What the file calls it.

    Returns:
        The length in bytes of the longest text.

    Raises:
        ModelError: The trie or a leaf points out of its table.
    """
    size = struct.unpack("<I", raw[:4])[0] if len(raw) >= 4 else 0
    if size == 0 or size % 4 or size > len(raw) - 4:
        raise damaged(file, f"the table '{key}' is shorter than it says")
    units, texts = np.frombuffer(raw, "<u4", size // 4, 4), raw[4 + size :]
    offsets = (units >> 10) << ((units & 0x200) >> 6)
    inner = units < 2**31
    inner[0] = True  # the root is followed whatever it is
    children = (np.arange(len(units), dtype=np.uint32) ^ offsets)[inner]
    leaves = children[(units[inner] & 0x100) != 0]
    if (children | 0xFF).max(initial=0) >= len(units):
        raise damaged(file, f"the table '{key}' points out of itself")
    starts = units[leaves] & 0x7FFFFFFF
    characters = np.frombuffer(texts + b"\0", np.uint8)
    if starts.max(initial=0) >= len(characters) or (characters[starts] & 0xC0 == 0x80).any():
        raise damaged(file, f"the table '{key}' points out of its texts")
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(file, f"the texts of the table '{key}' are not UTF-8") from error
    return max(map(len, texts.split(b"\0")))
