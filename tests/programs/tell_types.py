"""File types by magika: of its own sources, and of generated files."""

import gzip
import json
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import magika
from magika import Magika

archive = BytesIO()
with zipfile.ZipFile(archive, "w") as file:
    file.writestr(zipfile.ZipInfo("letter.txt"), "Dear reader, this is a letter. " * 20)
samples = {
    "python": Path(magika.__file__).read_bytes(),
    "json": json.dumps({f"key {i}": [i, i * i, {"even": i % 2 == 0}] for i in range(40)}).encode(),
    "csv": "\n".join(f"{i},{i * 3},name {i}" for i in range(60)).encode(),
    "html": b"<!DOCTYPE html><html><head><title>x</title></head><body>"
    + b"<p>Hello <b>world</b></p>" * 20
    + b"</body></html>",
    "c": b'#include <stdio.h>\nint main(void) {\n  puts("hello");\n  return 0;\n}\n' * 4,
    "gzip": gzip.compress(b"some text " * 200, mtime=0),
    "zip": archive.getvalue(),
    "shell": b'#!/bin/sh\nset -e\nfor f in *.txt; do\n  echo "$f"\ndone\n' * 3,
    "markdown": b"# Title\n\n- one\n- two\n\nSome *text* with [a link](https://example.org).\n" * 6,
    "tiny": b"a",
}
known = Magika()
found = {}
for name, content in samples.items():
    result = known.identify_bytes(content)
    found[name] = [str(result.output.label), float(result.score)]
folder = Path(magika.__file__).parent
for result in known.identify_paths(sorted(folder.rglob("*.py")) + sorted(folder.rglob("*.json"))):
    found[result.path.relative_to(folder).as_posix()] = [
        str(result.output.label),
        float(result.score),
    ]
json.dump(found, sys.stdout)
