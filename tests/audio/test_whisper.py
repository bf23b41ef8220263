"""Whisper against transformers: features, logits, and segments of long sounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clrt import TextGenerator
from clrt.audio import Features, TemperatureFallback, Transcriber, Transcript
from clrt.audio.feature_extractors import LogMel
from clrt.audio.whisper.segments import split_window
from clrt.audio.whisper.spectrogram import SpectrogramMaker
from clrt.audio.whisper.speech import WhisperSpeech
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.generation.engine import DecoderEngine, ScheduledSequence
from clrt.generation.options import Sampling
from clrt.generation.sampler import TokenSampler
from clrt.runtime.opencl.devices import DeviceInfo
from tests.audio.oracle_whispers import CASES, ENGLISH, FEATURES, LOGITS, SECONDS, SILENT
from tests.audio.whisper_folders import (
    DATA,
    ENGLISH_ONLY,
    VOCABULARY,
    frames,
    sound,
    text_tokens,
    write_whisper,
)
from tests.models.onnx_text import DEVICES

ONCE = TemperatureFallback(
    (0.0,), compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None
)
SKIPPING = TemperatureFallback(
    (0.0,),
    compression_ratio_threshold=None,
    logprob_threshold=SILENT[1],
    no_speech_threshold=SILENT[2],
)
# Cases that both devices transcribe, and those that are transcribed together.
ON_BOTH, TOGETHER = "translated", ("long", "other")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def transcriber(folder: Path) -> Iterator[Transcriber]:
    with Transcriber(folder, device="cpu") as made:
        yield made


def expected(name: str) -> Any:
    return json.loads((DATA / "whisper.json").read_text("utf-8"))[name]


def options_of(name: str) -> dict[str, Any]:
    return {**CASES[name][2], "fallback": SKIPPING if name == SILENT[0] else ONCE}


def segments_of(made: Any) -> list[dict[str, Any]]:
    assert isinstance(made, Transcript)
    return [{"start": s.start, "end": s.end, "tokens": [*s.tokens]} for s in made.segments]


def engine_of(transcriber: Transcriber) -> DecoderEngine:
    assert isinstance(transcriber._speech, WhisperSpeech)
    return transcriber._speech._engine


def case(name: str) -> Any:
    seconds, seed, _ = CASES[name]
    return sound(seconds, seed)


@pytest.mark.lengthy
@DEVICES
def test_whisper_on_device_matches_transformers(device: DeviceInfo, folder: Path) -> None:
    with (
        Transcriber(folder, device=device, strict=True) as transcriber,
        np.load(DATA / "whisper.npz") as oracle,
    ):
        made = transcriber.transcribe(case(ON_BOTH), **options_of(ON_BOTH))
        assert segments_of(made) == expected(ON_BOTH)
        engine, tokens = engine_of(transcriber), text_tokens()
        (states,) = engine.states([frames()])
        np.testing.assert_allclose(states.mean(0), oracle["states"], 1e-4, 1e-4)
        source = engine.read(frames())
        text = engine.open(tokens, anew=True, source=source)
        sampler = TokenSampler(Sampling(), VOCABULARY, seed=0)
        step = [ScheduledSequence(text, len(tokens), [sampler] * len(tokens))]
        logits = engine.step(step, ["logits"])["logits"]
        engine.close(text)
        engine.release(source)
        np.testing.assert_allclose(logits[:, LOGITS], oracle["logits"], 1e-4, 1e-4)


@pytest.mark.parametrize("name", [n for n in CASES if n not in (ON_BOTH, *TOGETHER, ENGLISH)])
def test_whisper_segments_match_transformers(name: str, transcriber: Transcriber) -> None:
    made, wanted = (
        segments_of(transcriber.transcribe(case(name), **options_of(name))),
        expected(name),
    )
    if name == "timeless":  # transformers counts the silence behind a short sound, too
        wanted[0]["end"] = CASES[name][0]
    assert made == wanted


def test_whisper_batch_matches_single_sounds(transcriber: Transcriber) -> None:
    sounds = [*map(case, TOGETHER), sound(1.0)]
    made = transcriber.transcribe(sounds, **options_of(TOGETHER[0]))
    assert isinstance(made, list)
    assert [segments_of(one) for one in made[:-1]] == [expected(name) for name in TOGETHER]
    assert [round(one.duration, 1) for one in made] == [71.6, 36.0, 1.0]
    assert segments_of(made[-1]) == segments_of(
        transcriber.transcribe(sound(1.0), **options_of(TOGETHER[0]))
    )


@pytest.mark.parametrize("mels", [80, 128])
def test_whisper_features_match_transformers(mels: int) -> None:
    preset = LogMel(feature_size=mels)
    maker = SpectrogramMaker(preset, device="cpu")
    with np.load(DATA / "whisper.npz") as oracle, Features(preset, device="cpu") as features:
        for k, seconds in enumerate(SECONDS):
            made = maker(sound(seconds))
            wanted = oracle[f"features/{mels}/{k}"]
            np.testing.assert_allclose(made.values[FEATURES], wanted, 0, 1e-4)
            assert made.frames == round(seconds * 100)
        short = features(sound(SECONDS[0]))["input_features"][0]
        np.testing.assert_allclose(short[FEATURES], oracle[f"features/{mels}/0"], 0, 1e-4)
    maker.close()


def test_whisper_english_only_model_refuses_other_languages(tmp_path: Path) -> None:
    with Transcriber(write_whisper(tmp_path, **ENGLISH_ONLY), device="cpu") as transcriber:
        made = transcriber.transcribe(case(ENGLISH), **options_of(ENGLISH))
        assert segments_of(made) == expected(ENGLISH)
        assert isinstance(made, Transcript)
        assert made.language == "en"
        with pytest.raises(
            InputError, match="The model supports only English, but language is 'de'"
        ):
            transcriber(sound(1.0), language="de")
        with pytest.raises(InputError, match="supports only English, and cannot translate"):
            transcriber(sound(1.0), task="translate")


def test_whisper_stream_yields_segments_incrementally(transcriber: Transcriber) -> None:
    options = options_of("other")
    whole = transcriber.transcribe(case("other"), **options)
    assert isinstance(whole, Transcript)
    with transcriber.stream(case("other"), **options) as stream:
        assert stream.language == ""
        first = next(stream)
        assert (stream.result.segments, stream.language) == ((first,), whole.language)
        assert [first, *stream] == [*whole.segments]
        assert stream.result == whole
    engine = engine_of(transcriber)
    before = engine.computed
    with transcriber.stream(sound(36.0, 12), **options) as stream:
        next(stream)
    assert stream.is_cancelled
    assert next(stream, None) is None
    assert 1500 < engine.computed - before < 1700, "there are 1500 places in a window"


def test_whisper_transcriber_is_thread_safe(transcriber: Transcriber) -> None:
    sounds = [sound(3.0, seed) for seed in range(4)]
    options = options_of("long")
    wanted = [transcriber(one, **options) for one in sounds]
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda one: transcriber(one, **options), sounds)] == wanted


def test_whisper_fallback_resamples_by_temperature_and_seed(transcriber: Transcriber) -> None:
    always = TemperatureFallback(
        (0.0, 0.8),
        compression_ratio_threshold=0.0,
        logprob_threshold=None,
        no_speech_threshold=None,
    )
    drawn = [transcriber(sound(5.0), fallback=always, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert transcriber(sound(5.0), fallback=ONCE) not in drawn
    # The last trial counts, however bad; and silence needs none.
    unsure = TemperatureFallback(
        (0.0, 0.8),
        compression_ratio_threshold=None,
        logprob_threshold=0.0,
        no_speech_threshold=None,
    )
    assert transcriber(sound(5.0), fallback=unsure, seed=1) == drawn[0]
    silent = TemperatureFallback((0.0, 0.8), logprob_threshold=0.0, no_speech_threshold=0.0)
    assert transcriber(sound(5.0), fallback=silent) == ""


def test_whisper_high_temperature_text_is_not_used_as_prompt(transcriber: Transcriber) -> None:
    def drawn(temperature: float, condition: bool) -> Any:
        often = TemperatureFallback(
            (temperature,),
            compression_ratio_threshold=None,
            logprob_threshold=None,
            no_speech_threshold=None,
        )
        return transcriber(sound(36.0, 14), fallback=often, condition=condition, seed=3)

    assert drawn(0.6, True) == drawn(0.6, False)
    assert drawn(0.4, True) != drawn(0.4, False)


@pytest.mark.parametrize(
    ("tokens", "parts", "done"),
    [
        # Times are tokens of 100 and more; the part that two of them begin is transcribed again.
        ([100, 1, 110, 110, 2], [(0, 10, [100, 1, 110, 110])], 20),
        ([100, 1, 110, 115, 2, 130], [(0, 10, [100, 1, 110]), (15, 30, [115, 2, 130])], 900),
        ([105, 1, 140], [(0, 40, [105, 1, 140])], 900),
        ([100, 1, 2], [(0, 450, [100, 1, 2])], 900),
        ([], [(0, 450, [])], 900),
    ],
)
def test_whisper_window_is_split_at_timestamps(
    tokens: list[int], parts: list[Any], done: int
) -> None:
    found, frames_done = split_window(tokens, 100, 900)
    assert [(part.start, part.end, [*part.tokens]) for part in found] == parts
    assert frames_done == done
    assert all([*part.tokens] == tokens[part.first :][: len(part.tokens)] for part in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "germam"}, "does not support the language 'germam'; did you mean 'german'"),
        ({"language": "klingon"}, "it knows en, de, fr, zh"),
        ({"language": 3}, "language is 3; expected a code such as 'en'"),
        ({"task": "sing"}, "task is 'sing'; expected one of transcribe, translate"),
        ({"prompt": 3}, "prompt must be a text, not int"),
        ({"lang": "en"}, "no option 'lang'; did you mean 'language'"),
    ],
)
def test_invalid_whisper_options_are_refused(
    options: dict[str, Any], message: str, transcriber: Transcriber
) -> None:
    with pytest.raises(InputError, match=message):
        transcriber(sound(0.1), **options)


def test_invalid_whisper_sounds_are_refused(transcriber: Transcriber, tmp_path: Path) -> None:
    (tmp_path / "empty.wav").write_bytes(b"")
    for given, message in (
        (tmp_path / "empty.wav", "is empty"),
        (np.empty(0, np.float32), "has no samples"),
        (tmp_path / "none.wav", "cannot be read"),
        ([], "list of sounds is empty"),
    ):
        with pytest.raises(InputError, match=message):
            transcriber(given)
    with pytest.raises(InputError, match="A stream transcribes one sound"):
        transcriber.stream([sound(1.0)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suppress_tokens": "all"}, "must give suppress_tokens as a list"),
        ({"lang_to_id": {"<|en|>": 1 << 20}}, "gives lang_to_id as 1048576"),
        ({"lang_to_id": [3]}, "must give lang_to_id as an object"),
        ({"max_initial_timestamp_index": -1}, "as a number of at least 0"),
        ({"task_to_id": {}}, "none for the task transcribe"),
    ],
)
def test_invalid_whisper_config_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        Transcriber(write_whisper(tmp_path, **changes), device="cpu")


def test_missing_model_or_wrong_class_is_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="'whisper-of-nobody' is neither a path nor in"):
        Transcriber("whisper-of-nobody")
    with pytest.raises(UnsupportedError, match=r"open it with clrt\.Transcriber"):
        TextGenerator(folder)


def test_whisper_preprocessor_of_other_mel_count_is_refused(tmp_path: Path) -> None:
    folder = write_whisper(tmp_path)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 128})
    )
    with pytest.raises(ModelError, match=r"asks for 3000 frames of 80 mel bands"):
        Transcriber(folder, device="cpu")
