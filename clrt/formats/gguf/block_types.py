"""All tensor types of GGUF, by their code in files and by name.

Quantized types are in the modules of `_FAMILIES`, each with a decoder for the host, and one for the
device if devices pack its weights. A new type only needs an entry in such a module.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes

from clrt.formats.gguf import codebook_types, k_types, simple_types, small_float_types
from clrt.formats.gguf.block_type import BlockType

_FAMILIES = (simple_types, k_types, codebook_types, small_float_types)
_PLAIN = (
    BlockType.plain("F32", 0, "<f4"),
    BlockType.plain("F16", 1, "<f2"),
    BlockType.plain("I8", 24, "i1"),
    BlockType.plain("I16", 25, "<i2"),
    BlockType.plain("I32", 26, "<i4"),
    BlockType.plain("I64", 27, "<i8"),
    BlockType.plain("F64", 28, "<f8"),
    BlockType.plain("BF16", 30, ml_dtypes.bfloat16),
)
_QUANTIZED = (type_ for family in _FAMILIES for type_ in family.TYPES)
_TYPES = sorted((*_PLAIN, *_QUANTIZED), key=lambda type_: type_.code)

BLOCK_TYPES: Mapping[int, BlockType] = {t.code: t for t in _TYPES}
BLOCK_TYPES_BY_NAME: Mapping[str, BlockType] = {t.name: t for t in _TYPES}
