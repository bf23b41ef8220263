"""GGUF block types compared with llama.cpp's Python package, on random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from clrt.formats.gguf.block_type import BlockType, DecodedRows
from clrt.formats.gguf.block_types import BLOCK_TYPES

ORACLE = gguf.quants._type_traits.keys()  # what the package dequantises, but for F32 and F16
QUANTISED = [t for t in BLOCK_TYPES.values() if t.coding is not None]
PLAIN = [t for t in BLOCK_TYPES.values() if t.dtype is not None]
# Q8_1 and Q8_K are what activations become; no file has them.
LACKING = ["Q8_1", "Q8_K", "Q1_0"]


def _raw(kind: BlockType, rows: int = 37, blocks: int = 5) -> np.ndarray:
    """Returns random bytes: [rows, bytes per row]."""
    rng = np.random.default_rng(kind.code)
    return rng.integers(0, 256, (rows, blocks * kind.nbytes), np.uint8)


def _evaluated(parts: DecodedRows) -> np.ndarray:
    """Returns the values that decoded levels, scales and minima represent."""
    centred = parts.levels.astype(np.float32) - np.float32(parts.zero)
    with np.errstate(all="ignore"):
        values = centred * parts.scales.repeat(parts.block, axis=1)
        if parts.minima is not None:
            values -= parts.minima.repeat(parts.block, axis=1)
    return values


def _assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compares bit patterns, signs of zeros included; NaN matches any NaN."""
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    number = ~np.isnan(theirs)
    assert np.array_equal(~np.isnan(ours), number)
    assert np.array_equal(ours[number].view(np.uint32), theirs[number].view(np.uint32))
    assert number.mean() > 0.9


def test_block_types_match_gguf_package() -> None:
    for code, (elements, nbytes) in gguf.GGML_QUANT_SIZES.items():
        ours = BLOCK_TYPES[code]
        assert ours.name == code.name
        assert ours.elements == elements
        assert ours.nbytes == nbytes or ours.name == "Q8_1"  # there as in older versions
    assert len(gguf.GGML_QUANT_SIZES) == len(BLOCK_TYPES)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda t: t.name)
def test_dequantisation_matches_gguf_package(kind: BlockType) -> None:
    code = gguf.GGMLQuantizationType(kind.code)
    if code not in ORACLE:
        assert kind.name in LACKING
        return
    raw = _raw(kind)
    with np.errstate(all="ignore"):
        _assert_same_bits(kind.dequantise(raw), gguf.quants.dequantize(raw, code))


@pytest.mark.parametrize("name", LACKING)
def test_q8_1_q8_k_and_q1_0_dequantisation_matches_numpy(name: str) -> None:
    kind = next(t for t in QUANTISED if t.name == name)
    raw = _raw(kind)
    blocks = raw.reshape(-1, kind.nbytes)
    if name == "Q1_0":
        scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
        expected = np.where(bits == 1, scale, -scale)
    else:
        width, start = (2, 4) if name == "Q8_1" else (4, 4)
        scale = blocks[:, :width].copy().view(f"<f{width}").astype(np.float32)
        signed = blocks[:, start : start + kind.elements].view(np.int8)
        with np.errstate(all="ignore"):
            expected = scale * signed.astype(np.float32)
    _assert_same_bits(kind.dequantise(raw), expected.reshape(len(raw), -1))


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda t: t.name)
def test_levels_and_scales_match_dequantised_values(kind: BlockType) -> None:
    raw = _raw(kind)
    parts = kind.levels(raw)
    rows, cols = parts.levels.shape
    assert (rows, cols) == (len(raw), 5 * kind.elements)
    assert parts.scales.shape == (rows, cols // parts.block)
    assert parts.minima is None or parts.minima.shape == parts.scales.shape
    assert parts.levels.dtype == np.uint8
    assert parts.scales.dtype == np.float32
    assert parts.bits in (2, 3, 4, 5, 6, 8)
    assert parts.block in (16, 32)
    assert parts.levels.max() < 1 << parts.bits
    _assert_same_bits(_evaluated(parts), kind.dequantise(raw))


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda t: t.name)
def test_gguf_scales_are_multiples_of_float16_factors(kind: BlockType) -> None:
    """Device packing and 8-bit scales rely on these factors."""
    coding = kind.coding
    assert coding is not None
    count = 1 + kind.has_minima
    assert len(coding.factors) in (
        (count,) if coding.scale_bytes == 1 or coding.reader else (0, count)
    )
    blocks = _raw(kind).reshape(-1, kind.nbytes)
    for at, numbers in zip(coding.factors, ("scales", "minima"), strict=False):
        blocks[:, at : at + 2] = 0
        assert not getattr(kind.levels(blocks), numbers).any()


@pytest.mark.parametrize("kind", PLAIN, ids=lambda t: t.name)
def test_plain_dtypes_widen_to_float32(kind: BlockType) -> None:
    assert kind.dtype is not None
    numbers = np.arange(-12, 12).astype(kind.dtype).reshape(2, 3, 4)
    made = kind.dequantise(numbers.view(np.uint8))
    assert made.dtype == np.float32
    assert np.array_equal(made, numbers.astype(np.float32))
    with pytest.raises(ValueError, match="plain numbers"):
        kind.levels(numbers.view(np.uint8)[0])


def test_float32_is_not_copied() -> None:
    raw = np.zeros((2, 64), np.uint8)
    assert np.shares_memory(BLOCK_TYPES[0].dequantise(raw), raw)


@pytest.mark.parametrize("name", ["Q4_0", "Q6_K", "IQ2_XXS"])
def test_dequantisation_accepts_any_byte_layout(name: str) -> None:
    """Unaligned, read-only, three axes, several chunks, no rows."""
    kind = next(t for t in QUANTISED if t.name == name)
    whole = np.random.default_rng(0).integers(0, 256, 1 + 6 * 300 * kind.nbytes, np.uint8)
    whole.flags.writeable = False
    raw = whole[1:].reshape(2, 3, 300 * kind.nbytes)
    made = kind.dequantise(raw)
    assert made.shape == (2, 3, 300 * kind.elements)
    with np.errstate(all="ignore"):
        rows = kind.dequantise(np.array(raw[1, 2:]))
    assert np.array_equal(made[1, 2:], rows, equal_nan=True)
    assert kind.dequantise(raw[:0]).shape == (0, 3, 300 * kind.elements)
    parts = kind.levels(np.tile(whole[1:].reshape(6, -1), (4, 1)))  # more than one chunk
    assert np.array_equal(_evaluated(parts)[-1], made[1, 2], equal_nan=True)
    assert np.array_equal(_evaluated(parts)[5], made[1, 2], equal_nan=True)
    assert kind.levels(raw[0, :0]).levels.shape == (0, 300 * kind.elements)
