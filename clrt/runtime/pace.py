"""Long runs: they can end between two launches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from clrt.errors import ClrtError
from clrt.runtime.connection import Lane
from clrt.runtime.driver import cl

# A run that takes longer than this is one in whose midst somebody may want to stop it.
LONG_S = 0.05
# What one launch is to take at most on a device that may have a watchdog; and in the background,
# where the desktop draws between two.
LAUNCH_S = 0.5
BACKGROUND_LAUNCH_S = 0.05
# What is in the queue takes about twice this, and in the background about this.
_PART_S = 0.01
# For how long a run gives way before each part, or for what the part takes, if that is more: long
# ones go on beside any number of short ones.
_GIVE_S = 0.02
_BACKGROUND_GIVE_S = 0.5


class Stop:
    """Whether runs are to end before their time.

    Attributes:
        requested: Set by another thread than those that run.
    """

    def __init__(self, error: Callable[[], ClrtError], outer: Stop | None = None) -> None:
        self.requested = False
        self._error = error
        self._outer = outer

    def check(self) -> None:
        """Ends the run where somebody asked for it.

        Raises:
            ClrtError: Somebody did.
        """
        if self._outer is not None:
            self._outer.check()
        if self.requested:
            raise self._error()


NEVER = Stop(ClrtError)


class Pace:
    """Keeps what is in a queue short; whoever enqueues tells each launch.

    Launches come in parts of about `_PART_S`, found while they run from what each costs in any one
    unit. While one part runs the next is in the queue, so that the device never waits; before a
    third there is a wait of that length, after which a signal's handler runs, `stop` is asked, and
    other runs go first. Each part is waited for in the background, and where a launch takes longer
    than a part is to take: the wait is little beside it.
    """

    def __init__(
        self,
        lane: Lane,
        stop: Stop,
        give_way: Callable[[float], bool],
        rate: float,
    ) -> None:
        """Takes:

        give_way: Waits for others, for at most that many seconds; whether there were any.
        rate: Seconds for each unit of cost, as far as they are known.
        """
        self._lane = lane
        self._stop = stop
        self._give_way = give_way
        self._background = lane.background
        self._rate = rate
        self._most = self._cost = 0
        self._one_by_one = lane.background
        self._before: cl.Event | None = None
        self._began = time.perf_counter()

    def pieces(self, cost: int, most_s: float) -> int:
        """In how many launches work of a cost takes no more than so long in each."""
        return max(1, math.ceil(self._rate * cost / most_s))

    def launched(self, event: cl.Event, cost: int) -> None:
        """Notes a launch, and waits where enough is in the queue.

        Raises:
            ClrtError: `stop` was requested.
        """
        self._cost += cost
        if self._cost < self._most:
            return
        self._lane.queue.flush()
        if self._one_by_one:
            self._lane.wait(event)
        elif self._before is not None:
            self._lane.wait(self._before)
        self._stop.check()
        seconds = time.perf_counter() - self._began
        self._one_by_one = self._background or seconds > 2 * _PART_S
        if self._cost:
            self._rate = max(seconds / self._cost, self._rate / 2)
        if self._give_way(_BACKGROUND_GIVE_S if self._background else max(_GIVE_S, seconds)):
            self._stop.check()
        elif seconds < _PART_S / 2:
            self._most = 2 * max(self._most, self._cost)
        elif seconds > _PART_S:
            self._most = int(self._most * _PART_S / seconds)
        self._before, self._cost, self._began = event, 0, time.perf_counter()
