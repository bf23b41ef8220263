"""The window: a search field, the results, the text of one, and what goes on behind."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QModelIndex, QSettings, Qt, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QKeySequence, QPalette, QShortcut
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QLabel,
    QMainWindow,
    QSplitter,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from ..encoder import Encoder
from ..index import Progress
from ..store import Counts
from .engine import Answer, Content, Engine
from .icons import app_icon, icon
from .panels import EmptyState, IndexStrip, ProblemsDialog, open_path
from .results import ResultList, ResultModel, result_at, shown_path
from .top import TopBar
from .viewer import Viewer

TITLE = "Semantic Search"
_MOST_RECENT = 8
_PAUSE_MS = 40  # after a key: between the letters of a quick typist nothing is searched
_REFRESH_MS = 2000  # results follow the index while it grows


class MainWindow(QMainWindow):
    """Search as you type through the texts of a folder.

    Args:
        engine: What does the work.
        settings: Keeps folders and sizes between starts.
    """

    def __init__(self, engine: Engine, settings: QSettings) -> None:
        super().__init__()
        self.engine = engine
        self._settings = settings
        self._model_error = ""
        self._model_ready = False
        self._answer: Answer | None = None
        self.setWindowTitle(TITLE)
        self.setWindowIcon(app_icon())
        self.top = TopBar()
        self.results = ResultModel()
        self.list = ResultList(self.results)
        self.viewer = Viewer()
        self.empty = EmptyState()
        self.strip = IndexStrip()
        self.files_label = QLabel()
        self.problems_button = QToolButton(
            autoRaise=True, toolButtonStyle=Qt.ToolButtonStyle.ToolButtonTextBesideIcon
        )
        self.problems_button.setIcon(icon("warning", "#d08700"))
        self.time_label = QLabel()
        self.device_label = QLabel("Loading the model …")
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._stack = QStackedWidget()
        self._typing = QTimer(self, singleShot=True, interval=_PAUSE_MS)
        self._growing = QTimer(self, interval=_REFRESH_MS)
        self._lay_out()
        self._connect()
        self._restore()
        engine.load()

    def choose_folder(self) -> None:
        """Asks for a folder and searches it."""
        start = str(self.engine.root or Path.home())
        chosen = QFileDialog.getExistingDirectory(self, "Choose a folder to search", start)
        if chosen:
            self.open_folder(Path(chosen))

    def open_folder(self, root: Path) -> None:
        """Searches a folder; what is not indexed yet is indexed."""
        root = root.absolute()
        recent = [str(root), *(p for p in self._recent() if p != str(root))][:_MOST_RECENT]
        self._settings.setValue("recent", recent)
        self.setWindowTitle(f"{shown_path(root.name)} – {TITLE}")
        self.top.show_folder(root, recent)
        self._answer = None
        self.results.show((), "")
        self.viewer.clear()
        self.files_label.clear()
        self.problems_button.hide()
        self.strip.wait_for("Opening the index …")
        self.engine.open(root)
        self._show_state()
        self.top.field.setFocus()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Keeps the sizes; the threads end after their step."""
        self._settings.setValue("geometry", self.saveGeometry())
        self._settings.setValue("splitter", self._splitter.saveState())
        self._settings.sync()
        self.engine.cancel()
        super().closeEvent(event)

    def _lay_out(self) -> None:
        self._splitter.addWidget(self.list)
        self._splitter.addWidget(self.viewer)
        self._splitter.setChildrenCollapsible(False)
        self._splitter.setHandleWidth(1)
        self._splitter.setSizes([400, 640])
        self.list.setMinimumWidth(260)
        self.viewer.setMinimumWidth(320)
        self._stack.addWidget(self.empty)
        self._stack.addWidget(self._splitter)
        centre = QWidget()
        column = QVBoxLayout(centre)
        column.setSpacing(0)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.top)
        column.addWidget(_rule())
        column.addWidget(self._stack, 1)
        column.addWidget(_rule())
        column.addWidget(self.strip)
        self.setCentralWidget(centre)
        self.problems_button.hide()
        bar = self.statusBar()
        bar.setContentsMargins(10, 0, 10, 2)
        bar.setSizeGripEnabled(False)
        bar.addWidget(self.files_label)
        bar.addWidget(self.problems_button)
        bar.addPermanentWidget(self.time_label)
        bar.addPermanentWidget(self.device_label)
        self.resize(1080, 700)

    def _connect(self) -> None:
        self.top.field.textChanged.connect(self._type)
        self.top.field.returnPressed.connect(self._enter_list)
        self._typing.timeout.connect(self._search)
        self._growing.timeout.connect(self._search)
        self.list.selectionModel().currentChanged.connect(self._select)
        self.list.activated.connect(lambda index: self._open())
        self.list.left_upwards.connect(self._focus_field)
        self.viewer.open_asked.connect(lambda: self._open())
        self.viewer.folder_asked.connect(lambda: self._open(above=True))
        self.empty.pressed.connect(self.choose_folder)
        self.top.choose_asked.connect(self.choose_folder)
        self.top.folder_chosen.connect(self.open_folder)
        self.top.refresh_button.clicked.connect(self._update)
        self.problems_button.clicked.connect(self._show_problems)
        self.strip.cancel_asked.connect(self.engine.cancel)
        self.strip.resume_asked.connect(self._update)
        for keys, slot in (
            ("Ctrl+O", self.choose_folder),
            ("Ctrl+F", self._focus_field),
            ("Ctrl+L", self._focus_field),
            ("F5", self._update),
            ("F3", lambda: self.viewer.step(1)),
            ("Shift+F3", lambda: self.viewer.step(-1)),
            ("Ctrl+Return", lambda: self._open(above=True)),
            ("Escape", self._escape),
            ("Ctrl+Q", self.close),
        ):
            QShortcut(QKeySequence(keys), self, slot)
        below = QShortcut(QKeySequence("Down"), self.top.field, self._enter_list)
        below.setContext(Qt.ShortcutContext.WidgetShortcut)
        self.engine.model_ready.connect(self._show_device)
        self.engine.model_failed.connect(self._show_model_error)
        self.engine.opened.connect(self._show_opened)
        self.engine.progress.connect(self._show_progress)
        self.engine.indexed.connect(self._show_indexed)
        self.engine.index_failed.connect(self._show_stopped)
        self.engine.answered.connect(self._show_answer)
        self.engine.read.connect(self._show_text)

    def _restore(self) -> None:
        if geometry := self._settings.value("geometry"):
            self.restoreGeometry(geometry)
        if splitter := self._settings.value("splitter"):
            self._splitter.restoreState(splitter)
        self.top.show_folder(None, self._recent())
        self._show_state()
        if (recent := self._recent()) and Path(recent[0]).is_dir():
            self.open_folder(Path(recent[0]))

    def _recent(self) -> list[str]:
        found = self._settings.value("recent") or []
        return [found] if isinstance(found, str) else list(found)

    def _show_state(self) -> None:
        """Results where there are some; else why there are none, and what to do."""
        root, query = self.engine.root, self.top.field.text().strip()
        self._stack.setCurrentWidget(self.empty)
        if self._model_error:
            self.empty.show_text("warning", "The model could not be loaded", self._model_error)
        elif root is None:
            detail = "Its texts, Markdown, HTML and PDF files are indexed on this computer."
            self.empty.show_text("folder", "Search a folder", detail, "Choose a folder")
        elif self.results.rowCount():
            self._stack.setCurrentWidget(self._splitter)
        elif not query:
            detail = "Describe what you look for: other words for it are found, too."
            self.empty.show_text("search", f"Search in {shown_path(root.name)}", detail)
        elif self._answer is None or self._answer.query != query:
            detail = "" if self._model_ready else "The model is being loaded."
            self.empty.show_text("search", "Searching …", detail)
        elif self.engine.busy:
            self.empty.show_text("search", "Nothing found yet", "The folder is still indexed.")
        else:
            self.empty.show_text("search", "Nothing found", "Try other words, or a question.")

    @Slot()
    def _type(self) -> None:
        self._typing.start()
        if not self.top.field.text().strip():
            self._answer = None
            self.results.show((), "")
            self.viewer.clear()
            self.time_label.clear()
            self._show_state()

    @Slot()
    def _search(self) -> None:
        query = self.top.field.text().strip()
        if query and self.engine.root is not None:
            self.engine.search(query)
            self._show_state()

    @Slot(object)
    def _show_answer(self, answer: Answer) -> None:
        if answer.query != self.top.field.text().strip():
            return
        kept = result_at(self.list.currentIndex())
        same = self._answer is not None and self._answer.query == answer.query
        if same and self._answer is not None and self._answer.results == answer.results:
            return  # the index grew elsewhere
        self._answer = answer
        found = "1 file" if len(answer.results) == 1 else f"{len(answer.results)} files"
        self.time_label.setText(f"{found} in {answer.seconds * 1e3:.0f} ms   ·")
        self.results.show(answer.results, answer.query)
        if answer.results:
            row = self.results.row_of(kept.path) if same and kept is not None else 0
            self.list.setCurrentIndex(self.results.index(row))
        else:
            self.viewer.clear()
        self._show_state()

    @Slot(QModelIndex)
    def _select(self, index: QModelIndex) -> None:
        if (result := result_at(index)) is not None:
            self.engine.read_file(result.path)

    @Slot(object)
    def _show_text(self, content: Content) -> None:
        result = result_at(self.list.currentIndex())
        if result is not None and result.path == content.path and content.text:
            self.viewer.show_result(result, content.text)

    def _enter_list(self) -> None:
        if self.results.rowCount():
            self.list.setFocus()

    def _focus_field(self) -> None:
        self.top.field.setFocus()
        self.top.field.selectAll()

    def _escape(self) -> None:
        self.top.field.clear()
        self.top.field.setFocus()

    def _open(self, above: bool = False) -> None:
        """Opens the file that is chosen, or the folder that it lies in."""
        result = result_at(self.list.currentIndex())
        if result is not None and self.engine.root is not None:
            path = self.engine.root / result.path
            if not open_path(path.parent if above else path):
                self.statusBar().showMessage(f"{shown_path(str(path))} cannot be opened.", 5000)

    @Slot()
    def _update(self) -> None:
        self.engine.update()

    @Slot(object)
    def _show_device(self, encoder: Encoder) -> None:
        device = encoder.device
        self.device_label.setText(f"{device.name} ({device.kind.upper()})")
        self._model_ready = True
        self._search()

    @Slot(str)
    def _show_model_error(self, message: str) -> None:
        self._model_error = message
        self.device_label.setText("No model")
        self._show_state()

    @Slot(object)
    def _show_opened(self, counts: Counts) -> None:
        self._show_counts(counts)
        ready = "Looking for changes …" if self._model_ready else "Waiting for the model …"
        self.strip.wait_for(ready)
        self._growing.start()
        self._search()

    @Slot(object, object)
    def _show_progress(self, progress: Progress, counts: Counts) -> None:
        self._show_counts(counts)
        self.strip.show_progress(progress)

    @Slot(bool, object)
    def _show_indexed(self, done: bool, counts: Counts) -> None:
        self._growing.stop()
        self._show_counts(counts)
        if done or self._model_error:
            self.strip.hide()
        else:
            self.strip.show_stopped("Indexing has stopped. What is indexed can be searched.")
        self._search()

    @Slot(str)
    def _show_stopped(self, why: str) -> None:
        self._growing.stop()
        self.strip.show_stopped(why)

    def _show_counts(self, counts: Counts) -> None:
        noun = "file" if counts.files == 1 else "files"
        self.files_label.setText(f"{counts.files:,} {noun}, {counts.passages:,} passages")
        self.problems_button.setVisible(counts.problems > 0)
        self.problems_button.setText(f"{counts.problems:,} could not be read")

    def _show_problems(self) -> None:
        if self.engine.root is not None:
            ProblemsDialog(self, self.engine.root, self.engine.problems()).open()


def _rule() -> QFrame:
    """A thin line between parts of the window."""
    line = QFrame(frameShape=QFrame.Shape.NoFrame)
    line.setFixedHeight(1)
    line.setAutoFillBackground(True)
    line.setBackgroundRole(QPalette.ColorRole.Midlight)
    return line
