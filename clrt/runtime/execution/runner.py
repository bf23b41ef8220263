"""Runs the graph of a model: on this thread, or on their way while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import RLock, get_ident
from typing import Any

from clrt.errors import CancelledError, ClrtError, InputError
from clrt.ir.graph import Graph
from clrt.ops.base import RuntimeValue
from clrt.runtime.execution.arena_pool import MOST_ARENAS, ArenaPool
from clrt.runtime.execution.branch_specializer import Branches
from clrt.runtime.execution.graph_run import GraphRun
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.planner import Planner
from clrt.runtime.execution.profiler import Recorder
from clrt.runtime.execution.run import Enqueued, Pending
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.active_calls import ActiveCall

# How long `close` waits for runs in other threads.
_CLOSE_S = 1.0
# How often a run that waits for others looks whether it was stopped.
_LOOK_S = 0.05


def _closed() -> ClrtError:
    return ClrtError("The model was closed during the run; load it again to run it.")


def _cancelled() -> ClrtError:
    return CancelledError("The run was cancelled.")


def _readers(feeds: Mapping[str, RuntimeValue], donated: Collection[str]) -> list[Future[Any]]:
    """The runs on threads of their own that read what is donated."""
    tensors = [feeds[name] for name in donated]
    return [run for t in tensors if isinstance(t, DeviceTensor) for run in tuple(t.readers)]


class Runner:
    """The runs of a model.

    Attributes:
        planner: Makes and keeps its plans.
        room: Its memory on the device.
        stop: Ends all of its runs.
        check: What must hold before there is any result; raises a ModelError.
        lock: Held while what the runs share is changed, never while the device computes.
    """

    def __init__(
        self,
        graph: Graph,
        rewrite: Callable[[Graph], object],
        session: DeviceSession,
        strict: bool,
        own_limit: int | None,
        background: bool,
    ) -> None:
        """
        Args:
            rewrite: Optimises such a graph in place, as `graph` was.
        """
        caps = session.device.caps
        limit = caps.global_mem_bytes if own_limit is None else own_limit
        self.lock: Any = RLock()
        self.planner = Planner(graph, caps, strict, limit, rewrite)
        self.room = ArenaPool(session, self.planner, own_limit, self.lock, background)
        self.stop = CancellationToken(_closed)
        self.check: Callable[[], None] | None = None
        self._branches = Branches(graph, rewrite, self.planner.adopt)
        self._session = session
        self._calls: list[ActiveCall] = []
        self._workers: ThreadPoolExecutor | None = None

    def run(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str] = (),
        recorder: Recorder | None = None,
        stop: CancellationToken | None = None,
    ) -> Mapping[str, RuntimeValue]:
        """The outputs of the model, computed on this thread.

        Args:
            wanted: Names of the outputs, and whether each stays on the device.
            donated: Names of inputs whose memory may be used up.
            recorder: Is told when the steps ran.
            stop: Ends the run; by default what ends all.

        Raises:
            InputError: The model is closed, or a number is out of range.
            ClrtError: As `Model.run`.
        """
        return self._run(
            feeds, wanted, donated, stop or self.stop, _readers(feeds, donated), recorder
        )

    def _run(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str],
        stop: CancellationToken,
        before: Collection[Future[Any]],
        recorder: Recorder | None = None,
    ) -> Mapping[str, RuntimeValue]:
        """The outputs of the model.

        Args:
            before: Runs that end before this one begins. They were all submitted before it, so
                that no two wait for each other.
        """
        call = self._enter(ActiveCall(), "profile" if recorder else "run")
        try:
            while before and wait(before, _LOOK_S).not_done:
                stop.check()
            task, feeds = self._task(feeds, stop, call, recorder)
            found = task.outputs(feeds, wanted, donated)
            if self.check is not None:
                self.check()
                self.check = None
        except BaseException as error:
            self._end(call, error)
            raise
        self._leave(call)
        return found

    def submit(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str] = (),
        in_worker: bool = False,
    ) -> tuple[Pending, CancellationToken]:
        """A run on its way, and what ends it.

        A short one is enqueued on this thread; one with work for the host in its midst, or with
        waits, goes on in another.

        Args:
            in_worker: Whether any does: this thread plans and waits for nothing then.

        Raises:
            InputError: The model is closed.
        """
        stop = CancellationToken(_cancelled, self.stop)
        call = self._enter(ActiveCall(), "run")
        try:
            run = self._begin(call, stop, feeds, wanted, donated, in_worker)
        except BaseException as error:
            self._end(call, error)
            raise
        self._leave(call)
        return run, stop

    def _begin(
        self,
        call: ActiveCall,
        stop: CancellationToken,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str],
        in_worker: bool,
    ) -> Pending:
        """A run on its way."""
        before = _readers(feeds, donated)
        if not in_worker and not before:
            task, needed = self._task(feeds, stop, call)
            begun = task.begin(needed, wanted, donated)
            if begun is not None:
                there, execution = begun
                return Enqueued(execution, there, task.graph)
        with self.lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(MOST_ARENAS, "clrt-run")
            worker = self._workers.submit(self._run, feeds, wanted, donated, stop, before)
        for feed in feeds.values():
            if isinstance(feed, DeviceTensor):
                feed.readers.add(worker)
                worker.add_done_callback(feed.readers.discard)  # it keeps the results
        return worker

    def _task(
        self,
        feeds: Mapping[str, RuntimeValue],
        stop: CancellationToken,
        call: ActiveCall,
        recorder: Recorder | None = None,
    ) -> tuple[GraphRun, Mapping[str, RuntimeValue]]:
        """A run of the graph that its inputs choose, and those of them that this takes."""
        with self.lock:
            graph, feeds = self._branches.chosen(feeds)
        return GraphRun(self.planner, self.room, graph, stop, call, recorder), feeds

    def trim(self) -> None:
        """Frees what runs have left; see `Model.trim`.

        Raises:
            InputError: The model is closed.
        """
        call = self._enter(ActiveCall(), "trim")
        try:
            self.room.release(keeps_weights=True)
            with self.lock:
                self.planner.forget()
        except BaseException as error:
            self._end(call, error)
            raise
        self._leave(call)

    def recover(self) -> None:
        """Repairs what calls have left that an exception broke off, if there are any.

        What they had on the device ends, and what runs leave for later ones is forgotten: plans
        and arenas, of which any may be half made. Weights are each there in whole, or not at all.
        """
        if any(call.is_over for call in tuple(self._calls)):
            self._repair()

    def _repair(self) -> None:
        over = [call for call in tuple(self._calls) if call.is_over]
        self.room.recover()
        with self.lock:
            self.planner.forget()
            self._calls = [call for call in self._calls if call not in over]
        self.room.ends.wake()

    def _end(self, call: ActiveCall, error: BaseException) -> None:
        """Ends a call that failed. One that was broken off is repaired; where an exception breaks
        this off, too, the next call does it.
        """
        if isinstance(error, ClrtError):
            self._leave(call)
            return
        call.end()
        self._repair()
        self._leave(None)

    def _enter(self, call: ActiveCall, action: str) -> ActiveCall:
        """Begins a call; nothing is freed until `_leave`.

        Raises:
            InputError: The model is closed.
        """
        if self._calls:
            self.recover()
        with self.lock:
            if self.stop.requested:
                raise InputError(f"This model is closed; load it again to {action} it.")
            self._calls.append(call)
        return call

    def _leave(self, call: ActiveCall | None) -> None:
        with self.lock:
            if call is not None:
                self._calls.remove(call)
                call.end()
            if not self.stop.requested:
                return
            frees = not self._calls
        self.room.ends.wake()
        if frees:
            self._free()

    def close(self) -> None:
        """Ends the runs and frees the device memory; see `Model.close`."""
        self.stop.requested = True
        if not self._session.connection.usable:
            return
        self.recover()
        own, end = get_ident(), time.monotonic() + _CLOSE_S
        while True:
            with self.lock:
                # In a signal's handler the run of this thread goes on after it.
                others = any(call.thread != own for call in self._calls)
                frees = not self._calls
                ticket = self.room.ends.enter()
            if not others or time.monotonic() > end:
                break
            ticket.acquire(timeout=_LOOK_S)
        if frees:
            self._free()

    def _free(self) -> None:
        self.room.await_detached()  # without the lock, which their end takes
        self.room.close()
        if self._workers is not None:
            self._workers.shutdown(wait=False)
            self._workers = None

    def after_fork_in_child(self) -> None:
        """No other thread is at the model there."""
        self.lock = self.room.lock = RLock()
        self._calls = []
        self._workers = None
        self.room.forget_runs()
