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
    """Where an item works.

    Attributes:
        device: The index of the device.
        work: A folder for what is made on the way, which stays between calls.
        most_s: Seconds after which the item's process is ended.
        found: What items before it found, by stage and item.
    """

    device: int
    work: Path
    most_s: float
    found: dict[str, dict[str, Found]]


@dataclass(frozen=True)
class Item:
    """Something to find out, in a process of its own.

    Attributes:
        run: Gives what JSON takes.
        seconds: What it takes at most, but for a hang.
    """

    stage: str
    name: str
    run: Callable[[Place], Found]
    seconds: float = 240.0


@dataclass
class State:
    """The file, and how much of the time is left.

    Attributes:
        found: By stage and item; an item that failed has an "error".
        left_out: Items for which there was no time in this call.
    """

    path: Path
    budget_s: float
    found: dict[str, dict[str, Found]] = field(default_factory=dict)
    left_out: list[Item] = field(default_factory=list)
    _start: float = field(default_factory=time.perf_counter)

    @classmethod
    def read(cls, path: Path, budget_s: float) -> State:
        """What is in the file, if there is one."""
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return cls(path, budget_s, found)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self.budget_s - (time.perf_counter() - self._start)

    def run(self, item: Item, device: int, work: Path, until_s: float) -> None:
        """Finds an item, where it is not found yet and there is time.

        Args:
            until_s: What must be left of the budget behind it.
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
