"""The text encoder: found, loaded once, and shared by queries and passages; queries go first."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .store import FloatArray

DEFAULT_MODEL = "all-MiniLM-L6-v2"
_PROBE = "The quick brown fox jumps over the lazy dog."


def find_encoder() -> str | Path:
    """Returns the compiled model beside the program, else the name of a packaged model."""
    frozen = getattr(sys, "frozen", False)
    here = Path(sys.executable if frozen else __file__).parent
    folders = [here, *([Path(sys._MEIPASS)] if hasattr(sys, "_MEIPASS") else [])]
    found = (file for folder in folders for file in sorted(folder.glob("*.clrt")))
    return next(found, DEFAULT_MODEL)


@dataclass(frozen=True)
class Device:
    """Device that runs the model, as shown to users."""

    name: str
    kind: str


class Encoder:
    """Encodes texts as vectors of unit length; thread-safe.

    Args:
        model: As in `clrt.SentenceEncoder`.
        device: As in `clrt.load`.

    Raises:
        clrt.ClrtError: There is no model or no device.
    """

    def __init__(self, model: str | Path, device: str | None = None) -> None:
        import clrt  # not before the window stands

        self._encoder = clrt.SentenceEncoder(model, device=device)
        info = self._encoder.model.device
        self.device = Device(" ".join(info.name.split()), info.kind)
        self._waiting = 0
        self._condition = threading.Condition()
        self.probe = self.encode_query(_PROBE)

    def encode_query(self, text: str) -> FloatArray:
        """Returns the vector [dimension] of a query, before waiting passages."""
        with self._condition:
            self._waiting += 1
        try:
            return self._encoder.encode(text)
        finally:
            with self._condition:
                self._waiting -= 1
                self._condition.notify_all()

    def encode_passages(self, texts: Sequence[str]) -> FloatArray:
        """Returns the vectors [len(texts), dimension] of passages, after all pending queries."""
        with self._condition:
            self._condition.wait_for(lambda: self._waiting == 0)
        return self._encoder.encode(texts, batch_size=len(texts), show_progress_bar=False)

    def close(self) -> None:
        """Releases the device memory."""
        self._encoder.close()
