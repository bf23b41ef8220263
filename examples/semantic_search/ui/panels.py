"""Parts of the window: what it shows where there is nothing, how far indexing is, what failed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from PySide6.QtCore import QSize, Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QPalette
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from ..index import Progress
from .icons import follow_palette, icon, mixed
from .results import shown_path

_STEPS = 1000  # of the progress bar


class EmptyState(QWidget):
    """A picture, a line, what to do, and perhaps a button for it."""

    pressed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._name = "search"
        self._picture = QLabel(alignment=Qt.AlignmentFlag.AlignCenter)
        self._title = QLabel(alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True)
        self._detail = QLabel(alignment=Qt.AlignmentFlag.AlignCenter, wordWrap=True)
        self._detail.setTextFormat(Qt.TextFormat.PlainText)
        self._detail.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self._detail.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._button = QPushButton()
        self._button.setDefault(True)
        self._button.setMinimumSize(150, 34)
        self._button.clicked.connect(self.pressed)
        font = self._title.font()
        font.setPointSizeF(font.pointSizeF() * 1.4)
        font.setBold(True)
        self._title.setFont(font)
        column = QVBoxLayout(self)
        column.setSpacing(10)
        column.setContentsMargins(40, 20, 40, 40)
        column.addStretch(2)
        for widget in (self._picture, self._title, self._detail):
            column.addWidget(widget)
        column.addSpacing(8)
        column.addWidget(self._button, 0, Qt.AlignmentFlag.AlignCenter)
        column.addStretch(3)
        self.setAutoFillBackground(True)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        follow_palette(self, self._colour)

    def show_text(self, name: str, title: str, detail: str, button: str = "") -> None:
        """Shows something else.

        Args:
            name: Of the icon.
            title: What is so.
            detail: What to do.
            button: What the button says; without one it is hidden.
        """
        self._name = name
        self._title.setText(title)
        self._detail.setText(detail)
        self._button.setText(button)
        self._button.setVisible(bool(button))
        self._colour()

    def _colour(self) -> None:
        palette = self.palette()
        dim = mixed(palette.windowText().color(), palette.base().color(), 0.35)
        picture = icon(self._name, dim.name(), 1.1)
        self._picture.setPixmap(picture.pixmap(QSize(72, 72), self.devicePixelRatio()))


class IndexStrip(QWidget):
    """How far indexing is, with a button that stops it or goes on."""

    cancel_asked = Signal()
    resume_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._running = False
        self._label = QLabel(textFormat=Qt.TextFormat.PlainText)
        self._label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._bar = QProgressBar(textVisible=False)
        self._bar.setAccessibleName("Indexing")
        self._bar.setFixedHeight(6)
        self._bar.setMinimumWidth(160)
        self._button = QPushButton()
        self._button.clicked.connect(self._press)
        row = QHBoxLayout(self)
        row.setSpacing(12)
        row.setContentsMargins(14, 8, 14, 8)
        row.addWidget(self._label, 2)
        row.addWidget(self._bar, 1)
        row.addWidget(self._button)
        self.hide()

    def wait_for(self, what: str) -> None:
        """Shows that something goes on whose length is not known."""
        self._show(True, what)
        self._bar.setRange(0, 0)

    def show_progress(self, progress: Progress) -> None:
        """Shows how far indexing is."""
        self._show(True, _said(progress))
        self._bar.setRange(0, _STEPS)
        self._bar.setValue(round(_STEPS * progress.done / max(progress.total, 1)))

    def show_stopped(self, why: str) -> None:
        """Shows that indexing has stopped before its end."""
        self._show(False, why)
        self._bar.setRange(0, _STEPS)

    def _show(self, running: bool, text: str) -> None:
        self._running = running
        metrics = self._label.fontMetrics()
        self.show()
        room = self._label.width()
        self._label.setText(metrics.elidedText(text, Qt.TextElideMode.ElideMiddle, room))
        self._button.setText("Cancel" if running else "Continue")

    def _press(self) -> None:
        if self._running:
            self._label.setText("Stopping …")
            self.cancel_asked.emit()
        else:
            self.resume_asked.emit()


class ProblemsDialog(QDialog):
    """The files that could not be read, and why; a double click opens one."""

    def __init__(self, parent: QWidget, root: Path, problems: Mapping[str, str]) -> None:
        super().__init__(parent)
        self.setWindowTitle("Files that could not be read")
        self.resize(720, 360)
        self._root = root
        self._paths = list(problems)
        self.table = QTableWidget(len(problems), 2)
        self.table.setHorizontalHeaderLabels(["File", "Why"])
        self.table.verticalHeader().hide()
        self.table.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.table.setSelectionBehavior(QTableWidget.SelectionBehavior.SelectRows)
        self.table.setWordWrap(True)
        for row, (path, why) in enumerate(problems.items()):
            for place, text in enumerate((shown_path(path) or ".", why)):
                item = QTableWidgetItem(text)
                item.setToolTip(text)
                self.table.setItem(row, place, item)
        self.table.setShowGrid(False)
        header = self.table.horizontalHeader()
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Interactive)
        header.resizeSection(0, 280)
        header.setStretchLastSection(True)
        self.table.resizeRowsToContents()
        self.table.itemActivated.connect(self._open)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        hint = QLabel("They are left out of the search, and read again when they have changed.")
        hint.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        column = QVBoxLayout(self)
        column.addWidget(hint)
        column.addWidget(self.table)
        column.addWidget(buttons)

    def _open(self, item: QTableWidgetItem) -> None:
        open_path(self._root / self._paths[item.row()])


def open_path(path: Path) -> bool:
    """Opens a file or folder with the program that the desktop has for it."""
    return QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))


def _said(progress: Progress) -> str:
    if not progress.current:
        return "Indexing …"
    where = shown_path(progress.current)
    return f"Indexing {int(progress.done):,} of {progress.total:,}: {where}"
