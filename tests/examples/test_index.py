"""Search index: updates from its folder, bad files, cancellation, and recovery from kills."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.semantic_search import extract as extraction
from examples.semantic_search.folder import scan
from examples.semantic_search.index import BATCH, Progress, update_index
from examples.semantic_search.problems import ProblemError
from examples.semantic_search.reader import FileReader
from examples.semantic_search.search import find
from examples.semantic_search.store import Store, mend
from tests.examples.samples import TEXTS, encode, touch_later, write_numbered, write_texts

if TYPE_CHECKING:
    from examples.semantic_search.store import FloatArray

ROOT = Path(__file__).resolve().parents[2]
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


class InProcess(FileReader):
    """Reads files in this process, for tests that do not test the reader process."""

    def read(self, path: Path, cancelled: object = None) -> str | None:
        return extraction.extract(path)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "index.sqlite") as made:
        made.accept_model(encode(["probe"])[0])
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "texts with spaces – ü")


def update(store: Store, folder: Path) -> list[str]:
    """Updates the index; returns the embedded texts."""
    embedded: list[str] = []

    def noted(texts: Sequence[str]) -> FloatArray:
        embedded.extend(texts)
        return encode(texts)

    assert update_index(store, folder, noted, reader=InProcess())
    return embedded


def found(store: Store, query: str) -> str:
    return find(store, encode([query])[0])[0].path


def test_search_finds_text_markdown_html_and_pdf(store: Store, folder: Path) -> None:
    with FileReader() as reader:
        assert update_index(store, folder, encode, reader=reader)
    assert store.stamps().keys() == {str(Path(name)) for name in TEXTS}
    for query, name in (
        ("otters in kelp", "otters.txt"),
        ("sourdough flour", "notes/bread.md"),
        ("central bank", "web/rates.html"),
        ("tide at noon", "tide.pdf"),
    ):
        assert found(store, query) == str(Path(name))
    result = find(store, encode(["otters in kelp"])[0])[0]
    span = result.best.span
    text = store.text(result.path)
    assert text is not None and text[span.start : span.end] == result.best.text


def test_passages_have_pdf_page_numbers(store: Store, tmp_path: Path) -> None:
    lines = [
        f"Page {k}. " + "Each page has so many words that it fills one passage. " * 8
        for k in range(1, 4)
    ]
    update(store, write_texts(tmp_path / "pages", {"a.pdf": "\n".join(lines)}))
    hits = store.nearest(encode(["page"])[0], 9)
    assert len(hits) == 3 and all(h.text.startswith(f"Page {h.page}.") for h in hits)


def test_only_changed_files_are_embedded(store: Store, folder: Path) -> None:
    assert len(update(store, folder)) == len(TEXTS)
    assert update(store, folder) == []
    touch_later(folder / "otters.txt", "Seals bark at gulls.")
    touch_later(folder / "notes" / "bread.md", TEXTS["notes/bread.md"])  # as it was
    write_texts(folder, {"new.txt": "Whales sing."})
    assert update(store, folder) == ["Whales sing.", "Seals bark at gulls."]
    assert found(store, "seals bark") == "otters.txt"
    (folder / "new.txt").unlink()
    (folder / "tide.pdf").rename(folder / "ebb.pdf")
    assert update(store, folder) == ["The tide turned at noon."]
    assert "new.txt" not in store.stamps() and "tide.pdf" not in store.stamps()
    assert found(store, "tide at noon") == "ebb.pdf"
    assert "otters" not in " ".join(h.text for h in store.nearest(encode(["kelp"])[0], 99))


@needs_links
def test_unreadable_files_are_listed_as_problems(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction, "MOST_BYTES", 3000)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (folder / "junk.txt").write_bytes(bytes(range(256)) * 8)
    (folder / "huge.md").write_bytes(b"word " * 1000)
    (folder / "photo.png").write_bytes(b"not asked for")
    (folder / ".hidden.txt").write_text("hidden")
    (folder / "empty.txt").write_text("")
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("A name of another encoding.")
    os.mkfifo(folder / "pipe.txt")
    (folder / "nowhere.txt").symlink_to(folder / "gone")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "round").symlink_to(folder, target_is_directory=True)
    (folder / "notes" / "up").symlink_to(folder / "notes", target_is_directory=True)
    update(store, folder)
    assert store.problems().keys() == {"broken.pdf", "junk.txt", "huge.md"}
    assert found(store, "a name of another encoding") == os.fsdecode(b"caf\xe9.txt")
    assert store.counts().files == len(TEXTS) + 2
    assert update(store, folder) == []  # nothing is read again
    touch_later(folder / "huge.md", "Small by now.")
    assert update(store, folder) == ["Small by now."]
    assert store.problems().keys() == {"broken.pdf", "junk.txt"}


@needs_links
def test_unlistable_folder_keeps_indexed_files(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update(store, folder)
    listdir = os.listdir

    def refused(path: Path) -> list[str]:
        if Path(path).name == "notes":
            raise PermissionError(13, "Permission denied", path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refused)
    assert update(store, folder) == []
    assert list(store.problems()) == ["notes"]
    assert found(store, "sourdough flour") == "notes/bread.md"
    monkeypatch.undo()
    assert update(store, folder) == [] and store.problems() == {}


def test_missing_folder_keeps_index(store: Store, folder: Path) -> None:
    update(store, folder)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(OSError, match="No such file"):
        update(store, folder)
    assert store.counts().files == len(TEXTS)


def test_file_deleted_during_update_is_dropped(store: Store, folder: Path) -> None:
    class Vanishing(InProcess):
        def read(self, path: Path, cancelled: object = None) -> str | None:
            path.unlink()
            return super().read(path)

    update(store, folder)
    touch_later(folder / "otters.txt", "Seals.")
    assert update_index(store, folder, encode, reader=Vanishing())
    assert "otters.txt" not in store.stamps() and store.problems() == {}


def test_hanging_file_times_out(folder: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("no named pipes as files")
    os.mkfifo(folder / "pipe.txt")
    with FileReader(longest_s=0.3) as reader:
        with pytest.raises(ProblemError, match="within"):
            reader.read(folder / "pipe.txt")
        assert reader.read(folder / "otters.txt") == TEXTS["otters.txt"]
        assert reader._process is not None
        reader._process.kill()
        reader._process.join()
        assert reader.read(folder / "otters.txt") == TEXTS["otters.txt"]
        start = time.monotonic()
        assert reader.read(folder / "pipe.txt", lambda: True) is None  # cancelled
        assert time.monotonic() - start < 0.25


def test_cancelled_update_resumes(store: Store, tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "many", 100)
    seen: list[Progress] = []

    def report(progress: Progress) -> None:
        seen.append(progress)

    def cancelled() -> bool:
        return bool(seen) and seen[-1].done > 30

    assert not update_index(store, folder, encode, report, cancelled, InProcess())
    counts = store.counts()
    assert BATCH <= counts.passages - counts.left < 100
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    rest = update(store, folder)
    assert len(rest) == 100 - (counts.passages - counts.left)
    assert store.counts() == type(counts)(100, 100, 0, 0)
    assert found(store, "w77x text 77") == "0077.txt"


def test_other_model_embeds_all_passages_again(store: Store, folder: Path) -> None:
    update(store, folder)
    store.accept_model(encode(["probe"])[0])
    assert store.counts().left == 0
    store.accept_model(encode(["another probe of another model"])[0])
    assert store.counts().left == len(TEXTS)
    assert store.nearest(encode(["kelp"])[0], 5) == []
    assert len(update(store, folder)) == len(TEXTS)
    store.accept_model(encode(["probe"])[0][:16])  # another dimension
    assert store.counts().left == len(TEXTS)


@pytest.mark.parametrize("damage", ["junk", "middle", "format"])
def test_damaged_index_is_replaced(tmp_path: Path, folder: Path, damage: str) -> None:
    file = tmp_path / "index.sqlite"
    with Store(file) as store:
        store.accept_model(encode(["probe"])[0])
        update(store, folder)
    assert not mend(file)
    if damage == "format":
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA user_version = 4711")
        connection.close()
    else:
        data = bytearray(file.read_bytes())
        start = 0 if damage == "junk" else 8192
        data[start : start + 8192] = b"\xa5" * 8192
        file.write_bytes(data)
    assert mend(file)
    with Store(file) as store:
        store.accept_model(encode(["probe"])[0])
        assert len(update(store, folder)) == len(TEXTS)


# Indexes slowly, so that it can be killed in the middle.
_SLOW = """
import sys, time
from pathlib import Path
from examples.semantic_search.index import update_index
from examples.semantic_search.store import Store
from tests.examples.samples import encode

def slowly(texts):
    time.sleep(0.02)
    return encode(texts)

if __name__ == "__main__":
    with Store(Path(sys.argv[1])) as store:
        store.accept_model(encode(["probe"])[0])
        update_index(store, Path(sys.argv[2]), slowly)
"""


def test_killed_update_resumes_without_duplicates(tmp_path: Path) -> None:
    folder = write_numbered(tmp_path / "many", 400)
    file, program = tmp_path / "index.sqlite", tmp_path / "slow.py"
    program.write_text(_SLOW)
    with Store(file) as store:
        embedded = 0
        while embedded < 300:
            child = subprocess.Popen(
                [sys.executable, str(program), str(file), str(folder)],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            before = embedded
            while embedded < before + 100:
                assert child.poll() is None, "it ended by itself"
                time.sleep(0.005)
                counts = store.counts()
                embedded = counts.passages - counts.left
            child.kill()
            child.wait()
            counts = store.counts()
            embedded = counts.passages - counts.left
        assert not mend(file)
        rest = update(store, folder)
        assert len(rest) == len(set(rest)) == 400 - embedded
        assert store.counts() == type(counts)(400, 400, 0, 0)
        hits = {h.path for h in store.nearest(encode(["text is about"])[0], 4000)}
        assert hits == {f"{k:04}.txt" for k in range(400)}


def test_scan_sorts_files_and_ignores_suffix_case(folder: Path) -> None:
    (folder / "UPPER.TXT").write_text("x")
    assert [e.path for e in scan(folder)] == [
        *("UPPER.TXT", "otters.txt", "tide.pdf"),
        *(str(Path("notes/bread.md")), str(Path("web/rates.html"))),
    ]
