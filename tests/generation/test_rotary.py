"""Rotary embedding frequencies against transformers, from both config.json layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.errors import ModelError, UnsupportedError
from clrt.models.decoders.decoder import FULL, SLIDING, RopeConfig
from clrt.models.decoders.rotary import read_rotary
from clrt.models.huggingface.config_values import ConfigValues
from tests.generation.checkpoints import DATA
from tests.generation.oracle_decoders import ROTARIES, ROTARY_HEAD, ROTARY_PLACES

EXPECTED = np.load(DATA / "rotaries.npz")


def read(values: dict[str, Any], context: int = ROTARY_PLACES, kind: str = FULL) -> RopeConfig:
    file = Path("config.json")
    config = ConfigValues(file, {"max_position_embeddings": ROTARY_PLACES, **values})
    return read_rotary(config, ROTARY_HEAD, context, kind)


def old_form(rope: dict[str, Any]) -> dict[str, Any]:
    """`rope_parameters` as files had them before transformers 5."""
    outside = ("rope_theta", "partial_rotary_factor")
    inside = {k: v for k, v in rope.items() if k not in outside}
    kind = inside.pop("rope_type")
    values = {k: v for k, v in rope.items() if k in outside}
    if kind == "proportional":
        inside["partial_rotary_factor"] = values.pop("partial_rotary_factor")
    return {**values, "rope_scaling": None if kind == "default" else {"type": kind, **inside}}


@pytest.mark.parametrize("name", ROTARIES)
def test_rotary_frequencies_match_transformers(name: str) -> None:
    rope, context = ROTARIES[name]
    for values in ({"rope_parameters": rope}, old_form(rope)):
        found = read(values, context)
        frequencies = found.long if name == "longrope_long" else found.frequencies
        assert frequencies is not None
        np.testing.assert_allclose(frequencies, EXPECTED[name][:-1], 1e-6, 1e-12)
        assert frequencies.dtype == np.float32
        assert found.factor == pytest.approx(float(EXPECTED[name][-1]), rel=1e-6)


@pytest.mark.parametrize("context", [512, 513])
def test_longrope_has_short_and_long_frequencies(context: int) -> None:
    rope, _ = ROTARIES["longrope_short"]
    found = read({"rope_parameters": rope}, context)
    assert found.long is not None and found.long_beyond == 512
    assert (found.frequencies[1:] > found.long[1:]).all()


def test_longrope_original_length_outside_rope_parameters_wins() -> None:
    rope, context = ROTARIES["longrope_short"]
    inside = {**rope, "original_max_position_embeddings": 4}
    outside = {"original_max_position_embeddings": 512, "rope_parameters": inside}
    assert read(outside, context).factor == read({"rope_parameters": rope}, context).factor


@pytest.mark.parametrize("kind", [FULL, SLIDING])
def test_rotary_scaling_differs_by_layer_type(kind: str) -> None:
    """Gemma 3: only full-attention layers are scaled."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    full = {**scaling, "rope_theta": 1e6}
    new = {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": scaling}
    found = [read(values, kind=kind) for values in ({"rope_parameters": new}, old)]
    wanted = read({"rope_parameters": new[kind]})
    for rotary in found:
        np.testing.assert_array_equal(rotary.frequencies, wanted.frequencies)


def test_early_phi3_yarn_is_read_as_longrope() -> None:
    rope, context = ROTARIES["longrope_long"]
    found = read({"rope_scaling": {**rope, "rope_type": "yarn"}}, context)
    assert found.long is not None
    np.testing.assert_allclose(found.long, EXPECTED["longrope_long"][:-1], 1e-6)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rope_theta": "x"}, "'rope_theta' as a number"),
    ({"rope_theta": 0.0}, "'rope_theta' as a number of 1 to"),
    ({"rope_theta": float("nan")}, "'rope_theta' as a number"),
    ({"rope_theta": 10**400}, "'rope_theta' as a number"),
    ({"rope_scaling": [1]}, "'rope_scaling' as an object"),
    ({"rope_scaling": {"rope_type": 3}}, "'rope_scaling.rope_type' as a string"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "'rope_scaling.factor' as a number"),
    ({"rope_scaling": {"type": "dynamic", "factor": -1}}, "'rope_scaling.factor' as a number"),
    ({"rope_parameters": {FULL: 1}}, f"'rope_parameters.{FULL}' as an object"),
    ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "'rope_scaling.low_freq_factor'"),
    (
        {"rope_scaling": {"type": "llama3", "low_freq_factor": 2, "high_freq_factor": 2}},
        "'rope_scaling.high_freq_factor' as a number above",
    ),
    ({"rope_scaling": {"type": "longrope"}}, "'rope_scaling.short_factor' as a list of 32"),
    (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 31}},
        "'rope_scaling.short_factor' as a list of 32 finite numbers",
    ),
    (
        {"rope_scaling": {"type": "longrope", "short_factor": [0.0] * 32}},
        "'rope_scaling.short_factor' as a list of numbers above 0",
    ),
    ({"partial_rotary_factor": 0.01}, "'partial_rotary_factor' as a part of 64 that is even"),
    ({"partial_rotary_factor": 2.0}, "'partial_rotary_factor' as a number of 0 to 1"),
    ({"max_position_embeddings": 0}, "'max_position_embeddings' as a whole number"),
]


@pytest.mark.parametrize("values, message", BAD)
def test_invalid_rotary_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(values)


def test_unknown_rope_type_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"'rope_scaling.rope_type'.*known are default"):
        read({"rope_scaling": {"rope_type": "axial"}})
