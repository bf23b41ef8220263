"""OCR by rapidocr-onnxruntime: pictures of texts, each of another size, so that shapes change."""

import json
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

TEXTS = [
    ["Invoice 2024-117", "Total: 1,284.50 EUR"],
    ["The quick brown fox jumps", "over the lazy dog", "and runs away"],
    ["Hello"],
    ["A cat sleeps on the windowsill while it rains outside", "Page 3 of 12"],
]


def picture(lines: list[str], size: int) -> np.ndarray:
    """Black text on white, as high and wide as it needs."""
    font = ImageFont.load_default(size)
    width = int(max(font.getlength(line) for line in lines)) + 40
    image = Image.new("RGB", (width, (size + 14) * len(lines) + 40), "white")
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        draw.text((20, 20 + row * (size + 14)), line, "black", font)
    return np.asarray(image)[:, :, ::-1].copy()


engine = RapidOCR()
found = []
for number, lines in enumerate(TEXTS):
    boxes, _ = engine(picture(lines, 22 + 6 * number))
    found.append([[text, float(score), np.asarray(box).tolist()] for box, text, score in boxes])
json.dump(found, sys.stdout)
