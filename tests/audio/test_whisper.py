"""Whisper beside transformers: features, logits, and segments of long sounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt.audio import Fallback, Features, Transcriber
from clrt.audio.transcripts import Transcript
from clrt.audio.whisper.speech import WhisperSpeech
from clrt.generation.engine import StepPart
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.runtime.devices import DeviceInfo
from tests.audio.oracle_whispers import CASES, ENGLISH, FEATURES, LOGITS, SECONDS, SILENT
from tests.audio.whisper_folders import (
    DATA,
    ENGLISH_ONLY,
    VOCABULARY,
    sound,
    text_tokens,
    write_whisper,
)
from tests.models.onnx_text import DEVICES

ONCE = Fallback(temperatures=(0.0,), compression_ratio=None, logprob=None, no_speech=None)
_, LOGPROB, NO_SPEECH = SILENT
SKIPPING = Fallback((0.0,), compression_ratio=None, logprob=LOGPROB, no_speech=NO_SPEECH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def transcriber(folder: Path) -> Iterator[Transcriber]:
    with Transcriber(folder, device="cpu") as made:
        yield made


def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "whisper.json").read_text("utf-8"))
    return found


def asked(name: str) -> dict[str, Any]:
    return {**CASES[name][2], "fallback": SKIPPING if name == SILENT[0] else ONCE}


def heard(made: Transcript) -> list[dict[str, Any]]:
    return [{"start": s.start, "end": s.end, "tokens": [*s.tokens]} for s in made.segments]


@DEVICES
def test_it_hears_what_transformers_hears(device: DeviceInfo, folder: Path) -> None:
    names = ["conditioned", "translated"]
    with Transcriber(folder, device=device, strict=True) as transcriber:
        for name in names:
            seconds, seed, _ = CASES[name]
            made = transcriber.transcribe(sound(seconds, seed), **asked(name))
            assert heard(made) == expected()[name], name


@pytest.mark.parametrize("name", [n for n in CASES if n not in (ENGLISH, "timeless")])
def test_cases(name: str, transcriber: Transcriber) -> None:
    seconds, seed, _ = CASES[name]
    made = transcriber.transcribe(sound(seconds, seed), **asked(name))
    assert heard(made) == expected()[name]
