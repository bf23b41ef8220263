"""`ArenaPool`: a model's weights and arenas on its device, within the memory limits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from itertools import zip_longest
from threading import get_ident
from typing import Any, cast
from weakref import WeakSet, WeakValueDictionary

from clrt.errors import OutOfMemoryError
from clrt.plan.plan import Plan
from clrt.plan.template import InstantiatedPlan, PlanTemplate
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.execution import Execution, StepRecorder
from clrt.runtime.execution.external_buffers import Feed
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.planner import PlannedSegment, Planner
from clrt.runtime.execution.refusals import no_room, over_budget
from clrt.runtime.opencl.arena_memory import ArenaMemory
from clrt.runtime.opencl.device_context import RunQueue
from clrt.runtime.opencl.ledger import BUDGET, Ledger
from clrt.runtime.opencl.os_memory import return_freed
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.weight_store import WeightStore
from clrt.util.active_calls import ActiveCall, Waiters

# Maximum number of arenas of a model, and so of its runs on the device at a time: one computes
# while the next is enqueued.
MAX_ARENAS = 2
# Timeout of waits in seconds, which then check again: on Windows Ctrl-C cannot interrupt a wait
# without a timeout.
_POLL_S = 0.5
# Minimum size of weights in bytes for which `close` returns freed heap to the system, which takes
# milliseconds.
_LARGE_BYTES = 8 << 20


class ArenaPool:
    """Assigns each execution an arena, within the memory limits of the model and of all models.

    Attributes:
        account: Ledger that counts and limits the model's device memory.
        weights: Constants of the model on the device, shared by its plans.
        lane: Queue of the model's runs.
        own_limit: Maximum bytes that the model may allocate; None for the device's memory.
        session: Session of the device.
        lock: Lock of the model.
        ends: Wakes threads that wait for the end of a run.
        used_s: Time at which the last run began, in seconds of `time.perf_counter`.
    """

    def __init__(
        self,
        session: DeviceSession,
        planner: Planner,
        own_limit: int | None,
        lock: Any,
        background: bool,
    ) -> None:
        """Creates an empty pool with a queue of its own.

        Args:
            session: Session of the device.
            planner: Creates and caches the model's plans; has the effective memory limit.
            own_limit: Maximum bytes that the model may allocate; None for the device's memory.
            lock: Lock of the model, an RLock.
            background: Whether the model's runs give way to runs of other models.
        """
        limit_name = "the device" if own_limit is None else "memory_limit"
        self.account = Ledger(planner.limit, limit_name)
        self.weights = WeightStore(session, self.account)
        self.lane = session.new_lane(background)
        self.own_limit = own_limit
        self.session = session
        self._planner = planner
        self.lock = lock
        self.ends = Waiters()
        self._closed = False
        # All arenas. `_idle` and `_in_use` filter them by whether a run uses them.
        self._arenas: list[ArenaMemory] = []
        self.used_s = 0.0
        self._bound: WeakSet[BoundPlan] = WeakSet()
        BUDGET.enter(self)
        # Last plan bound per template and arena: the next plan reuses its kernels.
        self._donors: WeakValueDictionary[tuple[PlanTemplate, ArenaMemory], BoundPlan] = (
            WeakValueDictionary()
        )

    @cached_property
    def _twin_lane(self) -> RunQueue:
        """Queue of the model's runs on the device's twin."""
        return self.session.new_lane(self.lane.background, on_twin=True)

    @property
    def _idle(self) -> list[ArenaMemory]:
        """Arenas of the model that no run uses and that a new run may use."""
        return [s for s in self._arenas if not s.in_use and not s.is_torn]

    @property
    def _in_use(self) -> dict[ArenaMemory, Execution]:
        """The unfinished execution of each arena in use."""
        return {s: cast(Execution, s.run) for s in self._arenas if s.in_use}

    def begin(
        self,
        stage: PlannedSegment,
        feeds: Mapping[str, Feed],
        outputs: Mapping[str, bool],
        stop: CancellationToken,
        recorder: StepRecorder | None,
        call: ActiveCall,
    ) -> Execution:
        """Creates an execution of a segment, after waiting for an arena and for memory.

        Args:
            stage: Segment to run.
            feeds: Array or device tensor per input of the segment, by name.
            outputs: Names of the requested outputs, and whether each stays on the device.
            stop: Token that cancels the run.
            recorder: Runs the steps for a profile; None for no profile.
            call: Call that handles the execution until it is detached.

        Raises:
            OutOfMemoryError: The segment exceeds the model's memory limit; or it exceeds the
                budget of all models, and no other run will free memory.
        """
        while True:
            changed = BUDGET.changes.enter() if BUDGET.limit is not None else None
            needed, lacking, epoch = 0, 0, BUDGET.epoch
            with self.lock:
                bound = self._acquire(stage)
                if bound is not None and not bound.ready:
                    needed = self._needed(stage, bound.slabs)
                    lacking = self._lacking(needed)
                if bound is not None and not lacking:
                    execution = Execution(
                        bound, feeds, outputs, recorder, stop, call, self._return_arena
                    )
                    if needed:
                        self.account.claim(execution, needed)
                        BUDGET.claim(execution, needed)
                    bound.slabs.run, self.used_s = execution, time.perf_counter()
                    return execution
                unattended = self._unattended()
                ticket = changed if lacking and changed is not None else self.ends.enter()
            if unattended is not None:
                unattended.await_end()
            elif not lacking:
                ticket.acquire(timeout=_POLL_S)
            elif not BUDGET.reclaim(needed, self):
                self._await_budget(stage, ticket, epoch)

    def _lacking(self, needed: int) -> int:
        """Returns by how many bytes `needed` exceeds the unused budget of all models.

        0 if `needed` fits, or if there is no budget.
        """
        if not needed or BUDGET.limit is None:
            return 0
        return int(max(needed - max(BUDGET.left, 0), 0))

    def _await_budget(self, stage: PlannedSegment, ticket: Any, epoch: object) -> None:
        """Waits until a run of this model or another ends, or for `_POLL_S`.

        Frees this model's own memory instead if no run is in progress.

        Args:
            stage: Segment for which the memory is needed.
            ticket: Waiter that the end of a run wakes.
            epoch: `BUDGET.epoch` read before the memory was found insufficient.

        Raises:
            OutOfMemoryError: There is no run to wait for, and nothing to free.
        """
        with self.lock:
            busy = any(not _is_own(e) for e in self._in_use.values())
            if not busy and not BUDGET.is_shared(self):
                if BUDGET.epoch is not epoch:  # a run that ended meanwhile may have freed memory
                    return
                if self.account.nbytes > 0 and not self._in_use:
                    self._free()
                    return
                raise over_budget(self._planner, stage)
        ticket.acquire(timeout=_POLL_S)

    @property
    def is_busy(self) -> bool:
        """Whether a run of another thread uses one of the model's arenas."""
        return any(not _is_own(e) for e in tuple(self._in_use.values()))

    def give_up(self, *, weights: bool) -> None:
        """Frees memory for another model; later runs allocate it again.

        Args:
            weights: True to free weights and arenas; does nothing while a run is in progress. False
                to free only the arenas that no run uses.
        """
        with self.lock:
            if not weights or not self._in_use:
                self._free(keeps_weights=not weights)

    def _acquire(self, stage: PlannedSegment) -> BoundPlan | None:
        """Returns the segment bound to an idle arena; None if a run has to end first.

        Prefers an arena that the segment is bound to already. The caller has to call
        `BoundPlan.bind` unless the result is `BoundPlan.ready`.

        Args:
            stage: The segment.

        Raises:
            OutOfMemoryError: The segment exceeds the model's memory limit, or this thread's own
                run is the only one to wait for.
        """
        for slabs in self._arenas:
            bound = stage.bound.get(slabs)
            if bound is not None and bound.ready and not slabs.in_use and not slabs.is_torn:
                return bound
        self._drop_torn()
        idle = self._idle
        if not idle and len(self._in_use) >= MAX_ARENAS:
            self._check_others(stage)
            return None
        known = (s for s in idle if s in stage.bound)
        slabs = next(known, None) or (idle[-1] if idle else self._new_arena())
        bound = stage.bound.get(slabs)
        if bound is None or not bound.ready:
            if not self._has_room(stage, slabs):
                if self._in_use:
                    self._check_others(stage)
                    return None
                self._free()
                slabs = self._new_arena()
            bound = stage.bound.get(slabs)
            if bound is None:
                bound = stage.bound[slabs] = self.bind(stage.plan, slabs)
                self._bound.add(bound)
                if isinstance(stage.plan, InstantiatedPlan):
                    template = stage.plan.template
                    bound.donor = self._donors.get((template, slabs))
                    self._donors[template, slabs] = bound
        return bound

    def _drop_torn(self) -> None:
        torn = [s for s in self._arenas if s.is_torn and not s.in_use]
        if torn:
            self._arenas = [s for s in self._arenas if s not in torn]
            for slabs in torn:
                slabs.clear()

    def _new_arena(self) -> ArenaMemory:
        slabs = ArenaMemory(self.session, self.account)
        self._arenas.append(slabs)
        return slabs

    def bind(self, plan: Plan, slabs: ArenaMemory | None = None, own: bool = False) -> BoundPlan:
        """Creates a bound plan, whose memory `BoundPlan.bind` allocates.

        Args:
            plan: Plan of the model to bind.
            slabs: Arena to bind to; None for a new one outside of the pool.
            own: Whether to upload the weights separately, not shared with other plans.
        """
        weights = WeightStore(self.session, self.account) if own else self.weights
        arena = slabs or ArenaMemory(self.session, self.account)
        constants = self._planner.constants
        lane = self._twin_lane if plan.on_twin else self.lane
        bound = BoundPlan(plan, self.session, weights, arena, constants, lane)
        bound.tiers = slabs is not None  # others are for measurements
        return bound

    def _has_room(self, stage: PlannedSegment, slabs: ArenaMemory) -> bool:
        """Returns whether a segment fits into an arena beside the memory now allocated.

        Args:
            stage: The segment.
            slabs: Memory of the arena.

        Raises:
            OutOfMemoryError: The segment exceeds the model's memory limit by itself.
        """
        fits = self._needed(stage, slabs) <= self.account.left
        # A plan that fits beside the allocated memory fits alone. But `_needed` leaves out the
        # constants behind a graph break.
        if not fits or stage.graph_break is not None:
            memory = self._planner.memory(stage.plan, stage.graph_break)
            if memory.device_bytes > self._planner.limit:
                raise self.no_room(stage)
        return fits

    def _needed(self, stage: PlannedSegment, slabs: ArenaMemory) -> int:
        """Returns the bytes that a run of a segment in an arena will allocate.

        0 if the segment is already bound to the arena.

        Args:
            stage: The segment.
            slabs: Memory of the arena.
        """
        bound = stage.bound.get(slabs)
        if bound is not None and bound.ready:
            return 0
        plan = stage.plan
        uploads = self.weights.missing_bytes(plan.uploads)
        pairs = zip_longest(slabs.sizes, plan.arena.slab_bytes, fillvalue=0)
        grows = sum(max(pair) - pair[0] for pair in pairs)
        own = 0 if bound is None else bound.own_bytes
        return max(uploads + 8 * plan.status_count - own, 0) + grows

    def _unattended(self) -> Execution | None:
        """Returns the oldest execution that no call handles: detached, or interrupted.

        None if there is none.
        """
        return next((e for e in self._in_use.values() if e.is_left), None)

    def _check_others(self, stage: PlannedSegment) -> None:
        """Checks that a run of another thread is in progress, for whose end this thread can wait.

        Args:
            stage: Segment that lacks memory, for the error's message.

        Raises:
            OutOfMemoryError: All runs belong to this thread: a signal handler needs more memory
                than the run that it interrupts leaves.
        """
        if all(_is_own(e) for e in self._in_use.values()):
            raise self.no_room(stage)

    def _return_arena(self, execution: Execution) -> None:
        slabs = execution.bound.slabs
        with self.lock:
            if slabs.run is execution:  # the arena may belong to another run by now
                slabs.run = None
            if self._closed:
                self._free()
        self.ends.wake()
        BUDGET.note_change()

    def release(self, keeps_weights: bool = False) -> None:
        """Waits for runs of other threads, and frees the model's device memory and plans.

        Later runs allocate the memory again.

        Args:
            keeps_weights: Whether the weights stay on the device.
        """
        self.await_detached()
        while True:
            with self.lock:
                if all(_is_own(e) for e in self._in_use.values()):
                    self._free(keeps_weights)
                    return
                ticket = self.ends.enter()
            ticket.acquire(timeout=_POLL_S)
            self.await_detached()

    def await_detached(self) -> None:
        """Waits for all executions that no call handles: detached, or interrupted.

        Callers that wait for a detached execution later still get its results or error.
        """
        while True:
            with self.lock:
                execution = self._unattended()
            if execution is None:
                return
            execution.await_end()

    def recover(self) -> None:
        """Ends runs that an exception interrupted, and frees all arenas that no run uses.

        The caller must then drop the model's plans, which are bound to these arenas.
        """
        for execution in tuple(self._in_use.values()):
            if execution.is_broken_off:
                execution.await_end()
        with self.lock:
            self._free(keeps_weights=True)

    def _free(self, keeps_weights: bool = False) -> None:
        """Frees the plans and arenas that no run uses, and the weights unless `keeps_weights`."""
        # Released explicitly: a thread that still refers to one would keep its weights alive.
        for bound in tuple(self._bound):
            if not bound.slabs.in_use:
                bound.release()
        self._planner.kept.clear()
        self._donors.clear()
        if not keeps_weights:
            self.weights.clear()
        for slabs in self._arenas:
            if not slabs.in_use:
                slabs.clear()
        self._arenas = [s for s in self._arenas if s.in_use]
        self.session.trim()

    def close(self) -> None:
        """Frees the model's device memory, and drops its programs.

        Memory that runs in progress use is freed at their end.
        """
        with self.lock:
            self._closed = True
            is_large = self.weights.nbytes >= _LARGE_BYTES
            self._free()
            for programs in self.weights.all_programs:
                programs.clear()
        BUDGET.note_change()
        if is_large:
            return_freed()

    def forget_runs(self) -> None:
        """Forgets runs in progress and their arenas in a forked child process.

        The threads of these runs exist only in the parent process.
        """
        self.ends = Waiters()
        self._arenas = self._idle

    def no_room(
        self, stage: PlannedSegment, error: OutOfMemoryError | None = None
    ) -> OutOfMemoryError:
        """Returns the error for a segment that does not fit into the model's memory.

        Args:
            stage: Segment that cannot run.
            error: Error of the driver; None if the segment exceeds the model's memory limit.
        """
        of = "the device has" if self.own_limit is None else "memory_limit allows"
        return no_room(self._planner, stage, of, error)


def _is_own(execution: Execution) -> bool:
    """Returns whether an execution belongs to a call in progress of the current thread."""
    call = execution.call
    return call is not None and call.thread == get_ident() and not call.is_over
