"""The top of the window: which folder is searched, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QAction, QColor
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QMenu, QToolButton, QWidget

from .icons import follow_palette, icon, mixed
from .results import shown_path


class TopBar(QWidget):
    """The folder with those of before in its menu, the search field, and a button to look anew."""

    choose_asked = Signal()
    folder_chosen = Signal(object)  # Path

    def __init__(self) -> None:
        super().__init__()
        self.folder_button = QToolButton(
            toolButtonStyle=Qt.ToolButtonStyle.ToolButtonTextBesideIcon
        )
        self.folder_button.clicked.connect(self.choose_asked)
        self.field = QLineEdit(clearButtonEnabled=True)
        self.field.setAccessibleName("Search")
        self._lens = QAction(self)
        self.field.addAction(self._lens, QLineEdit.ActionPosition.LeadingPosition)
        self.refresh_button = QToolButton(autoRaise=True)
        self.refresh_button.setToolTip("Look for changes (F5)")
        font = self.field.font()
        font.setPointSizeF(font.pointSizeF() * 1.25)
        self.field.setFont(font)
        self.field.setMinimumHeight(self.field.sizeHint().height() + 8)
        for button in (self.folder_button, self.refresh_button):
            button.setIconSize(QSize(20, 20))
            button.setMinimumHeight(self.field.minimumHeight())
        row = QHBoxLayout(self)
        row.setSpacing(10)
        row.setContentsMargins(14, 12, 14, 12)
        row.addWidget(self.folder_button)
        row.addWidget(self.field, 1)
        row.addWidget(self.refresh_button)
        self.show_folder(None, ())
        follow_palette(self, self._colour)

    def show_folder(self, root: Path | None, recent: Sequence[str]) -> None:
        """Shows which folder is searched.

        Args:
            root: None where none is chosen yet.
            recent: Folders of before.
        """
        self.field.setEnabled(root is not None)
        self.refresh_button.setEnabled(root is not None)
        self.field.setPlaceholderText("Search by meaning …" if root else "")
        place = "" if root is None else f"{shown_path(str(root))}\n"
        name = "Choose a folder" if root is None else shown_path(root.name or str(root))
        self.folder_button.setText(name)
        self.folder_button.setToolTip(f"{place}Choose a folder (Ctrl+O)")
        if recent:
            self.folder_button.setMenu(self._menu(recent))
            self.folder_button.setPopupMode(QToolButton.ToolButtonPopupMode.MenuButtonPopup)

    def _menu(self, recent: Sequence[str]) -> QMenu:
        menu = QMenu(self.folder_button)
        for path in recent:
            action = menu.addAction(shown_path(path))
            action.triggered.connect(lambda _=False, p=path: self.folder_chosen.emit(Path(p)))
        menu.addSeparator()
        menu.addAction("Choose a folder …", self.choose_asked.emit)
        return menu

    def _colour(self) -> None:
        colour = self.palette().windowText().color()
        self.folder_button.setIcon(icon("folder", colour.name()))
        self.refresh_button.setIcon(icon("refresh", colour.name()))
        self._lens.setIcon(icon("search", mixed(colour, QColor("gray"), 0.3).name()))
