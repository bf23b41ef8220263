"""CTC speech-to-text, with a model that maps each tone to a letter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from clrt.audio import CtcVocabulary, Transcriber
from clrt.cli.main import app
from clrt.errors import InputError, ModelError
from clrt.runtime.opencl.devices import DeviceInfo
from tests.audio.sounds import RATE, pcm16, signal, wav_bytes
from tests.models.onnx_text import DEVICES

LETTERS = "|ABCDE"  # classes 1 to 6; 0 is the blank
HOP = 320


def hertz(letter: str) -> float:
    return 400.0 + 250 * LETTERS.index(letter)


def spoken(text: str, rate: int = RATE) -> Any:
    """A tone for each letter, and silence between them."""
    parts = [np.zeros(rate // 25)]
    for letter in text.replace(" ", "|"):
        t = np.arange(rate // 10) / rate
        parts += [0.3 * np.sin(2 * np.pi * hertz(letter) * t), np.zeros(rate // 16)]
    return np.concatenate(parts).astype(np.float32)


def write_model(folder: Path, with_mask: bool, outputs: int = len(LETTERS) + 1) -> None:
    """Writes a CTC model as model.onnx in `folder`.

    The logit of a letter is the energy of the sound at the letter's pitch, per frame of 20 ms. The
    logit of the blank, class 0, is a constant.

    Args:
        folder: The folder.
        with_mask: Whether the model has the input attention_mask.
        outputs: Number of classes; those behind the letters have the logit 0.
    """
    angle = 2 * np.pi * np.array([hertz(x) for x in LETTERS])[:, None] * np.arange(HOP) / RATE
    waves = np.stack([np.cos(angle), np.sin(angle)]).reshape(-1, 1, HOP)  # cosines, then sines
    sums = np.zeros((outputs, 2 * len(LETTERS)))
    for k in range(len(LETTERS)):
        sums[k + 1, [k, len(LETTERS) + k]] = 1
    bias = np.zeros(outputs)
    bias[0] = 2000.0
    constants = {"waves": waves, "sums": sums[:, :, None], "bias": bias}
    nodes = [
        helper.make_node("Unsqueeze", ["input_values", "axes"], ["x"]),
        helper.make_node("Conv", ["x", "waves"], ["parts"], strides=[HOP]),
        helper.make_node("Mul", ["parts", "parts"], ["energies"]),
        helper.make_node("Conv", ["energies", "sums", "bias"], ["scores"]),
        helper.make_node("Transpose", ["scores"], ["logits"], perm=[0, 2, 1]),
    ]
    inputs = [helper.make_tensor_value_info("input_values", TensorProto.FLOAT, ["b", "n"])]
    if with_mask:
        inputs.append(
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["b", "n"])
        )
        nodes[0].input[0] = "kept"
        nodes.insert(0, helper.make_node("Cast", ["attention_mask"], ["weights"], to=1))
        nodes.insert(1, helper.make_node("Mul", ["input_values", "weights"], ["kept"]))
    made = helper.make_graph(
        nodes,
        "tones",
        inputs,
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "t", outputs])],
        [numpy_helper.from_array(np.array([1]), "axes")]
        + [numpy_helper.from_array(a.astype(np.float32), n) for n, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), folder / "model.onnx")


def write(folder: Path, name: str, values: object) -> None:
    (folder / name).write_text(json.dumps(values), "utf-8")


def folder_of(path: Path, with_mask: bool = False, **tokenizer: Any) -> Path:
    write_model(path, with_mask)
    kind = {"feature_extractor_type": "Wav2Vec2FeatureExtractor"}
    write(path, "preprocessor_config.json", {**kind, "return_attention_mask": with_mask})
    write(path, "vocab.json", {t: k for k, t in enumerate(["<pad>", *LETTERS])})
    write(path, "tokenizer_config.json", {"pad_token": {"content": "<pad>"}, **tokenizer})
    return path


@DEVICES
@pytest.mark.parametrize("with_mask", [False, True])
def test_ctc_transcriber_decodes_tones_of_arrays_and_wav(
    device: DeviceInfo, with_mask: bool, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, with_mask)
    texts = ["ABBA CAB", "DEAD BEE", "A"]
    sounds = [spoken(t) for t in texts]
    with Transcriber(folder, device=device, strict=True) as transcriber:
        assert transcriber(sounds) == texts
        assert transcriber(sounds[0]) == texts[0]
        assert transcriber(list(map(float, sounds[2]))) == "A"
        both = np.stack([sounds[1], sounds[1]])
        assert transcriber(wav_bytes(pcm16(both.T.reshape(-1)), channels=2)) == texts[1]
        assert transcriber(spoken("BAD", 44_100), 44_100) == "BAD"
        assert transcriber(signal("silence", 9000)) == ""


def test_transcribe_command_prints_ctc_texts_and_errors(tmp_path: Path) -> None:
    folder, files = folder_of(tmp_path), []
    for name, text in (("a", "BAD CAB"), ("b", "DEED")):
        files.append(str(tmp_path / f"{name}.wav"))
        Path(files[-1]).write_bytes(wav_bytes(pcm16(spoken(text))))
    run = ["transcribe", "--model", str(folder), "--device", "cpu"]
    one = CliRunner().invoke(app, [*run, files[0]])
    assert (one.exit_code, one.stdout) == (0, "BAD CAB\n")
    both = CliRunner().invoke(app, [*run, *files])
    assert both.stdout.splitlines() == [f"{files[0]}: BAD CAB", f"{files[1]}: DEED"]
    lines = CliRunner().invoke(app, [*run, "--json", *files]).stdout.splitlines()
    assert [json.loads(x)["text"] for x in lines] == ["BAD CAB", "DEED"]
    srt = CliRunner().invoke(app, [*run, files[0], "-o", str(tmp_path / "talk.SRT")])
    assert srt.exit_code == 0, srt.output
    assert "00:00:00,000 -->" in (tmp_path / "talk.SRT").read_text("utf-8")
    missing = CliRunner().invoke(app, [*run, "no.wav"])
    assert missing.exit_code == 1
    assert "'no.wav' cannot be read" in missing.stderr
    (tmp_path / "bad.wav").write_bytes(b"no sound at all")
    mixed = [str(tmp_path / "bad.wav"), files[0], "no.wav", files[1]]
    rest = CliRunner().invoke(app, [*run, *mixed])
    assert (rest.exit_code, rest.stdout) == (1, both.stdout)
    assert rest.stderr.count("Error: ") == 2 and "bad.wav" in rest.stderr
    stopped = CliRunner().invoke(app, [*run, *mixed, "--stop-at-error"])
    assert (stopped.exit_code, stopped.stdout) == (1, "") and "no.wav" not in stopped.stderr


def test_ctc_config_sets_lower_case_and_word_delimiter(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, do_lower_case=True, word_delimiter_token="E")
    with Transcriber(folder, device="cpu") as transcriber:
        assert transcriber(spoken("ABECED")) == "ab c d"


def test_ctc_decode_merges_repeats_and_drops_blanks() -> None:
    vocabulary = CtcVocabulary(["_", "|", "A", "B"], blank=0)
    assert vocabulary.decode([2, 2, 0, 2, 3, 3, 1, 1, 0, 1, 3, 0]) == "AAB  B"
    assert vocabulary.decode([1, 0, 0, 2, 1]) == "A"
    assert vocabulary.decode([]) == ""
    with pytest.raises(ModelError, match=r"chose class 4, and vocab\.json has 4 tokens"):
        vocabulary.decode([1, 4])


def test_sound_shorter_than_ctc_frame_is_empty_or_refused(tmp_path: Path) -> None:
    with Transcriber(folder_of(tmp_path), device="cpu") as transcriber:
        assert transcriber(spoken("A")[640:960]) == "A"
        assert transcriber(signal("noise", HOP - 1)) == ""
    # As in wav2vec2: a second convolution, here of the result's moments.
    model = onnx.load(tmp_path / "model.onnx")
    (sums,) = (t for t in model.graph.initializer if t.name == "sums")
    sums.CopyFrom(numpy_helper.from_array(np.zeros((7, 12, 3), np.float32), "sums"))
    onnx.save(model, tmp_path / "model.onnx")
    with Transcriber(tmp_path, device="cpu") as transcriber:
        assert transcriber(signal("noise", 3 * HOP)) == ""
        with pytest.raises(InputError, match="A sound of 1 sample is unsuitable for the model"):
            transcriber(signal("tone", 1))


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"A": 0, "B": 0}, "distinct ids from 0"),
        ({"A": 0, "<pad>": 2}, "distinct ids from 0"),
        ({"A": 0, "<pad>": "1"}, "distinct ids from 0"),
        ({"A": 0, "B": 1}, "lacks the padding token '<pad>'"),
        ([], "must hold a JSON object"),
    ],
)
def test_invalid_ctc_vocabulary_is_refused(
    vocabulary: object, message: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path)
    write(folder, "vocab.json", vocabulary)
    with pytest.raises(ModelError, match=message):
        Transcriber(folder, device="cpu")
