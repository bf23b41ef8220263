"""The window: a search field, the results, the text of one, and what goes on behind."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QModelIndex, QSettings, QSize, Qt, QTimer, Slot
from PySide6.QtGui import QAction, QCloseEvent, QColor, QKeySequence, QPalette, QShortcut
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QMainWindow,
    QMenu,
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
from .icons import app_icon, icon, mixed
from .panels import EmptyState, IndexStrip, ProblemsDialog, open_path
from .results import ResultList, ResultModel, result_at, shown_path
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
        self.folder_button = QToolButton(
            toolButtonStyle=Qt.ToolButtonStyle.ToolButtonTextBesideIcon,
        )
        self.folder_button.setToolTip("Choose a folder (Ctrl+O)")
        self.field = QLineEdit(clearButtonEnabled=True)
        self.field.setAccessibleName("Search")
        self._lens = QAction(self)
        self.refresh_button = QToolButton(autoRaise=True)
        self.refresh_button.setToolTip("Look for changes (F5)")
        self.results = ResultModel()
        self.list = ResultList(self.results)
        self.viewer = Viewer()
        self.empty = EmptyState()
        self.strip = IndexStrip()
        self.files_label = QLabel()
        self.problems_button = QToolButton(
            autoRaise=True, toolButtonStyle=Qt.ToolButtonStyle.ToolButtonTextBesideIcon
        )
        self.time_label = QLabel()
        self.device_label = QLabel("Loading the model …")
        self._splitter = QSplitter(Qt.Orientation.Horizontal)
        self._stack = QStackedWidget()
        self._typing = QTimer(self, singleShot=True, interval=_PAUSE_MS)
        self._growing = QTimer(self, interval=_REFRESH_MS)
        self._lay_out()
        self._colour()
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
        self.folder_button.setText(shown_path(root.name) or str(root))
        self.folder_button.setToolTip(f"{shown_path(str(root))}\nChoose another folder (Ctrl+O)")
        self._fill_menu()
        self._answer = None
        self.results.show((), "")
        self.viewer.clear()
        self.files_label.clear()
        self.problems_button.hide()
        self.strip.wait_for("Opening the index …")
        self.engine.open(root)
        self._show_state()
        self.field.setFocus()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Keeps the sizes; the threads end after their step."""
        self._settings.setValue("geometry", self.saveGeometry())
        self._settings.setValue("splitter", self._splitter.saveState())
        self._settings.sync()
        self.engine.cancel()
        super().closeEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        """Follows a change between light and dark."""
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self._colour()

    def _lay_out(self) -> None:
        font = self.field.font()
        font.setPointSizeF(font.pointSizeF() * 1.25)
        self.field.setFont(font)
        self.field.addAction(self._lens, QLineEdit.ActionPosition.LeadingPosition)
        self.field.setMinimumHeight(self.field.sizeHint().height() + 8)
        for button in (self.folder_button, self.refresh_button):
            button.setIconSize(QSize(20, 20))
            button.setMinimumHeight(self.field.minimumHeight())
        self.folder_button.setText("Choose a folder")
        top = QHBoxLayout()
        top.setSpacing(10)
        top.setContentsMargins(14, 12, 14, 12)
        top.addWidget(self.folder_button)
        top.addWidget(self.field, 1)
        top.addWidget(self.refresh_button)
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
        column.addLayout(top)
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
        self.field.textChanged.connect(self._type)
        self.field.returnPressed.connect(self._enter_list)
        self._typing.timeout.connect(self._search)
        self._growing.timeout.connect(self._search)
        self.list.selectionModel().currentChanged.connect(self._select)
        self.list.activated.connect(lambda index: self._open_file())
        self.list.left_upwards.connect(self._focus_field)
        self.viewer.open_asked.connect(self._open_file)
        self.viewer.folder_asked.connect(self._open_parent)
        self.empty.pressed.connect(self.choose_folder)
        self.folder_button.clicked.connect(self.choose_folder)
        self.refresh_button.clicked.connect(self._update)
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
            ("Ctrl+Return", self._open_parent),
            ("Escape", self._escape),
            ("Ctrl+Q", self.close),
        ):
            QShortcut(QKeySequence(keys), self, slot)
        below = QShortcut(QKeySequence("Down"), self.field, self._enter_list)
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
        self._fill_menu()
        self._show_state()
        if (recent := self._recent()) and Path(recent[0]).is_dir():
            self.open_folder(Path(recent[0]))

    def _recent(self) -> list[str]:
        found = self._settings.value("recent") or []
        return [found] if isinstance(found, str) else list(found)

    def _fill_menu(self) -> None:
        menu = QMenu(self.folder_button)
        for path in self._recent():
            action = QAction(shown_path(path), menu)
            action.triggered.connect(lambda _=False, p=path: self.open_folder(Path(p)))
            menu.addAction(action)
        if menu.actions():
            menu.addSeparator()
            menu.addAction("Choose a folder …", self.choose_folder)
            self.folder_button.setMenu(menu)
            self.folder_button.setPopupMode(QToolButton.ToolButtonPopupMode.MenuButtonPopup)

    def _colour(self) -> None:
        colour = self.palette().windowText().color().name()
        self.folder_button.setIcon(icon("folder", colour))
        self.refresh_button.setIcon(icon("refresh", colour))
        self._lens.setIcon(
            icon("search", mixed(self.palette().text().color(), QColor("gray"), 0.3).name())
        )
        self.problems_button.setIcon(icon("warning", "#d08700"))

    def _show_state(self) -> None:
        """Results where there are some; else why there are none, and what to do."""
        root, query = self.engine.root, self.field.text().strip()
        self.field.setEnabled(root is not None)
        self.refresh_button.setEnabled(root is not None)
        self.field.setPlaceholderText("Search by meaning …" if root else "")
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
        if not self.field.text().strip():
            self._answer = None
            self.results.show((), "")
            self.viewer.clear()
            self.time_label.clear()
            self._show_state()

    @Slot()
    def _search(self) -> None:
        query = self.field.text().strip()
        if query and self.engine.root is not None:
            self.engine.search(query)
            self._show_state()

    @Slot(object)
    def _show_answer(self, answer: Answer) -> None:
        if answer.query != self.field.text().strip():
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
        self.field.setFocus()
        self.field.selectAll()

    def _escape(self) -> None:
        self.field.clear()
        self.field.setFocus()

    def _open_file(self) -> None:
        self._open(lambda path: path)

    def _open_parent(self) -> None:
        self._open(lambda path: path.parent)

    def _open(self, what: object) -> None:
        result = result_at(self.list.currentIndex())
        if result is not None and self.engine.root is not None:
            path = what(self.engine.root / result.path)  # type: ignore[operator]
            if not open_path(path):
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
