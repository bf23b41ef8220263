"""`Profile`: timings of a model that print as tables and save as a trace or HTML page."""

from __future__ import annotations

from pathlib import Path

from clrt.errors import explain_missing_extra
from clrt.runtime.profiling.timings import Timings
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import atomic_write


@dataclass(frozen=True)
class Profile(Timings):
    """Timings of a model's runs, from `Model.profile`; `print` shows them as tables."""

    def save_trace(self, path: str | Path) -> None:
        """Writes the profile as a trace file for ui.perfetto.dev or chrome://tracing."""
        from clrt.runtime.profiling.trace import trace_text

        _write(path, trace_text(self))

    def save_html(self, path: str | Path) -> None:
        """Writes the profile as one HTML page, which needs no network and no other file."""
        from clrt.runtime.profiling.page import page_text

        _write(path, page_text(self))

    def __str__(self) -> str:
        with explain_missing_extra("The text of a profile"):
            from clrt.runtime.profiling.tables import tables_text

        return tables_text(self)


def _write(path: str | Path, text: str) -> None:
    with atomic_write(Path(path)) as stream:
        stream.write(text.encode())
