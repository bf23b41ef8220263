"""Prints where there is speech in a file.

    python examples/voice_activity.py MODEL.onnx FILE [--device cpu]

MODEL.onnx is Silero VAD 5 or later; the package silero-vad has it in its folder `data`.
"""

from __future__ import annotations

import argparse
import sys

import clrt
from clrt.audio import SpeechThresholds, VoiceActivity


def main() -> None:
    parser = argparse.ArgumentParser(description="Voice activity through OpenCL.")
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("file", help="a WAV file, or another format that soundfile reads")
    parser.add_argument("--threshold", type=float, default=0.5, help="of the probability of speech")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    args = parser.parse_args()
    thresholds = SpeechThresholds(speech=args.threshold)
    with VoiceActivity(args.model, thresholds=thresholds, device=args.device) as voice:
        for start, end in voice.segments(args.file):
            print(f"{start:9.2f} s to {end:9.2f} s", flush=True)


if __name__ == "__main__":
    try:
        main()
    except clrt.ClrtError as error:
        sys.exit(f"Error: {error}")
