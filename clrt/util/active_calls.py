"""Function calls in progress, and threads that wait for them: state that an exception cannot tear.

The handler of a signal, such as Ctrl-C's, may raise between any two instructions of the main
thread: in a `finally`, in `__exit__`, in a lock's `__enter__`. So no cleanup is certain to run.
Shared state is therefore owned by a `ActiveCall`. It is free again once the call's frame has ended,
whether or not anything ran to say so, and who finds it so repairs what the call left.
"""

from __future__ import annotations

import sys
from collections import deque
from threading import Lock, RLock, get_ident
from types import FrameType
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

# On Windows Ctrl-C does not end a wait without an end.
LOOK_S = 0.5


class ActiveCall:
    """The call of the function that makes this, as the owner of state.

    It keeps the frame alive until `end`, or until it is seen to be over.

    Attributes:
        thread: Identifier of the thread that it runs in.
    """

    __slots__ = ("_frame", "thread")

    def __init__(self) -> None:
        self._frame: FrameType | None = sys._getframe(1)
        self.thread = get_ident()

    @property
    def is_over(self) -> bool:
        """Whether the function has returned or was left by an exception."""
        frame = self._frame
        if frame is None:
            return True
        try:
            frame.clear()  # refused while it executes, in whatever thread or greenlet
        except RuntimeError:
            return False
        self._frame = None
        return True

    def end(self) -> None:
        """Counts as over from now on."""
        self._frame = None


class RecencyDict(dict[K, V]):
    """A dict in the order of use, the longest unused first.

    In the midst of `OrderedDict`'s methods, keys' own `__hash__` and `__eq__` run: what they raise
    leaves its order and its items at odds. Here an item is there in whole, or not at all.
    """

    def use(self, key: K) -> V | None:
        """The value of a key, which is now the one used last; None if there is none."""
        value = self.pop(key, None)
        if value is not None:
            self[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key, which is now the one used last."""
        self.pop(key, None)
        self[key] = value

    def pop_oldest(self) -> V:
        """Takes the value out that is longest unused.

        Raises:
            KeyError: There is none.
        """
        for key in self:
            return self.pop(key)
        raise KeyError("empty")


class Waiters:
    """Wakes the threads that wait for a change.

    `threading.Condition` is written in Python: an exception in its midst keeps its lock, or gives
    one up twice. Here a thread waits without the lock that guards what it waits for:

        with lock:
            if there is what it needs: take it
            ticket = waiters.enter()
        ticket.acquire(timeout=...)  # then it looks again

    Use timeouts: a wake-up may be lost with the thread that was to give it.
    """

    def __init__(self) -> None:
        self._tickets: deque[Lock] = deque()

    def enter(self) -> Lock:
        """A lock that can be acquired after the next `wake`."""
        ticket = Lock()
        ticket.acquire()
        self._tickets.append(ticket)
        return ticket

    def wake(self) -> None:
        """Wakes all."""
        while self._tickets:
            try:
                ticket = self._tickets.popleft()
            except IndexError:  # another thread took the last one
                return
            ticket.release()


class Turns:
    """Lets one call at a time use something.

    Attributes:
        is_torn: Whether an exception broke off the last call that had its turn. Who has the next
            one repairs what it left, and then sets this to false.
    """

    def __init__(self) -> None:
        self.is_torn = False
        self._lock = RLock()
        self._waiters = Waiters()
        self._holder: ActiveCall | None = None

    def try_take(self, call: ActiveCall) -> bool:
        """Whether a call has its turn now; it is never waited for."""
        with self._lock:
            if self._holder is not None:
                if not self._holder.is_over:
                    return False
                self.is_torn = True
            self._holder = call
            return True

    def take(self, call: ActiveCall) -> None:
        """Returns once a call has its turn."""
        while True:
            ticket = self._waiters.enter()
            if self.try_take(call):
                return
            ticket.acquire(timeout=LOOK_S)

    @property
    def is_left(self) -> bool:
        """Whether the last turn was broken off, and nobody has repaired what it left."""
        return self.is_torn or (self._holder is not None and self._holder.is_over)

    def give_back(self) -> None:
        """Ends the turn of the call that has it, which has left everything whole."""
        self._holder = None
        self._waiters.wake()

    def enter(self) -> Lock:
        """A lock that can be acquired after the next turn ends, or `wake`."""
        return self._waiters.enter()

    def wake(self) -> None:
        """Has all that wait look again."""
        self._waiters.wake()
