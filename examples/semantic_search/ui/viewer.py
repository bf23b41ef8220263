"""The text of a result, its passages marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QPalette, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QTextEdit,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from ..folder import PDF
from ..search import Result
from ..store import Hit
from .icons import follow_palette, icon, mixed
from .results import shown_path, utf16

# Longer texts are shown in part: a text widget takes a second for millions of characters.
_MOST_SHOWN = 400_000


class Viewer(QWidget):
    """One text: name and place above, the passages that were found marked in it."""

    open_asked = Signal()
    folder_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._result: Result | None = None
        self._text = ""
        self._first = 0  # of the characters that are shown
        self._at = 0  # which passage is looked at
        self._head = QWidget()
        self._head.hide()
        self._name = QLabel(textFormat=Qt.TextFormat.PlainText)
        self._place = QLabel(textFormat=Qt.TextFormat.PlainText)
        self._place.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self._count = QLabel()
        self._count.setForegroundRole(QPalette.ColorRole.PlaceholderText)
        self._edit = QPlainTextEdit(readOnly=True)
        self._edit.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self._edit.setAccessibleName("Text")
        self._edit.document().setDocumentMargin(18)
        text_font = self._edit.font()
        text_font.setPointSizeF(text_font.pointSizeF() * 1.1)
        self._edit.setFont(text_font)
        font = self._name.font()
        font.setPointSizeF(font.pointSizeF() * 1.25)
        font.setBold(True)
        self._name.setFont(font)
        self._buttons = {
            "up": _button("Previous passage (Shift+F3)", lambda: self.step(-1)),
            "down": _button("Next passage (F3)", lambda: self.step(1)),
            "folder": _button("Show in its folder (Ctrl+Enter)", self.folder_asked.emit),
            "open": _button("Open the file (Enter)", self.open_asked.emit),
        }
        self._lay_out()
        self.setAutoFillBackground(True)
        self.setBackgroundRole(QPalette.ColorRole.Base)
        follow_palette(self, self._colour)

    @property
    def result(self) -> Result | None:
        """What is shown."""
        return self._result

    def marked(self) -> list[str]:
        """The passages that are marked, the one that is looked at first."""
        return [s.cursor.selectedText().replace("\u2029", "\n") for s in self._selections()]

    def clear(self) -> None:
        """Shows nothing."""
        self._result = None
        self._text = ""
        self._edit.clear()
        self._head.hide()

    def show_result(self, result: Result, text: str) -> None:
        """Shows a text at its best passage.

        Args:
            result: What was found.
            text: The whole text of its file.
        """
        name = shown_path(Path(result.path).name)
        self._name.setText(name)
        self._place.setText(shown_path(str(Path(result.path).parent)))
        self._place.setVisible(Path(result.path).parent != Path("."))
        self._head.show()
        self._result = result
        self._text = text
        self._at = 0
        self._show_part()

    def step(self, by: int) -> None:
        """Goes to another passage of the text."""
        if self._result is not None:
            self._at = (self._at + by) % len(self._result.hits)
            self._show_part()

    def _lay_out(self) -> None:
        names = QVBoxLayout()
        names.setSpacing(2)
        names.addWidget(self._name)
        names.addWidget(self._place)
        head = QHBoxLayout(self._head)
        head.setContentsMargins(18, 12, 12, 10)
        head.addLayout(names, 1)
        head.addWidget(self._count)
        for button in self._buttons.values():
            head.addWidget(button)
        whole = QVBoxLayout(self)
        whole.setSpacing(0)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.addWidget(self._head)
        whole.addWidget(self._edit, 1)

    def _colour(self) -> None:
        colour = self.palette().windowText().color().name()
        for name, button in self._buttons.items():
            button.setIcon(icon(name, colour))
        if self._result is not None:
            self._edit.setExtraSelections(self._selections())

    def _show_part(self) -> None:
        """Shows the text around the passage that is looked at, and the passage."""
        assert self._result is not None
        hit = self._result.hits[self._at]
        first = 0
        if len(self._text) > _MOST_SHOWN:
            first = max(0, hit.span.start - _MOST_SHOWN // 2)
        part = self._text[first : first + _MOST_SHOWN].replace("\f", "\n")
        if part != self._edit.toPlainText():
            self._edit.setPlainText(part)
        self._first = first
        selections = self._selections()
        self._edit.setExtraSelections(selections)
        cursor = QTextCursor(selections[0].cursor)
        cursor.clearSelection()
        cursor.setPosition(selections[0].cursor.selectionStart())
        self._edit.setTextCursor(cursor)
        self._edit.centerCursor()
        several = len(self._result.hits) > 1
        page = f"page {hit.page}" if Path(hit.path).suffix.lower() in PDF else ""
        count = f"{self._at + 1} of {len(self._result.hits)}" if several else ""
        self._count.setText("  ·  ".join(filter(None, (page, count))))
        for name in ("up", "down"):
            self._buttons[name].setVisible(several)

    def _selections(self) -> list[QTextEdit.ExtraSelection]:
        if self._result is None:
            return []
        base = self.palette().base().color()
        mark = QColor("#ffd54a" if base.lightness() > 127 else "#b58900")
        hits = self._result.hits
        ordered: Sequence[Hit] = (hits[self._at], *hits[: self._at], *hits[self._at + 1 :])
        found = []
        for k, hit in enumerate(ordered):
            start, end = hit.span.start - self._first, hit.span.end - self._first
            if 0 <= start < end <= _MOST_SHOWN:
                found.append(
                    self._selection(start, end, mixed(mark, base, 0.65 if k == 0 else 0.2))
                )
        return found

    def _selection(self, start: int, end: int, colour: QColor) -> QTextEdit.ExtraSelection:
        shown = self._text[self._first : self._first + _MOST_SHOWN]
        cursor = QTextCursor(self._edit.document())
        cursor.setPosition(utf16(shown, start))
        cursor.setPosition(utf16(shown, end), QTextCursor.MoveMode.KeepAnchor)
        selection = QTextEdit.ExtraSelection()
        selection.cursor = cursor
        selection.format = QTextCharFormat()
        selection.format.setBackground(colour)
        return selection


def _button(tip: str, clicked: object) -> QToolButton:
    button = QToolButton(autoRaise=True)
    button.setToolTip(tip)
    button.setAccessibleName(tip)
    button.clicked.connect(clicked)
    return button
