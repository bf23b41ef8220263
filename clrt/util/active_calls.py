"""Locks and wake-ups that stay consistent if a signal handler raises at any instruction.

A signal handler, such as Python's for Ctrl-C, may raise between any two instructions of the main
thread: in a `finally`, in `__exit__`, in a lock's `__enter__`. So no cleanup is certain to run.
Shared state is therefore owned by an `ActiveCall`, which watches the frame of a function call. Once
the frame has ended, the state counts as released, even if no cleanup ran. The next owner repairs
the state.
"""

from __future__ import annotations

import sys
from collections import deque
from threading import Lock, RLock, get_ident
from types import FrameType
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Interval in seconds at which a waiting thread wakes: on Windows, Ctrl-C does not interrupt a wait
# without a timeout.
LOOK_S = 0.5


class ActiveCall:
    """The running call of the function that creates this object, used as the owner of a lock.

    The object keeps the call's frame alive until `end`, or until `is_over` is found to be True.

    Attributes:
        thread: Identifier of the thread that the call runs in.
    """

    __slots__ = ("_frame", "thread")

    def __init__(self) -> None:
        self._frame: FrameType | None = sys._getframe(1)
        self.thread = get_ident()

    @property
    def is_over(self) -> bool:
        """Whether the call that created this object has returned or raised, or `end` was called."""
        frame = self._frame
        if frame is None:
            return True
        try:
            frame.clear()  # raises while the frame executes, in any thread or greenlet
        except RuntimeError:
            return False
        self._frame = None
        return True

    def end(self) -> None:
        """Marks the call that created this object as over, before it returns."""
        self._frame = None


class RecencyDict(dict[K, V]):
    """A dict that keeps its items in order of use, least recently used first.

    `OrderedDict` calls the keys' `__hash__` and `__eq__` in the middle of its methods: an exception
    raised there leaves its order and its items inconsistent. In this class an item is either
    complete or absent.
    """

    def use(self, key: K) -> V | None:
        """Returns the value of a key and marks it most recently used; None if the key is absent."""
        value = self.pop(key, None)
        if value is not None:
            self[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Sets the value of a key and marks it most recently used."""
        self.pop(key, None)
        self[key] = value

    def pop_oldest(self) -> V:
        """Removes and returns the least recently used value.

        Raises:
            KeyError: The dict is empty.
        """
        for key in self:
            return self.pop(key)
        raise KeyError("empty")


class Waiters:
    """A condition variable that is safe if a signal handler raises.

    `threading.Condition` is written in Python: an exception inside it leaves its lock acquired, or
    releases it twice. Here a thread waits without holding the lock of the condition:

        with lock:
            if condition: return
            ticket = waiters.enter()
        ticket.acquire(timeout=...)  # then test the condition again

    Use timeouts: a wake-up is lost if the thread that should send it dies.
    """

    def __init__(self) -> None:
        self._tickets: deque[Lock] = deque()

    def enter(self) -> Lock:
        """Returns a ticket: an acquired lock, whose `acquire` blocks until the next `wake`."""
        ticket = Lock()
        ticket.acquire()
        self._tickets.append(ticket)
        return ticket

    def wake(self) -> None:
        """Wakes all waiting threads, by releasing their tickets."""
        while self._tickets:
            try:
                ticket = self._tickets.popleft()
            except IndexError:  # another thread popped the last ticket
                return
            ticket.release()


class CallMutex:
    """A mutex owned by an `ActiveCall`: released at the latest when the owner's call ends.

    Attributes:
        is_torn: Whether the previous owner ended without `give_back`, because of an exception. The
            next owner repairs the shared state, then sets this to False.
    """

    def __init__(self) -> None:
        self.is_torn = False
        self._lock = RLock()
        self._waiters = Waiters()
        self._holder: ActiveCall | None = None

    def try_take(self, call: ActiveCall) -> bool:
        """Acquires the mutex for `call` if it is free; returns False, without waiting, if not."""
        with self._lock:
            holder = self._holder
            if holder is not None:
                if not holder.is_over:
                    return False
                # `give_back` does not take the lock: the holder may have called it meanwhile.
                self.is_torn |= self._holder is holder
            self._holder = call
            return True

    def take(self, call: ActiveCall) -> None:
        """Acquires the mutex for `call`; waits as long as another call owns it."""
        while True:
            ticket = self._waiters.enter()
            if self.try_take(call):
                return
            ticket.acquire(timeout=LOOK_S)

    @property
    def is_left(self) -> bool:
        """Whether an owner ended without `give_back` and no next owner has repaired the state."""
        holder = self._holder
        return self.is_torn or (holder is not None and holder.is_over and self._holder is holder)

    def give_back(self) -> None:
        """Releases the mutex and wakes all waiting threads.

        The owner calls this once the shared state is consistent.
        """
        self._holder = None
        self._waiters.wake()

    def enter(self) -> Lock:
        """Returns an acquired lock, whose `acquire` blocks until the next `give_back` or `wake`."""
        return self._waiters.enter()

    def wake(self) -> None:
        """Wakes all waiting threads, which try to acquire the mutex again."""
        self._waiters.wake()
