"""The list of results: a file each, with the passage that was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QFont, QFontMetrics, QKeyEvent, QPainter, QPalette, QTextLayout
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem

from ..folder import HTML, MARKDOWN, PDF
from ..search import Result, words_of
from .icons import icon, mixed

_ROLE = Qt.ItemDataRole.UserRole
_LINES = 3  # of a passage
_PAD = 12
_GAP = 5
_BAR = QSize(44, 4)
_KINDS = {"pdf": "PDF", "page": "HTML", "hash": "Markdown", "text": "Text"}
_LEAD = 60  # characters in front of the first word that was asked for

Index = QModelIndex | QPersistentModelIndex


class ResultModel(QAbstractListModel):
    """The results of the newest query."""

    def __init__(self) -> None:
        super().__init__()
        self._results: Sequence[Result] = ()
        self.query = ""

    def show(self, results: Sequence[Result], query: str) -> None:
        """Puts other results in their place."""
        self.beginResetModel()
        self._results = results
        self.query = query
        self.endResetModel()

    def row_of(self, path: str) -> int:
        """Where a file stands; 0 where it is not found."""
        return next((k for k, r in enumerate(self._results) if r.path == path), 0)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        """How many results there are."""
        return 0 if parent.isValid() else len(self._results)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        """A result, or what assistive technology and tooltips say of it."""
        result = self._results[index.row()]
        if role == _ROLE:
            return result
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return f"{Path(result.path).name}: {' '.join(result.best.text.split())}"
        if role == Qt.ItemDataRole.ToolTipRole:
            return f"{shown_path(result.path)}\nSimilarity {result.best.score:.2f}"
        return None


class ResultList(QListView):
    """The results; the arrow keys reach them from the search field and lead back there."""

    left_upwards = Signal()

    def __init__(self, model: ResultModel) -> None:
        super().__init__()
        self.setModel(model)
        self.setItemDelegate(_ResultDelegate(self))
        self.setUniformItemSizes(True)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMouseTracking(True)
        self.setFrameShape(QListView.Shape.NoFrame)
        self.setAccessibleName("Results")

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Up from the first result goes back to the search field."""
        if event.key() == Qt.Key.Key_Up and self.currentIndex().row() <= 0:
            self.left_upwards.emit()
        else:
            super().keyPressEvent(event)


def result_at(index: Index) -> Result | None:
    """The result of a row; None where there is none."""
    found = index.data(_ROLE) if index.isValid() else None
    return found if isinstance(found, Result) else None


def shown_path(path: str) -> str:
    """A path as text; not all names are valid Unicode."""
    return path.encode("utf-8", "replace").decode("utf-8")


def icon_name(path: str) -> str:
    """The icon of a kind of file."""
    suffix = Path(path).suffix.lower()
    kinds = ((PDF, "pdf"), (HTML, "page"), (MARKDOWN, "hash"))
    return next((name for suffixes, name in kinds if suffix in suffixes), "text")


def snippet(query: str, text: str) -> str:
    """A passage on one line, from a little before the first word that was asked for."""
    line = " ".join(text.split())
    first = next((span.start for span in words_of(query, line)), 0)
    if first <= 2 * _LEAD:
        return line
    return f"… {line[line.find(' ', first - _LEAD) + 1 :]}"


class _ResultDelegate(QStyledItemDelegate):
    """Paints a result: its file, how alike it is, and three lines of the passage."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        """All rows are equally high."""
        line = QFontMetrics(option.font).height()
        return QSize(200, 2 * _PAD + (2 + _LINES) * line + 2 * _GAP)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        """Paints one row."""
        result = result_at(index)
        if result is None:
            return
        rect: QRect = option.rect
        font: QFont = option.font
        palette: QPalette = option.palette
        state: QStyle.StateFlag = option.state
        base, text = palette.base().color(), palette.text().color()
        accent = palette.highlight().color()
        selected = bool(state & QStyle.StateFlag.State_Selected)
        hovered = bool(state & QStyle.StateFlag.State_MouseOver)
        back = mixed(accent, base, 0.18 if selected else 0.06 if hovered else 0.0)
        dim = mixed(text, back, 0.62)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.fillRect(rect, back)
        if selected:
            painter.fillRect(QRect(rect.left(), rect.top(), 3, rect.height()), accent)
        painter.fillRect(
            QRect(rect.left() + _PAD, rect.bottom(), rect.width() - 2 * _PAD, 1),
            mixed(text, base, 0.1),
        )
        inner = rect.adjusted(_PAD + 2, _PAD, -_PAD, -_PAD)
        line = QFontMetrics(font).height()
        bar = QRect(inner.right() - _BAR.width(), inner.top() + (line - 4) // 2, *_BAR.toTuple())
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(mixed(text, back, 0.15))
        painter.drawRoundedRect(bar, 2, 2)
        painter.setBrush(accent)
        bar.setWidth(round(_BAR.width() * max(0.0, min(1.0, result.best.score))))
        painter.drawRoundedRect(bar, 2, 2)

        picture = icon(icon_name(result.path), dim.name()).pixmap(
            QSize(line, line), painter.device().devicePixelRatio()
        )
        painter.drawPixmap(inner.topLeft(), picture)
        title = inner.adjusted(line + 6, 0, -_BAR.width() - _PAD, 0)
        bold = QFont(font)
        bold.setWeight(QFont.Weight.DemiBold)
        _draw_line(painter, title, bold, text.name(), Path(result.path).name)
        place = inner.adjusted(0, line + _GAP // 2, 0, 0)
        _draw_line(painter, place, font, dim.name(), _place(result))
        painter.setPen(mixed(text, back, 0.85))
        top = QPointF(inner.left(), inner.top() + 2 * line + 1.5 * _GAP)
        _draw_snippet(painter, top, inner.width(), font, index.model(), result)  # type: ignore[arg-type]
        painter.restore()


def _place(result: Result) -> str:
    """Kind, page, number of passages and folder of a result."""
    path = Path(result.path)
    parts = [_KINDS[icon_name(result.path)]]
    if path.suffix.lower() in PDF:
        parts.append(f"page {result.best.page}")
    if len(result.hits) > 1:
        parts.append(f"{len(result.hits)} passages")
    if path.parent != Path("."):
        parts.append(shown_path(str(path.parent)))
    return "  ·  ".join(parts)


def _draw_line(painter: QPainter, rect: QRect, font: QFont, colour: str, text: str) -> None:
    metrics = QFontMetrics(font)
    elided = metrics.elidedText(shown_path(text), Qt.TextElideMode.ElideMiddle, rect.width())
    painter.setFont(font)
    painter.setPen(colour)
    painter.drawText(rect, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop, elided)


def _draw_snippet(
    painter: QPainter, top: QPointF, width: int, font: QFont, model: ResultModel, result: Result
) -> None:
    """The first lines of a passage, the words that were asked for bold."""
    text = snippet(model.query, result.best.text)
    layout = _laid_out(text, width, font, model.query)
    if layout.lineCount() > _LINES:
        last = layout.lineAt(_LINES - 1)
        text = text[: max(last.textStart() + last.textLength() - 2, 0)].rstrip() + "…"
        layout = _laid_out(text, width, font, model.query)
    for k in range(min(layout.lineCount(), _LINES)):
        layout.lineAt(k).draw(painter, top)


def _laid_out(text: str, width: int, font: QFont, query: str) -> QTextLayout:
    layout = QTextLayout(text, font)
    formats = []
    for span in words_of(query, text):
        part = QTextLayout.FormatRange()
        part.start, part.length = utf16(text, span.start), utf16(text[span.start : span.end])
        part.format.setFontWeight(QFont.Weight.Bold)
        formats.append(part)
    layout.setFormats(formats)
    layout.beginLayout()
    height = 0.0
    while (line := layout.createLine()).isValid():
        line.setLineWidth(width)
        line.setPosition(QPointF(0, height))
        height += line.height()
    layout.endLayout()
    return layout


def utf16(text: str, position: int | None = None) -> int:
    """A position in a text as Qt counts it: in units of 16 bits."""
    return len(text[:position].encode("utf-16-le", "surrogatepass")) // 2
