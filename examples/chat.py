"""A chat with a language model in the terminal.

    python examples/chat.py FOLDER [--device cpu] [--system TEXT]

FOLDER has config.json, safetensors, tokenizer.json and a chat template, such as
SmolLM2-135M-Instruct. Ctrl-C ends an answer, an empty line the chat.
"""

from __future__ import annotations

import argparse
import sys

import clrt


def main() -> None:
    parser = argparse.ArgumentParser(description="A chat through OpenCL.")
    parser.add_argument("folder", help="the Hugging Face folder of the model")
    parser.add_argument("--system", help="what the model is told first")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    args = parser.parse_args()
    with clrt.TextGenerator(args.folder, device=args.device) as model:
        chat = model.chat(args.system, max_new_tokens=1024)
        while text := input("> "):
            with chat.stream(text) as answer:
                try:
                    for piece in answer:
                        print(piece, end="", flush=True)
                except KeyboardInterrupt:
                    answer.close()
            print(f"\n[{answer.result.timings}]")


if __name__ == "__main__":
    try:
        main()
    except (EOFError, KeyboardInterrupt):
        sys.exit()
    except clrt.ClrtError as error:
        sys.exit(f"Error: {error}")
