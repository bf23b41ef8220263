"""Profile of a session: times of its runs as trace events for Chrome and Perfetto."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from typing import Any


class SessionTrace:
    """Collects events of a session for its profile, and writes them to a trace file.

    Attributes:
        start_ns: Start of profiling, in nanoseconds of `time.perf_counter_ns`.
    """

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.perf_counter_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []
        self._saved = False

    def add(self, name: str, start_ns: int, **args: Any) -> None:
        """Records an event that ends now.

        Args:
            name: Name of the event.
            start_ns: Time at which the event began, from `time.perf_counter_ns`.
            args: Data to display with the event, by name.
        """
        self._events.append(
            {
                "cat": "Session",
                "pid": os.getpid(),
                "tid": threading.get_ident(),
                "ts": (start_ns - self.start_ns) // 1000,
                "dur": (time.perf_counter_ns() - start_ns) // 1000,
                "ph": "X",
                "name": name,
                "args": args,
            }
        )

    def add_run(self, start_ns: int, feeds: Mapping[str, Any]) -> None:
        """Records a run that ends now, with the shapes of its inputs.

        Args:
            start_ns: Time at which the run began, from `time.perf_counter_ns`.
            feeds: Inputs of the run by name.
        """
        shapes = {n: list(x.shape) for n, x in feeds.items() if hasattr(x, "shape")}
        self.add("model_run", start_ns, shapes=shapes)

    def save(self) -> str:
        """Writes the trace file and returns its name; later calls write nothing and return ""."""
        if self._saved:
            return ""
        self._saved = True
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        name = f"{self._prefix}_{stamp}_{self.start_ns // 1_000_000 % 1000:03}.json"
        with open(name, "w", encoding="utf-8") as file:
            json.dump(self._events, file, indent=1)
        return name
