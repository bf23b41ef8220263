"""Long runs: they can end between two launches."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from clrt.errors import ClrtError
from clrt.runtime.opencl.device_context import RunQueue
from clrt.runtime.opencl.driver import cl

# A run that takes longer than this is one in whose midst somebody may want to stop it.
LONG_S = 0.05
# What one launch is to take at most on a device that may have a watchdog; and in the background,
# where the desktop draws between two.
LAUNCH_S = 0.5
BACKGROUND_LAUNCH_S = 0.05
# What is in the queue takes twice this at most, and in the background this; or it is one launch.
_PART_S = 0.01
# For how long a run gives way before each part, or for what the part takes, if that is more: long
# ones go on beside any number of short ones.
_GIVE_S = 0.02
_BACKGROUND_GIVE_S = 0.5


class CancellationToken:
    """Whether runs are to end before their time.

    Attributes:
        requested: Set by another thread than those that run.
    """

    def __init__(
        self, error: Callable[[], ClrtError], outer: CancellationToken | None = None
    ) -> None:
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


NEVER = CancellationToken(ClrtError)


class LaunchThrottle:
    """Keeps what is in a queue short; whoever enqueues tells each launch.

    Launches come in parts of about `_PART_S`, by what each costs in any one unit and how long those
    before took. While one part runs the next is in the queue, so that the device never waits;
    before a third there is a wait for the first, after which a signal's handler runs, `stop` is
    asked, and other runs go first. A launch that takes longer than two parts is alone in the queue,
    and so is each part in the background.
    """

    def __init__(
        self,
        lane: RunQueue,
        stop: CancellationToken,
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
        self._rate = rate
        self._most_s = _PART_S if lane.background else 2 * _PART_S
        self._parts: deque[tuple[cl.Event, int]] = deque()
        self._last: cl.Event | None = None
        self._cost = 0
        self._began = time.perf_counter()

    def pieces(self, cost: int, most_s: float) -> int:
        """In how many launches work of a cost takes no more than so long in each."""
        return max(1, math.ceil(self._rate * cost / most_s))

    def make_room(self, cost: int) -> None:
        """Waits until there is room in the queue for a launch of a cost.

        Raises:
            ClrtError: `stop` was requested.
        """
        if self._last is not None and (self._cost + cost) * self._rate > _PART_S:
            self._lane.queue.flush()
            self._parts.append((self._last, self._cost))
            self._last, self._cost = None, 0
        while self._parts and (sum(c for _, c in self._parts) + cost) * self._rate > self._most_s:
            self._wait(*self._parts.popleft())

    def launched(self, event: cl.Event, cost: int) -> None:
        """Notes a launch."""
        if self._last is None and not self._parts:
            self._began = time.perf_counter()
        self._last, self._cost = event, self._cost + cost

    def idle(self) -> None:
        """Notes that the queue was waited for."""
        self._parts.clear()
        self._last, self._cost = None, 0

    def _wait(self, event: cl.Event, cost: int) -> None:
        """Waits for the end of a part, and for other runs."""
        self._lane.wait(event)
        self._stop.check()
        seconds = time.perf_counter() - self._began
        if cost:
            self._rate = max(seconds / cost, self._rate / 2)
        background = self._lane.background
        if self._give_way(_BACKGROUND_GIVE_S if background else max(_GIVE_S, seconds)):
            self._stop.check()
        self._began = time.perf_counter()
