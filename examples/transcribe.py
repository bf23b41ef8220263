"""Prints what is said in files, by Whisper or by a CTC model such as wav2vec2-base-960h.

    python examples/transcribe.py FOLDER FILE... [--device cpu]

FOLDER is a Hugging Face folder of Whisper, or has a CTC model as ONNX, preprocessor_config.json,
vocab.json and tokenizer_config.json.
"""

from __future__ import annotations

import argparse
import sys

import clrt


def main() -> None:
    parser = argparse.ArgumentParser(description="Speech to text through OpenCL.")
    parser.add_argument("folder", help="the Hugging Face folder of the model")
    parser.add_argument("files", nargs="+", help="WAV files, or other formats that soundfile reads")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    args = parser.parse_args()
    with clrt.Transcriber(args.folder, device=args.device) as transcribe:
        for file in args.files:
            print(f"{file}: {transcribe(file)}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except clrt.ClrtError as error:
        sys.exit(f"Error: {error}")
