"""Captchas by ddddocr: its recogniser on pictures of several widths, and its detector."""

import contextlib
import json
import random
import sys
from io import BytesIO, StringIO

from PIL import Image, ImageDraw, ImageFont

with contextlib.redirect_stdout(StringIO()):  # it advertises itself
    import ddddocr

    reader, detector = ddddocr.DdddOcr(show_ad=False), ddddocr.DdddOcr(det=True, show_ad=False)


def captcha(text: str, seed: int) -> bytes:
    """Text with a little noise, as PNG."""
    draws, font = random.Random(seed), ImageFont.load_default(34)
    image = Image.new("RGB", (26 * len(text) + 20, 60), "white")
    draw = ImageDraw.Draw(image)
    for place, letter in enumerate(text):
        draw.text((10 + 26 * place, 8 + draws.randrange(-4, 5)), letter, "navy", font)
    for _ in range(60):
        draw.point((draws.randrange(image.width), draws.randrange(60)), "gray")
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


found = []
for seed, text in enumerate(["k7m2", "9xqr4", "hello", "3f", "zt58ab"]):
    content = captcha(text, seed)
    found.append([reader.classification(content), sorted(detector.detection(content))])
json.dump(found, sys.stdout)
