"""Folders of texts, good and bad ones, and an encoder that counts words."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from examples.semantic_search.store import FloatArray

DIMENSION = 64
TEXTS = {
    "otters.txt": "Otters hold hands while they sleep. They wrap themselves in kelp.",
    "notes/bread.md": "# Bread\n\nFeed the *sourdough* with flour and water.\n\nBake it hot.\n",
    "web/rates.html": "<title>Rates</title><p>The central bank raised its key rate.</p>",
    "tide.pdf": "The tide turned at noon.",
}


def write_texts(root: Path, texts: dict[str, str] = TEXTS) -> Path:
    """Writes texts into a folder; a PDF has each line on a page."""
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        is_pdf = path.suffix == ".pdf"
        path.write_bytes(pdf(*text.splitlines()) if is_pdf else text.encode())
    return root


def write_numbered(root: Path, count: int) -> Path:
    """Writes texts that differ in one word."""
    return write_texts(root, {f"{k:04}.txt": f"Text {k} is about w{k}x." for k in range(count)})


def pdf(*pages: str) -> bytes:
    """Returns a PDF with a line of ASCII text on each page."""
    kids = " ".join(f"{3 + 2 * k} 0 R" for k in range(len(pages)))
    font = "<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>"
    objects = ["<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>"]
    for k, text in enumerate(pages):
        drawn = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Resources{font}"
            f"/Contents {4 + 2 * k} 0 R>>"
        )
        objects.append(f"<</Length {len(drawn)}>>stream\n{drawn}\nendstream")
    body, places = "%PDF-1.4\n", []
    for number, text in enumerate(objects, start=1):
        places.append(len(body))
        body += f"{number} 0 obj{text}endobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    body += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer"
    start = body.index("xref\n")
    return f"{body}<</Size {len(objects) + 1}/Root 1 0 R>>\nstartxref\n{start}\n%%EOF".encode()


def encode(texts: Sequence[str]) -> FloatArray:
    """Returns bag-of-words vectors: texts that share words are similar."""
    return np.stack([_vector(text) for text in texts])


def _vector(text: str) -> FloatArray:
    vector = np.full(DIMENSION, 1e-3, np.float32)
    for word in re.findall(r"\w+", text.lower()):
        vector[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % DIMENSION] += 1
    return vector / np.float32(np.linalg.norm(vector))


def touch_later(path: Path, text: str) -> None:
    """Writes a file with a modification time that differs from the previous write's."""
    before = path.stat().st_mtime_ns
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(before + 10**9, before + 10**9))
