"""Programs that other people made for ONNX Runtime, on it and on clrt in its place.

They come with the extra `programs`, in the environment that `make test-programs` makes. A program
is timed as it is, its own work on the host included; what it spends in sessions is counted apart.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import track

from .results import ProgramRow
from .runtimes import ONNXRUNTIME, Runtime, is_installed
from .turns import Handler, Worker, median_ratio, open_workers

Act: TypeAlias = "Callable[[int], object]"
SAME, NEW, START = "the same shapes", "new shapes", "start"
_INK = "Invoice 2024-117 of the quick brown fox, page 3 of 12"
# Sizes of steady turns; a number of its own for each pass of the others.
_USUAL = 0


def measure_programs(ours: Sequence[Runtime], turns: int) -> list[ProgramRow]:
    """Rows for each program that is installed.

    Args:
        turns: Passes of each kind that a runtime makes in turn with the others.
    """
    rows = []
    there = [name for name in _PROGRAMS if is_installed(name)]
    for name in track(there, "programs", console=Console(stderr=True)):
        makers: dict[str, tuple[Any, ...]] = {ONNXRUNTIME: (_make, name, None)}
        makers |= {r.name: (_make, name, r.device) for r in ours}
        with open_workers(makers) as workers:
            rows += _rows(name, START, {w.name: [w.ask(None)] for w in workers})
            for case in (SAME, NEW):
                first = int(case == SAME)  # a pass that is not counted
                found = _passes(workers, case, turns + first)
                rows += _rows(name, case, {n: f[first:] for n, f in found.items()})
    return rows


def _passes(
    workers: Sequence[Worker], case: str, count: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each pass, and of them in sessions, by runtime."""
    found: dict[str, list[tuple[float, float]]] = {w.name: [] for w in workers}
    for number in range(1, count + 1):
        for worker in workers:
            found[worker.name].append(worker.ask(_USUAL if case == SAME else number))
    return found


def _rows(program: str, case: str, found: dict[str, list[tuple[float, float]]]) -> list[ProgramRow]:
    peer = [seconds for seconds, _ in found[ONNXRUNTIME]]
    rows = []
    for runtime, passes in found.items():
        own, inside = [p[0] for p in passes], [p[1] for p in passes]
        ms, in_sessions = (1e3 * statistics.median(x) for x in (own, inside))
        ratio = median_ratio(own, peer)
        rows.append(ProgramRow(program, case, runtime, ms, in_sessions, ratio))
    return rows


def _make(program: str, device: str | None) -> Handler:
    """A worker's handler: it makes the pass of a number, and None asks how long the start took.

    Args:
        device: clrt's, or None for ONNX Runtime.
    """
    start = time.perf_counter()
    if device is not None:
        os.environ["CLRT_DEVICE"] = device
        from clrt.onnxruntime import install

        install()
    inside = _count_sessions()
    act = _PROGRAMS[program]()
    act(_USUAL)
    started = time.perf_counter() - start, inside[0]

    def answer(number: int | None) -> tuple[float, float]:
        if number is None:
            return started
        begin, before = time.perf_counter(), inside[0]
        act(number)
        return time.perf_counter() - begin, inside[0] - before

    return answer


def _count_sessions() -> list[float]:
    """A list whose one number grows by the seconds that sessions run."""
    session: Any = import_module("onnxruntime").InferenceSession
    total, run = [0.0], session.run

    def counted(*args: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return run(*args, **options)
        finally:
            total[0] += time.perf_counter() - start

    session.run = counted
    return total


def _written(words: int, size: int, margin: int) -> Any:
    """A picture of some of `_INK`'s words, as large as these and the margin need."""
    from PIL import Image, ImageDraw, ImageFont

    font, text = ImageFont.load_default(size), " ".join(_INK.split()[:words])
    box = (int(font.getlength(text)) + 2 * margin, size + 14 + 2 * margin)
    image = Image.new("RGB", box, "white")
    ImageDraw.Draw(image).text((margin, margin), text, "black", font)
    return image


def _rapidocr() -> Act:
    """Three pages: their sides decide the shapes of the detector, the lines the recogniser's."""
    import numpy as np

    engine = import_module("rapidocr_onnxruntime").RapidOCR()

    def act(number: int) -> None:
        for words in (2, 5, 10):
            picture = _written(words, 22, 160 + 16 * number)
            engine(np.asarray(picture)[:, :, ::-1].copy())

    return act


def _magika() -> Act:
    """Sixteen contents, one by one; a pass of a number tells so many files at once."""
    magika = import_module("magika")
    known = magika.Magika()
    contents = [bytes(range(32, 127)) * (1 + i) for i in range(16)]
    files = sorted(Path(str(magika.__file__)).parent.rglob("*.py"))

    def act(number: int) -> None:
        if number == _USUAL:
            for content in contents:
                known.identify_bytes(content)
        else:
            known.identify_paths((files * 8)[: 8 + number])

    return act


def _ddddocr() -> Act:
    """A captcha to read and one to find things in."""
    ddddocr = import_module("ddddocr")
    reader, finder = ddddocr.DdddOcr(show_ad=False), ddddocr.DdddOcr(det=True, show_ad=False)

    def act(number: int) -> None:
        for words in (1, 2):
            file = BytesIO()
            _written(words, 34, 10 + 3 * number).save(file, "PNG")
            reader.classification(file.getvalue())
            finder.detection(file.getvalue())

    return act


_PROGRAMS: dict[str, Callable[[], Act]] = {
    "rapidocr_onnxruntime": _rapidocr,
    "magika": _magika,
    "ddddocr": _ddddocr,
}
