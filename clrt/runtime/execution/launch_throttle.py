"""Limits the work in a queue during long runs, so that they can be cancelled between launches."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from clrt.errors import ClrtError
from clrt.runtime.opencl.device_context import RunQueue
from clrt.runtime.opencl.driver import cl

# Estimated duration of a run, in seconds, above which it is enqueued in parts, so that it can be
# cancelled.
LONG_S = 0.05
# Maximum duration of one launch, in seconds: in the foreground, limited by the watchdog of a
# device; and in the background, where the desktop draws between two launches.
LAUNCH_S = 0.5
BACKGROUND_LAUNCH_S = 0.05
# Target duration of a part, in seconds. The queue holds at most two parts (one in the background),
# or a single longer launch.
_PART_S = 0.01
# Maximum wait, in seconds, for other runs before each part; in the foreground it is at least the
# duration of the previous part. The bound lets long runs progress beside any number of short ones.
_GIVE_WAY_S = 0.02
_BACKGROUND_GIVE_WAY_S = 0.5


class CancellationToken:
    """Flag that cancels runs between two launches.

    Attributes:
        requested: Whether cancellation was requested; any thread may set it.
    """

    def __init__(
        self, error: Callable[[], ClrtError], outer: CancellationToken | None = None
    ) -> None:
        """Creates a token for which cancellation is not requested.

        Args:
            error: Creates the error that `check` raises.
            outer: Token whose cancellation also cancels this one.
        """
        self.requested = False
        self._error = error
        self._outer = outer

    def check(self) -> None:
        """Raises an error if cancellation was requested.

        Raises:
            ClrtError: Cancellation was requested, of this token or of `outer`.
        """
        if self._outer is not None:
            self._outer.check()
        if self.requested:
            raise self._error()


NEVER = CancellationToken(ClrtError)


class LaunchThrottle:
    """Limits the work in a queue during a long run.

    The caller calls `make_room` before it enqueues a launch, and `launched` after. Launches are
    grouped into parts of about `_PART_S` seconds. A launch's duration is estimated from its cost
    (in any unit) and the time per cost of earlier parts. While one part runs, the next is in the
    queue, so that the device never idles. Before a third part is enqueued, the host waits for the
    first. The host then lets signal handlers run, checks `stop`, and gives way to other runs. A
    launch that takes longer than two parts is alone in the queue, and so is each part of a
    background run.
    """

    def __init__(
        self,
        lane: RunQueue,
        stop: CancellationToken,
        give_way: Callable[[float], bool],
        rate: float,
    ) -> None:
        """Creates a throttle for one run.

        Args:
            lane: Queue of the run.
            stop: Token that cancels the run.
            give_way: Waits for other runs, for at most its argument in seconds; returns whether
                there were any.
            rate: Estimated seconds per unit of cost.
        """
        self._lane = lane
        self._stop = stop
        self._give_way = give_way
        self._rate = rate
        self._limit_s = _PART_S if lane.background else 2 * _PART_S
        self._parts: deque[tuple[cl.Event, int]] = deque()
        self._last: cl.Event | None = None
        self._cost = 0
        self._began = time.perf_counter()

    def pieces(self, cost: int, most_s: float) -> int:
        """Returns the number of launches to split one launch into, so none exceeds `most_s`.

        Args:
            cost: Cost of the launch before splitting, in the unit of the constructor's `rate`.
            most_s: Maximum duration of a launch in seconds.
        """
        return max(1, math.ceil(self._rate * cost / most_s))

    def make_room(self, cost: int) -> None:
        """Waits until the queue has room for another launch.

        Args:
            cost: Cost of that launch, in the unit of the constructor's `rate`.

        Raises:
            ClrtError: `stop` was requested.
        """
        if self._last is not None and (self._cost + cost) * self._rate > _PART_S:
            self._lane.queue.flush()
            self._parts.append((self._last, self._cost))
            self._last, self._cost = None, 0
        while self._parts and (sum(c for _, c in self._parts) + cost) * self._rate > self._limit_s:
            self._wait(*self._parts.popleft())

    def launched(self, event: cl.Event, cost: int) -> None:
        """Records a launch that was enqueued.

        Args:
            event: Event of the launch.
            cost: Cost of the launch, in the unit of the constructor's `rate`.
        """
        if self._last is None and not self._parts:
            self._began = time.perf_counter()
        self._last, self._cost = event, self._cost + cost

    def idle(self) -> None:
        """Records that the queue is empty, as after a host step."""
        self._parts.clear()
        self._last, self._cost = None, 0

    def _wait(self, event: cl.Event, cost: int) -> None:
        """Waits until a part (a group of launches) has run; updates the rate, then gives way.

        Args:
            event: Event of the part's last launch.
            cost: Sum of the costs of the part's launches, in the unit of the constructor's `rate`.
        """
        self._lane.wait(event)
        self._stop.check()
        seconds = time.perf_counter() - self._began
        if cost:
            self._rate = max(seconds / cost, self._rate / 2)
        background = self._lane.background
        if self._give_way(_BACKGROUND_GIVE_WAY_S if background else max(_GIVE_WAY_S, seconds)):
            self._stop.check()
        self._began = time.perf_counter()
