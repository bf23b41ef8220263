"""Small nets that Python packages ship, with inputs of the shapes that the packages feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .runtimes import is_installed, package_folder
from .small_net import Feed


@dataclass(frozen=True)
class ShippedNet:
    """A net of a package.

    Attributes:
        file: The ONNX file, relative to the package's folder.
        feeds: Inputs by name.
        is_quantized: Activations are rounded to integers, so results differ by whole levels.
    """

    package: str
    file: str
    feeds: Mapping[str, Feed]
    is_quantized: bool = False

    @property
    def path(self) -> Path | None:
        """The ONNX file; None if the package or the file is missing."""
        if not is_installed(self.package):
            return None
        path = package_folder(self.package) / self.file
        return path if path.is_file() else None


_RATE = Feed((), 16001, low=16000)
_SILERO = {"input": Feed((1, 576)), "state": Feed((2, 1, 128)), "sr": _RATE}
_SILERO_4 = {
    "input": Feed((1, 512)),
    "sr": _RATE,
    "h": Feed((2, 1, 64)),
    "c": Feed((2, 1, 64)),
}


def _wake(file: str, name: str, frames: int = 16) -> ShippedNet:
    feeds = {name: Feed((1, frames, 96))}
    return ShippedNet("openwakeword", f"resources/models/{file}.onnx", feeds)


SHIPPED: dict[str, ShippedNet] = {
    "Silero VAD 6": ShippedNet("silero_vad", "data/silero_vad.onnx", _SILERO),
    "Silero VAD 6, 16 kHz": ShippedNet("silero_vad", "data/silero_vad_16k_op15.onnx", _SILERO),
    "Silero VAD 6, no branches": ShippedNet(
        "silero_vad", "data/silero_vad_op18_ifless.onnx", _SILERO
    ),
    "Silero VAD 4": ShippedNet("openwakeword", "resources/models/silero_vad.onnx", _SILERO_4),
    "wake words, spectrogram": ShippedNet(
        "openwakeword", "resources/models/melspectrogram.onnx", {"input": Feed((1, 1760))}
    ),
    "wake words, embedding": ShippedNet(
        "openwakeword",
        "resources/models/embedding_model.onnx",
        {"input_1": Feed((1, 76, 32, 1))},
    ),
    "wake word Alexa": _wake("alexa_v0.1", "onnx::Flatten_0"),
    "wake word Jarvis": _wake("hey_jarvis_v0.1", "x.1"),
    "wake word Mycroft": _wake("hey_mycroft_v0.1", "input_1"),
    "wake words, timer": _wake("timer_v0.1", "onnx::Flatten_0", 34),
    "Magika": ShippedNet(
        "magika",
        "models/standard_v3_3/model.onnx",
        {"bytes": Feed((1, 2048), 256, dtype="int32")},
    ),
    "ddddocr captcha": ShippedNet(
        "ddddocr", "common_old.onnx", {"input1": Feed((1, 1, 64, 160))}, is_quantized=True
    ),
    "RapidOCR direction": ShippedNet(
        "rapidocr_onnxruntime",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        {"x": Feed((1, 3, 48, 192))},
    ),
}
