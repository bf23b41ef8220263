"""Trains the toy model unless it exists, and chats with it."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from pathlib import Path

# Products of small matrices: more threads than cores with other work cost more than they give.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

import clrt
from clrt.util import env_vars
from clrt.util.files import make_cache_folder

from .builder import make_tokenizer, train, write_folder
from .network import Geometry
from .texts import facts

VOCABULARY, STEPS, RATE = 512, 220, 0.005
_STAMP = "made_from.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Chat with a toy that is trained here.")
    parser.add_argument("--device", help="auto, cpu, gpu, part of a device name, or an index")
    parser.add_argument("--again", action="store_true", help="train it again")
    parser.add_argument("--folder", type=Path, help="where it lies; by default in clrt's cache")
    args = parser.parse_args()
    folder = args.folder or env_vars.cache_dir() / "chat-demo"
    console = Console(highlight=False, stderr=True)
    if args.again or not is_there(folder):
        build(folder, console)
    console.print(
        "This is a toy. It knows by heart what some modules of Python say of themselves, and the "
        "Zen of Python. Ask for example: What is csv?",
        style="yellow",
    )
    from clrt.cli import app

    app(["chat", str(folder), *(["--device", args.device] if args.device else [])])


def is_there(folder: Path) -> bool:
    """Returns whether the folder holds the toy model of this version of the example and Python."""
    stamp = folder / _STAMP
    return stamp.is_file() and stamp.read_text("utf-8") == _stamp()


def build(folder: Path, console: Console) -> None:
    """Trains the toy model and writes its folder."""
    taught = facts()
    tokenizer = make_tokenizer(taught, VOCABULARY)
    sizes = Geometry(tokenizer.get_vocab_size())
    started = time.perf_counter()
    columns = (TextColumn("Training, loss {task.fields[loss]:.2f}"), BarColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=STEPS, loss=0.0)
        weights = train(
            tokenizer,
            taught,
            sizes,
            STEPS,
            RATE,
            told=lambda step, loss: bar.update(task, completed=step, loss=loss),
        )
    make_cache_folder(folder.parent)
    write_folder(folder, tokenizer, sizes, weights)
    (folder / _STAMP).write_text(_stamp(), "utf-8")
    numbers = sum(w.size for w in weights.values())
    seconds = time.perf_counter() - started
    text = f"{numbers / 1e6:.1f} million numbers, trained in {seconds:.0f} s, lie in {folder}."
    console.print(Text(text, style="dim"), soft_wrap=True)


def _stamp() -> str:
    """Returns a fingerprint of the sources and settings that the toy model is trained from."""
    found = hashlib.sha256(sys.version.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


if __name__ == "__main__":
    try:
        main()
    except clrt.ClrtError as error:
        sys.exit(f"Error: {error}")
