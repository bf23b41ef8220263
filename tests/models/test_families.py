"""Small models of every family, from both torch exporters, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import clrt
from tests.harness import SWEEP
from tests.models.fixtures import family_names, load_family
from tests.models.oracle import check, session_of, text_feeds

SHAPES = ((1, 1), (1, 16), (3, 37), (2, 64))


@SWEEP
@pytest.mark.parametrize("name", family_names())
def test_family_matches_onnxruntime(name: str, device: clrt.DeviceInfo) -> None:
    proto = load_family(name)
    session = session_of(proto)
    with clrt.load(proto, device=device.index, strict=True) as model:
        names = [s.name for s in model.inputs]
        if names == ["pixel_values"]:
            for batch in (1, 3):
                pixels = np.random.default_rng(batch).standard_normal((batch, 3, 32, 32))
                check(model, session, {"pixel_values": pixels.astype(np.float32)})
            return
        for batch, sequence in SHAPES:
            for padded in (False, True) if "attention_mask" in names else (False,):
                check(model, session, text_feeds(names, batch, sequence, padded, 200))
