"""Text extraction from files of each kind, and errors for unreadable files."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from examples.semantic_search import extract as extraction
from examples.semantic_search.extract import extract
from examples.semantic_search.problems import ProblemError
from tests.examples.samples import pdf

GERMAN = "Der Fluß fließt unter der alten Brücke, und über den Dächern steht schöne Abendröte. " * 8
RUSSIAN = "Кошка спит на подоконнике. Сегодня хорошая погода, и дети играют во дворе. " * 8
JAPANESE = "これは日本語の文章です。猫が窓辺で寝ています。明日は雨が降るでしょう。" * 8


def text_of(folder: Path, name: str, data: bytes) -> str:
    path = folder / name
    path.write_bytes(data)
    return extract(path)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "utf-8"),
        (GERMAN, "utf-8-sig"),
        (GERMAN, "utf-16"),
        (GERMAN, "utf-16-le"),
        (GERMAN, "utf-32"),
        (GERMAN, "cp1252"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "shift_jis"),
        ("Plain words. 🐟", "utf-8"),
        ("", "utf-8"),
    ],
)
def test_text_encoding_is_detected(tmp_path: Path, text: str, encoding: str) -> None:
    assert text_of(tmp_path, "a.txt", text.encode(encoding)) == text


def test_invalid_byte_loses_one_letter(tmp_path: Path) -> None:
    data = bytearray(RUSSIAN.encode())
    data[101] = 0xFF
    read = text_of(tmp_path, "a.txt", bytes(data))
    assert read.startswith(RUSSIAN[:40]) and read.endswith(RUSSIAN[70:])
    assert 1 <= read.count("�") <= 2


def test_line_ends_become_newlines(tmp_path: Path) -> None:
    read = text_of(tmp_path, "a.md", "a\r\nb\rc\u2028d\x85e\n".encode())
    assert read == "a\nb\nc\nd\ne\n"


def test_html_extracts_visible_text(tmp_path: Path) -> None:
    page = (
        "<html><head><title>The title</title><style>p{}</style></head><body><script>no()</script>"
        "<h1>Head</h1><p>One <b>bo</b>ld\n line &amp; more<br>next<ul><li>a<li>b</ul>"
        "<!-- no --><div>c</div>d<p hidden"
    )
    read = text_of(tmp_path, "a.html", page.encode())
    assert read.split("\n\n") == [
        *("The title", "Head", "One bold line & more", "next", "a", "b", "c", "d"),
    ]


def test_html_meta_charset_is_used(tmp_path: Path) -> None:
    page = '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251"><p>Да</p>'
    assert text_of(tmp_path, "a.htm", page.encode("cp1251")) == "Да"


def test_pdf_pages_are_separated_by_form_feeds(tmp_path: Path) -> None:
    assert text_of(tmp_path, "a.pdf", pdf("First page.", "Second page.")).split("\f") == [
        "First page.",
        "Second page.",
    ]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.pdf", b"%PDF-1.7 broken", "no valid PDF"),
        ("b.pdf", b"", "no valid PDF"),
        ("c.pdf", pdf("x")[:250], "no valid PDF"),
        ("d.pdf", pdf(""), "no text"),
        ("e.txt", random.Random(0).randbytes(20_000), "no text"),
        ("f.md", b"\x89PNG\r\n\x1a\n" + bytes(3000), "no text"),
        ("g.html", bytes(range(32)) * 100, "no text"),
        ("h.txt", b"\x7fELF" + random.Random(1).randbytes(5000), "no text"),
    ],
)
def test_files_without_text_are_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    with pytest.raises(ProblemError, match=said):
        text_of(tmp_path, name, data)


def test_password_protected_pdf_is_refused(tmp_path: Path) -> None:
    from pypdf import PdfReader, PdfWriter

    (tmp_path / "plain.pdf").write_bytes(pdf("Secret."))
    writer = PdfWriter(clone_from=PdfReader(tmp_path / "plain.pdf"))
    writer.encrypt("word", algorithm="RC4-128")
    writer.write(tmp_path / "locked.pdf")
    with pytest.raises(ProblemError, match="password"):
        extract(tmp_path / "locked.pdf")


def test_files_above_size_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        os.truncate(file.fileno(), extraction.MOST_BYTES + 1)
    with pytest.raises(ProblemError, match="larger than 64 MB"):
        extract(path)
    monkeypatch.setattr(extraction, "MOST_CHARACTERS", 10)
    with pytest.raises(ProblemError, match="more than 10 characters"):
        text_of(tmp_path, "b.txt", b"eleven char")
