"""Search window, driven by keys and clicks.

Without a display it is drawn into memory; `make test-search` runs it on one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
for module in ("PySide6.QtSvg", "PySide6.QtTest"):
    pytest.importorskip(module, reason="the extra `search` is not installed", exc_type=ImportError)

from PySide6.QtCore import (  # noqa: E402
    QEventLoop,
    QObject,
    QSettings,
    Qt,
    QTimer,
    QUrl,
    Slot,
)
from PySide6.QtGui import QColor, QDesktopServices, QPalette  # noqa: E402
from PySide6.QtTest import QTest  # noqa: E402
from PySide6.QtWidgets import QApplication, QPushButton, QWidget  # noqa: E402

from examples.semantic_search.encoder import DEFAULT_MODEL, Encoder  # noqa: E402
from examples.semantic_search.store import Store  # noqa: E402
from examples.semantic_search.ui import window as windows  # noqa: E402
from examples.semantic_search.ui.engine import Engine, index_file  # noqa: E402
from examples.semantic_search.ui.icons import mixed  # noqa: E402
from examples.semantic_search.ui.panels import ProblemsDialog  # noqa: E402
from examples.semantic_search.ui.window import MainWindow  # noqa: E402
from tests.examples.samples import TEXTS, pdf, write_numbered, write_texts  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0

pytestmark = pytest.mark.slow

Start = Callable[..., MainWindow]


class Lasting(Encoder):
    """One model for all windows; counts embedded passages."""

    passages = 0

    def encode_passages(self, texts):  # type: ignore[no-untyped-def]
        self.passages += len(texts)
        return super().encode_passages(texts)

    def close(self) -> None:
        """Left to the fixture."""


class Opened(QObject):
    """Replaces the desktop: records the files it is asked to open."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[Path] = []

    @Slot(QUrl)
    def open(self, url: QUrl) -> None:
        self.paths.append(Path(url.toLocalFile()))


@pytest.fixture(scope="module")
def encoder() -> Iterator[Lasting]:
    made = Lasting(DEFAULT_MODEL)
    yield made
    Encoder.close(made)


@pytest.fixture(scope="module")
def app() -> QApplication:
    made = QApplication.instance() or QApplication(["search"])
    assert isinstance(made, QApplication)
    made.setStyle("Fusion")
    return made


@pytest.fixture
def start(tmp_path: Path, app: QApplication, encoder: Lasting) -> Iterator[Start]:
    """Starts the program; all starts share one data folder."""
    data = tmp_path / "data"
    started: list[MainWindow] = []

    def starting(make_encoder: Callable[[], Encoder] = lambda: encoder) -> MainWindow:
        settings = QSettings(str(data / "settings.ini"), QSettings.Format.IniFormat)
        window = MainWindow(Engine(data, make_encoder), settings)
        window.show()
        window.activateWindow()
        wait_until(window.isActiveWindow, "the window gets the keys")
        started.append(window)
        return window

    yield starting
    for window in started:
        stop(window)


def stop(window: MainWindow) -> None:
    window.close()
    window.engine.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Lets the program run. QTest.qWait would keep Python's other threads from running."""
    loop = QEventLoop()
    end = time.monotonic() + PATIENCE_S
    timer = QTimer(interval=5)

    def look() -> None:
        if condition() or time.monotonic() > end:
            loop.quit()

    timer.timeout.connect(look)
    timer.start()
    loop.exec()
    timer.stop()
    assert condition(), f"{what} within {PATIENCE_S} s"


def choose(window: MainWindow, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chooses a folder by the button, with the desktop's dialog replaced."""
    monkeypatch.setattr(
        windows.QFileDialog, "getExistingDirectory", staticmethod(lambda *_: str(folder))
    )
    QTest.mouseClick(window.top.folder_button, Qt.MouseButton.LeftButton)


def wait_for_index(window: MainWindow) -> None:
    wait_until(lambda: not window.engine.busy, "indexing ends")
    assert window.strip.isHidden()


def search(window: MainWindow, query: str) -> None:
    """Types a query and waits until its best result is shown."""
    window.top.field.clear()
    QTest.keyClicks(window.top.field, query)
    wait_until(lambda: window.results.query == query and viewed(window) != "", f"'{query}' found")


def viewed(window: MainWindow) -> str:
    """Returns the shown file if it is the chosen one."""
    shown = window.viewer.result
    return shown.path if shown is not None and shown is window_result(window) else ""


def window_result(window: MainWindow):  # type: ignore[no-untyped-def]
    return windows.result_at(window.list.currentIndex())


def picture(widget: QWidget, name: str) -> None:
    """Takes a screenshot if requested."""
    if folder := os.environ.get("CLRT_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        assert widget.grab().save(str(Path(folder) / f"{name}.png"))


def button(widget: QWidget, text: str) -> QPushButton:
    return next(b for b in widget.findChildren(QPushButton) if b.text() == text)


def test_folder_choice_search_and_open_work(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(
        tmp_path / "texts", TEXTS | {"emoji.txt": "😀 " * 300 + "\n\nThe tax is due in May."}
    )
    window = start()
    picture(window, "1-empty")
    assert not window.top.field.isEnabled()
    choose(window, folder, monkeypatch)
    assert window.top.field.hasFocus()
    wait_for_index(window)
    assert window.files_label.text().startswith("5 files")
    search(window, "marine mammals at rest")
    assert viewed(window) == "otters.txt"
    assert window.viewer.marked() == [TEXTS["otters.txt"]]
    assert "ms" in window.time_label.text() and "CPU" in window.device_label.text()
    picture(window, "2-found")
    search(window, "when to pay the government")  # each emoji is two characters to Qt
    assert viewed(window) == "emoji.txt"
    assert "The tax is due in May." in window.viewer.marked()[0]

    opened = Opened()
    QDesktopServices.setUrlHandler("file", opened, "open")
    try:
        search(window, "making a loaf")
        QTest.keyClick(window.top.field, Qt.Key.Key_Down)
        QTest.keyClick(window.list, Qt.Key.Key_Return)
        QTest.keyClick(window, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
        place = window.list.visualRect(window.list.currentIndex()).center()
        QTest.mouseClick(window.list.viewport(), Qt.MouseButton.LeftButton, pos=place)
        QTest.mouseDClick(window.list.viewport(), Qt.MouseButton.LeftButton, pos=place)
    finally:
        QDesktopServices.unsetUrlHandler("file")
    bread = folder / "notes" / "bread.md"
    assert opened.paths == [bread, bread.parent, bread]

    QTest.keyClick(window, Qt.Key.Key_Escape)
    assert window.top.field.text() == "" and window.results.rowCount() == 0
    QTest.keyClicks(window.top.field, "javascript closures")
    wait_until(lambda: window.time_label.text().startswith("0 files"), "nothing is found")
    picture(window, "3-nothing")


def test_viewer_scrolls_to_found_passage(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler = [f"Bond prices fell again on day {k}, and traders sold.\n\n" * 3 for k in range(200)]
    needle = (
        "Otters wrap themselves in kelp before they fall asleep, so that the tide does not carry "
        "them away. A mother holds her pup on her belly, and both drift with the swell all night."
    )
    text = "".join([*filler[:150], needle + "\n\n", *filler[150:]])
    window = start()
    choose(window, write_texts(tmp_path / "texts", {"long.md": text}), monkeypatch)
    wait_for_index(window)
    search(window, "sleeping sea animals")
    assert needle in window.viewer.marked()[0]
    edit = window.viewer._edit
    top = edit.firstVisibleBlock().position()
    assert 0 < top <= text.index(needle) < top + 6000
    shown = edit.cursorRect()
    assert edit.viewport().rect().contains(shown.center())


def test_cancelled_indexing_continues_and_window_stays_responsive(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: Lasting
) -> None:
    folder = write_numbered(tmp_path / "texts", 400)
    window = start()
    ticks: list[float] = []
    ticker = QTimer(interval=10)
    ticker.timeout.connect(lambda: ticks.append(time.monotonic()))
    ticker.start()
    before = encoder.passages
    choose(window, folder, monkeypatch)
    wait_until(lambda: encoder.passages > before + 100, "100 passages are embedded")
    QTest.keyClicks(window.top.field, "w3x")  # while it indexes
    wait_until(lambda: window.results.rowCount() > 0, "it is found while indexing")
    picture(window, "4-indexing")
    QTest.mouseClick(button(window.strip, "Cancel"), Qt.MouseButton.LeftButton)
    wait_until(lambda: not window.engine.busy, "it stops")
    stopped = encoder.passages - before
    assert 100 < stopped < 400
    QTest.mouseClick(button(window.strip, "Continue"), Qt.MouseButton.LeftButton)
    wait_for_index(window)
    assert encoder.passages - before == 400
    assert window.files_label.text() == "400 files, 400 passages"
    ticker.stop()
    gaps = [b - a for a, b in pairwise(ticks)]
    assert max(gaps) < 0.5, "the window was blocked"


def test_restart_keeps_index(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: Lasting
) -> None:
    folder = write_texts(tmp_path / "texts")
    window = start()
    choose(window, folder, monkeypatch)
    wait_for_index(window)
    stop(window)
    before = encoder.passages
    again = start()  # the folder of the last time
    search(again, "monetary policy")
    assert viewed(again) == str(Path("web/rates.html"))
    (folder / "web" / "rates.html").unlink()
    write_texts(folder, {"new.md": "Inflation is what the treasury fights."})
    wait_for_index(again)
    QTest.keyClick(again, Qt.Key.Key_F5)
    wait_until(lambda: viewed(again) == "new.md", "the new file takes its place")
    assert encoder.passages == before + 1


def test_killed_indexing_resumes(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder: Lasting
) -> None:
    folder, data = write_numbered(tmp_path / "texts", 300), tmp_path / "data"
    file = index_file(data, folder)
    child = subprocess.Popen(
        [sys.executable, "-m", "examples.semantic_search", str(folder), "--data", str(data)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "QT_QPA_PLATFORM": "offscreen"},
    )
    end = time.monotonic() + PATIENCE_S
    embedded = 0
    while embedded < 100:
        assert child.poll() is None and time.monotonic() < end
        time.sleep(0.02)
        if file.exists():
            with Store(file) as store:
                counts = store.counts()
            embedded = counts.passages - counts.left
    child.kill()
    child.wait()
    with Store(file) as store:
        counts = store.counts()
    embedded = counts.passages - counts.left
    assert 100 <= embedded < 300
    before = encoder.passages
    window = start()
    wait_for_index(window)
    assert encoder.passages - before == 300 - embedded
    assert window.files_label.text() == "300 files, 300 passages"


def test_unreadable_files_are_listed_in_dialog(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_texts(tmp_path / "texts")
    (folder / "broken.pdf").write_bytes(pdf("x")[:200])
    (folder / "junk.txt").write_bytes(bytes(range(256)) * 9)
    window = start()
    choose(window, folder, monkeypatch)
    wait_for_index(window)
    assert window.problems_button.text() == "2 could not be read"
    QTest.mouseClick(window.problems_button, Qt.MouseButton.LeftButton)
    dialog = window.findChild(ProblemsDialog)
    assert dialog is not None and dialog.isVisible()
    picture(dialog, "5-problems")
    items = [dialog.table.item(row, 0) for row in range(dialog.table.rowCount())]
    assert [item.text() for item in items if item] == ["broken.pdf", "junk.txt"]


def test_missing_model_is_shown(start: Start, tmp_path: Path) -> None:
    window = start(lambda: Encoder(tmp_path / "none"))
    window.open_folder(write_texts(tmp_path / "texts"))
    wait_until(lambda: window.device_label.text() == "No model", "it says so")
    wait_for_index(window)
    picture(window, "6-no-model")


def test_highlight_is_readable_in_light_and_dark(
    start: Start, app: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Highlighted text is readable in light and dark palettes."""
    window = start()
    choose(window, write_texts(tmp_path / "texts"), monkeypatch)
    wait_for_index(window)
    search(window, "sleeping sea animals")
    light = app.palette()
    try:
        for dark in (False, True):
            app.setPalette(_dark() if dark else light)
            wait_until(lambda dark=dark: _is_dark(window) == dark, "the palette changes")
            ink = window.viewer.palette().text().color().lightness()
            selection = window.viewer._edit.extraSelections()[0]
            assert abs(ink - selection.format.background().color().lightness()) > 80
        picture(window, "7-dark")
    finally:
        app.setPalette(light)


def _is_dark(window: MainWindow) -> bool:
    return window.viewer.palette().base().color().lightness() < 128


def _dark() -> QPalette:
    palette = QPalette(QColor("#2b2d30"), QColor("#1e1f22"))
    ink = QColor("#dfe1e5")
    for role in (
        QPalette.ColorRole.WindowText,
        QPalette.ColorRole.Text,
        QPalette.ColorRole.ButtonText,
    ):
        palette.setColor(role, ink)
    palette.setColor(QPalette.ColorRole.Base, QColor("#1e1f22"))
    palette.setColor(QPalette.ColorRole.Highlight, QColor("#3574f0"))
    palette.setColor(QPalette.ColorRole.PlaceholderText, mixed(ink, QColor("#1e1f22"), 0.5))
    return palette
