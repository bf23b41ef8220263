"""Compiled Whisper files, transcript files, and `clrt transcribe`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from clrt.audio import TemperatureFallback, Transcriber, Transcript, TranscriptSegment
from clrt.audio.whisper.model import read_whisper_model, write_whisper_model
from clrt.cli.convert import app as convert
from clrt.cli.main import app
from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.models.compiled_file import read_extras
from tests.audio.sounds import pcm16, wav_bytes
from tests.audio.whisper_folders import sound, write_whisper

SOUND = sound(33.0, 6)
OPTIONS = {"language": "de", "fallback": TemperatureFallback((0.0,))}
ARGUMENTS = ["--language", "de", "--temperature", "0"]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_whisper(tmp_path_factory.mktemp("whisper") / "tiny")
    file = folder.with_name("tiny.clrt")
    made = CliRunner().invoke(convert, [str(folder), "-o", str(file)])
    assert made.output.startswith(f"{file}: whisper, 2 layers, ")
    return file


@pytest.fixture(scope="module")
def transcriber(compiled: Path) -> Iterator[Transcriber]:
    with Transcriber(compiled, device="cpu") as made:
        yield made


def transcript(transcriber: Transcriber, given: Any) -> Transcript:
    made = transcriber.transcribe(given, **OPTIONS)
    assert isinstance(made, Transcript)
    return made


def test_compiled_whisper_matches_its_folder(compiled: Path, transcriber: Transcriber) -> None:
    with Transcriber(compiled.with_suffix(""), device="cpu") as of_folder:
        wanted = transcript(of_folder, SOUND)
        assert transcriber.features.preset == of_folder.features.preset
    assert transcript(transcriber, SOUND) == wanted
    assert len(wanted.segments) > 1


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("decoder", {"layers": 2}, "model sizes are"),
        ("encoder", None, "model sizes are"),
        ("features", [], "features are not an object"),
        ("features", {"feature_size": 128}, "mel bands"),
        ("features", {"n_fft": 1 << 30}, "n_fft = 1073741824"),
        ("tokens", 3, "tokens are not an object"),
        ("tokenizer", "{}", "its tokenizer cannot be read"),
        ("page", 7, "converted with another page size"),
    ],
)
def test_compiled_whisper_with_damaged_extras_is_refused(
    part: str, value: Any, message: str, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras = dict(read_extras(compiled)["speech"])
    damaged = {**extras, part: value}
    monkeypatch.setattr("clrt.audio.whisper.model.extras_of", lambda _: {"speech": damaged})
    with pytest.raises(ModelError, match=message):
        read_whisper_model(compiled)


def test_whisper_conversion_refuses_lora_and_missing_file(tmp_path: Path, compiled: Path) -> None:
    model = read_whisper_model(compiled.with_suffix(""))
    write_whisper_model(model, tmp_path / "a.clrt", "test")
    assert read_extras(tmp_path / "a.clrt").keys() == {"speech"}
    with pytest.raises(ModelError, match="No file or folder"):
        Transcriber(str(tmp_path / "none.clrt"), device="cpu")
    refused = CliRunner().invoke(convert, [str(compiled.with_suffix("")), "--lora", "style"])
    assert "Conversion of Whisper does not support --lora" in refused.stderr


def test_whisper_stream_cancel_stops_within_window(
    transcriber: Transcriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread, or Ctrl-C, may cancel the stream in the middle of a window."""
    speech: Any = transcriber._speech
    run, steps = speech._engine.step, []
    with transcriber.stream(SOUND, **OPTIONS) as stream:

        def step(*given: Any) -> Any:
            steps.append(given)
            if len(steps) == 3:
                stream.cancel()
            return run(*given)

        monkeypatch.setattr(speech._engine, "step", step)
        assert list(stream) == []
        assert len(steps) == 3
        assert stream.result.text == ""


def test_transcript_exports_srt_vtt_and_json() -> None:
    segments = [
        TranscriptSegment(0.0, 3.98, " One --> <two>\n\n&  three"),
        TranscriptSegment(3723.456, 36000.0, " four"),
    ]
    made = Transcript.of(segments, "en", 36000.0)
    assert made.text == str(made) == "One --> <two>\n\n&  three four"
    assert made.to_srt() == (
        "1\n00:00:00,000 --> 00:00:03,980\nOne -> <two> & three\n\n"
        "2\n01:02:03,456 --> 10:00:00,000\nfour\n\n"
    )
    assert made.to_vtt() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:03.980\nOne --&gt; &lt;two&gt; &amp; three\n\n"
        "01:02:03.456 --> 10:00:00.000\nfour\n\n"
    )
    assert json.loads(json.dumps(made.to_dict()))["segments"][1]["end"] == 36000.0


def test_transcribe_command_writes_whisper_transcripts(
    compiled: Path, transcriber: Transcriber, tmp_path: Path
) -> None:
    files = [tmp_path / "a.wav", tmp_path / "b.wav"]
    for file, samples in zip(files, (sound(5.0), sound(4.0)), strict=True):
        file.write_bytes(wav_bytes(pcm16(np.clip(samples, -1, 1))))
    one, other = (transcript(transcriber, file) for file in files)

    def ran(*arguments: object) -> Any:
        fixed = ["transcribe", "-m", str(compiled), "--device", "cpu", *ARGUMENTS]
        return CliRunner().invoke(app, [*fixed, *map(str, arguments)])

    assert ran(files[0]).stdout == f"{one.text}\n"
    both = ran(*files, "-o", tmp_path, "-f", "srt")
    assert (both.exit_code, both.stdout) == (0, "")
    texts = [file.with_suffix(".srt").read_text("utf-8") for file in files]
    assert texts == [one.to_srt(), other.to_srt()]
    assert ran(files[1], "-f", "vtt").stdout == other.to_vtt()
    found = json.loads(ran(files[1], "--json").stdout)
    assert found == {"file": str(files[1]), **json.loads(json.dumps(other.to_dict()))}
    assert "need --output, a folder" in ran(*files, "-f", "srt").stderr
    assert "'nowhere' is not a folder" in ran(files[0], "-o", "nowhere").stderr
    assert "did you mean 'french'" in ran(files[0], "-l", "frensh").stderr
    (tmp_path / "bad.wav").write_bytes(b"no sound at all")
    assert "is no" in ran(tmp_path / "bad.wav").stderr


def test_transcribe_command_refuses_colliding_output_files(compiled: Path, tmp_path: Path) -> None:
    run = ["transcribe", "-m", str(compiled), "-o", str(tmp_path), "x/a.wav", "y/a.wav"]
    result = CliRunner().invoke(app, run)
    assert isinstance(result.exception, SystemExit)
    assert "belongs to --output of x/a.wav" in result.stderr


def test_invalid_fallback_options_are_refused() -> None:
    for made, message in (
        ({"temperatures": ()}, "temperatures is empty"),
        ({"temperatures": (-1.0,)}, "A temperature is -1.0; expected 0 to 10"),
        ({"logprob_threshold": 1.0}, "logprob_threshold is 1.0"),
        ({"no_speech_threshold": True}, "no_speech_threshold is True; expected 0 to 1"),
        ({"compression_ratio_threshold": float("nan")}, "compression_ratio_threshold is nan"),
    ):
        with pytest.raises(InputError, match=message):
            TemperatureFallback(**made)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "value"), [("no_repeat_ngram_size", 2), ("num_beams", 3), ("guidance_scale", 2.0)]
)
def test_unsupported_whisper_generation_keys_are_refused(
    tmp_path: Path, key: str, value: float
) -> None:
    folder = write_whisper(tmp_path, **{key: value})
    with pytest.raises(UnsupportedError, match=f"asks for {key} {value}"):
        read_whisper_model(folder)
