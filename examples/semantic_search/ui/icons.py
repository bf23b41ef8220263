"""Icons drawn in the colour of the text around them, sharp at any size."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from PySide6.QtCore import QByteArray, QEvent, QObject, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QWidget

_SIZES = (16, 24, 32, 48, 96, 192)

# Strokes in a square of 24.
_SHAPES = {
    "folder": '<path d="M3 7a2 2 0 0 1 2-2h4l2.5 2.5H19a2 2 0 0 1 2 2V17a2 2 0 0 1-2 2H5a2 2 0 0'
    ' 1-2-2z"/>',
    "search": '<circle cx="10.5" cy="10.5" r="6.5"/><path d="M15.5 15.5 21 21"/>',
    "refresh": '<path d="M20 5v5h-5M4 19v-5h5"/><path d="M5.3 9.5A7.5 7.5 0 0 1 18 7.2l2 2.8M4 14l2'
    ' 2.8a7.5 7.5 0 0 0 12.7-2.3"/>',
    "open": '<path d="M13 4h7v7M20 4l-9 9"/><path d="M18 14v4a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2V8a2 2 0'
    ' 0 1 2-2h4"/>',
    "warning": '<path d="M12 4 2.5 20h19z"/><path d="M12 10v4.5M12 17.2v.3"/>',
    "up": '<path d="m6 15 6-6 6 6"/>',
    "down": '<path d="m6 9 6 6 6-6"/>',
    "text": '<path d="M6 3h8l5 5v13H6z"/><path d="M14 3v5h5M9 12.5h7M9 16.5h7"/>',
    "page": '<rect x="3" y="4.5" width="18" height="15" rx="2"/><path d="M3 9h18M6 6.8h.1M8.5'
    ' 6.8h.1"/>',
    "pdf": '<path d="M6 3h8l5 5v13H6z"/><path d="M14 3v5h5"/><path d="M9.2 17.5c2.2-1.8 3.6-5.2'
    ' 3.2-7-.8.5-.4 4.6 4 5.4-2.6-.4-5.6.4-7.2 1.6z"/>',
    "hash": '<path d="M6 3h8l5 5v13H6z"/><path d="M14 3v5h5M11 12l-1 6M14.5 12l-1 6M9 14h6.5M8.6'
    ' 16.3h6.5"/>',
}
_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="{colour}"'
    ' stroke-width="{width}" stroke-linecap="round" stroke-linejoin="round">{shape}</svg>'
)


@lru_cache(maxsize=128)
def icon(name: str, colour: str, width: float = 1.6) -> QIcon:
    """An icon in a colour.

    Args:
        name: One of the shapes above.
        colour: As "#rrggbb".
        width: Of its strokes, in 24ths of the icon.
    """
    svg = _SVG.format(colour=colour, width=width, shape=_SHAPES[name])
    renderer = QSvgRenderer(QByteArray(svg.encode()))
    made = QIcon()
    for size in _SIZES:
        made.addPixmap(_pixmap(renderer, size))
    return made


def app_icon() -> QIcon:
    """The program's own: a lens over a page."""
    made = QIcon()
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect x="4" y="4" width="56"'
        ' height="56" rx="14" fill="#2f6fde"/><g fill="none" stroke="#fff" stroke-width="4"'
        ' stroke-linecap="round"><path d="M16 20h18M16 30h10M16 40h8"/><circle cx="37" cy="36"'
        ' r="9.5"/><path d="m44 43 7 7"/></g></svg>'
    )
    renderer = QSvgRenderer(QByteArray(svg.encode()))
    for size in _SIZES:
        made.addPixmap(_pixmap(renderer, size))
    return made


def mixed(front: QColor, back: QColor, share: float) -> QColor:
    """A colour between two: `share` of the front one."""
    f, b, rest = front, back, 1 - share
    return QColor(
        round(share * f.red() + rest * b.red()),
        round(share * f.green() + rest * b.green()),
        round(share * f.blue() + rest * b.blue()),
    )


def follow_palette(widget: QWidget, colour: Callable[[], None]) -> None:
    """Colours a widget, again after each change between light and dark."""
    widget.installEventFilter(_PaletteFilter(widget, colour))
    colour()


class _PaletteFilter(QObject):
    def __init__(self, widget: QWidget, colour: Callable[[], None]) -> None:
        super().__init__(widget)
        self._colour = colour

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Calls what colours, and lets the widget see the event, too."""
        if event.type() == QEvent.Type.PaletteChange:
            self._colour()
        return False


def _pixmap(renderer: QSvgRenderer, size: int) -> QPixmap:
    pixmap = QPixmap(size, size)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    renderer.render(painter, QRectF(0, 0, size, size))
    painter.end()
    return pixmap
