"""A profile: what was measured, and the forms in which people look at it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clrt.profiling.timings import Timings


@dataclass(frozen=True)
class Profile(Timings):
    """Where the time of a model goes; `print` shows it as tables."""

    def save_trace(self, path: str | Path) -> None:
        """Writes a trace for ui.perfetto.dev or chrome://tracing."""
        from clrt.profiling.trace import trace_text

        Path(path).write_text(trace_text(self), encoding="utf-8")

    def save_html(self, path: str | Path) -> None:
        """Writes one HTML page, which needs nothing else: no network, no other file."""
        from clrt.profiling.page import page_text

        Path(path).write_text(page_text(self), encoding="utf-8")

    def __str__(self) -> str:
        from clrt.profiling.tables import tables_text

        return tables_text(self)
