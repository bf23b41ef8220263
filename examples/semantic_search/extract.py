"""Extracts plain text from files."""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from .folder import HTML, PDF
from .problems import ProblemError, os_problem

MOST_BYTES = 64 << 20
MOST_CHARACTERS = 10_000_000
# So much of a file tells in which encoding it is.
_SAMPLE_BYTES = 64 << 10
# Of all characters, and of those beyond ASCII: a stray byte makes no text unreadable.
_MOST_CONTROL = 0.02
_MOST_WRONG = 0.1
_NO_LETTERS = frozenset({"Cc", "Cn", "Co", "Cs"})
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # begins as UTF-16's does
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CHARSET = re.compile(rb"<(?:meta|\?xml)\b[^<>]*?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]+)", re.I)

_BREAK = "\x1e"  # where HTML begins a new line; no text holds it
_UNSEEN = "head, script, style, noscript, template, iframe, svg, object, select, textarea"
_BLOCKS = (
    "address, article, aside, blockquote, br, dd, details, div, dl, dt, fieldset, figcaption, "
    "figure, footer, form, h1, h2, h3, h4, h5, h6, header, hr, li, main, nav, ol, p, pre, section, "
    "summary, table, td, th, tr, ul"
)
# Line ends of other systems, and what a text widget counts as one.
_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x85\u2028\u2029]")
# NUL, and what no file should hold: halves of pairs and non-characters.
_NO_TEXT = re.compile("[\x00\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def extract(path: Path) -> str:
    """Returns the text of a file; lines end with a newline, pages of a PDF with a form feed.

    Args:
        path: A plain, Markdown, HTML or PDF file.

    Raises:
        ProblemError: The file cannot be read or holds no text.
    """
    data = _read(path)
    suffix = path.suffix.lower()
    if suffix in PDF:
        text = _pdf_text(data)
    elif suffix in HTML:
        text = _html_text(_decode(data, _named_encoding(data)))
    else:
        text = _decode(data)
    if len(text) > MOST_CHARACTERS:
        raise ProblemError(f"It holds more than {MOST_CHARACTERS:,} characters.")
    return _NO_TEXT.sub(" ", _LINE_ENDS.sub("\n", text))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise os_problem(error) from error
    if len(data) > MOST_BYTES:
        raise ProblemError(f"It is larger than {MOST_BYTES >> 20} MB.")
    return data


def _decode(data: bytes, named: str = "") -> str:
    """Decodes text by its byte-order mark, by a declared encoding, or by the likeliest one."""
    for encoding in _encodings(data, named):
        try:
            text = data.decode(encoding, "replace")
        except LookupError:  # a page may name any
            continue
        if not _is_junk(text[:_SAMPLE_BYTES]):
            return text.removeprefix("\ufeff")
    raise ProblemError("It is no text, or in an encoding that is not known.")


def _encodings(data: bytes, named: str) -> Iterator[str]:
    """Yields candidate encodings, the likeliest first."""
    yield from (name for mark, name in _MARKS if data.startswith(mark))
    yield "utf-8"
    if named:
        yield named
    from charset_normalizer import from_bytes

    if (found := from_bytes(data[:_SAMPLE_BYTES]).best()) is not None:
        yield found.encoding


def _named_encoding(data: bytes) -> str:
    found = _CHARSET.search(data[:_SAMPLE_BYTES])
    return found[1].decode("ascii", "replace") if found else ""


def _is_junk(text: str) -> bool:
    """Returns whether too much of a text is binary, or decoded by a wrong encoding."""
    control = sum(
        c not in "\t\n\r\f\x1b\x85" and unicodedata.category(c) in _NO_LETTERS for c in text
    )
    foreign = sum(not c.isascii() for c in text)
    return control > 1 + _MOST_CONTROL * len(text) or text.count("\ufffd") > _MOST_WRONG * foreign


def _html_text(source: str) -> str:
    """Returns the words of an HTML page, its blocks as paragraphs."""
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(source.replace(_BREAK, " "))
    body = tree.body
    if body is None:
        return ""
    title = "" if (found := tree.css_first("head title")) is None else found.text()
    for node in tree.css(_UNSEEN):
        node.decompose()
    for node in tree.css(_BLOCKS):
        node.insert_before(_BREAK)
        node.insert_after(_BREAK)
    parts = (" ".join(part.split()) for part in [title, *body.text(separator="").split(_BREAK)])
    return "\n\n".join(filter(None, parts))


def _pdf_text(data: bytes) -> str:
    """Returns the text of each page. pypdf may raise any exception on damaged files."""
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # its warnings; errors are raised
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ProblemError("It is protected by a password.")
        text = "\f".join(page.extract_text().replace("\f", "\n") for page in reader.pages)
    except ProblemError:
        raise
    except Exception as error:
        raise ProblemError(f"It is no valid PDF ({type(error).__name__}: {error}).") from error
    if not text.strip():
        raise ProblemError("It holds no text: its pages are pictures.")
    return text
