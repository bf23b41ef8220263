"""What the lab has found so far, in a file, so that another call goes on from there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmark.turns import TooLongError, WorkerError, call_apart

Found: TypeAlias = "dict[str, Any]"
# Less is not worth the start of a process.
_LEAST_S = 5.0


@dataclass(frozen=True)
class Place:
    """Environment of an item.

    Attributes:
        device: The index of the device.
        work: Folder for intermediate files, kept between calls.
        most_s: Seconds after which the item's process is ended.
        found: Results of earlier items, by stage and item.
    """

    device: int
    work: Path
    most_s: float
    found: dict[str, dict[str, Found]]


@dataclass(frozen=True)
class Item:
    """A measurement, run in a process of its own.

    Attributes:
        run: Returns the result as JSON values.
        seconds: Maximum expected time in seconds, hangs aside.
    """

    stage: str
    name: str
    run: Callable[[Place], Found]
    seconds: float = 240.0


@dataclass
class State:
    """Results file, and the remaining time budget.

    Attributes:
        found: Results by stage and item; a failed item has an "error".
        left_out: Items skipped in this call for lack of time.
    """

    path: Path
    budget_s: float
    found: dict[str, dict[str, Found]] = field(default_factory=dict)
    left_out: list[Item] = field(default_factory=list)
    _start: float = field(default_factory=time.perf_counter)

    @classmethod
    def read(cls, path: Path, budget_s: float) -> State:
        """Reads the file, if it exists."""
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return cls(path, budget_s, found)

    @property
    def left_s(self) -> float:
        """Returns the remaining seconds of the budget."""
        return self.budget_s - (time.perf_counter() - self._start)

    def run(self, item: Item, device: int, work: Path, until_s: float) -> None:
        """Runs an item if it has no result yet and there is time.

        Args:
            until_s: Seconds of the budget that must remain after it.
        """
        stage = self.found.setdefault(item.stage, {})
        if item.name in stage:
            return
        left = self.left_s - until_s
        if left < _LEAST_S:
            self.left_out.append(item)
            return
        most = min(left, item.seconds)
        try:
            place = Place(device, work, most, self.found)
            made: Found = call_apart(item.run, place, most_s=most + _LEAST_S)
        except TooLongError as error:
            made = {"error": str(error), "timed_out": True}
        except WorkerError as error:
            made = {"error": str(error).strip().rpartition("\n")[2][-400:]}
        if made.get("timed_out") and most < item.seconds:  # the next call has more time
            self.left_out.append(item)
            return
        stage[item.name] = made
        self.path.write_text(json.dumps(self.found, indent=1) + "\n", "utf-8")
