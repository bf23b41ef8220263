"""The memory of a model on its device: weights, arenas, and what runs may take of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
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
from clrt.runtime.opencl.ledger import BUDGET, Ledger
from clrt.runtime.opencl.os_memory import return_freed
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.weight_store import WeightStore
from clrt.util.active_calls import ActiveCall, Waiters

# Runs of a model that are on the device at once: while one computes the next is enqueued.
MOST_ARENAS = 2
# On Windows Ctrl-C does not end a wait without an end.
_LOOK_S = 0.5
# Weights from which on it is worth milliseconds to have the allocator return what was freed.
_LARGE_BYTES = 8 << 20


class ArenaPool:
    """Gives executions an arena each, within the model's limit.

    Attributes:
        account: Counts what the model has on the device, and limits it.
        used_s: When a run last began (`time.perf_counter`).
        weights: What all plans share.
        lane: The queue of its runs.
        session: Of the device.
        lock: Of the model.
        ends: Threads that wait for the end of a run.
        own_limit: Bytes that may be allocated on the device; None for what there is.
    """

    def __init__(
        self,
        session: DeviceSession,
        planner: Planner,
        own_limit: int | None,
        lock: Any,
        background: bool,
    ) -> None:
        """
        Args:
            lock: Of the model, an RLock.
        """
        limited = "the device" if own_limit is None else "memory_limit"
        self.account = Ledger(planner.limit, limited)
        self.weights = WeightStore(session, self.account)
        self.lane = session.new_lane(background)
        self.own_limit = own_limit
        self.session = session
        self._planner = planner
        self.lock = lock
        self.ends = Waiters()
        self._closed = False
        # What is idle and what is in use follows from the runs of these.
        self._arenas: list[ArenaMemory] = []
        self.used_s = 0.0
        self._bound: WeakSet[BoundPlan] = WeakSet()
        BUDGET.enter(self)
        # By template and arena: whose kernels the next plan takes over, as it was bound last.
        self._donors: WeakValueDictionary[tuple[PlanTemplate, ArenaMemory], BoundPlan] = (
            WeakValueDictionary()
        )

    @property
    def _idle(self) -> list[ArenaMemory]:
        """The arenas that a run may take."""
        return [s for s in self._arenas if not s.in_use and not s.is_torn]

    @property
    def _in_use(self) -> dict[ArenaMemory, Execution]:
        """The runs that have not ended, by arena."""
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
        """An execution of a stage, which starts as soon as it likes; waits for an arena.

        Args:
            call: The execution is its own, until it is detached.

        Raises:
            OutOfMemoryError: The stage alone is over the limit.
        """
        while True:
            changed = BUDGET.changes.enter() if BUDGET.limit is not None else None
            lacking, epoch = 0, BUDGET.epoch
            with self.lock:
                bound = self._take(stage)
                if bound is not None:
                    needed = self._needed(stage, bound.slabs)
                    lacking = self._lacking(needed)
                if bound is not None and not lacking:
                    ended = self._give_back
                    execution = Execution(bound, feeds, outputs, recorder, stop, call, ended)
                    self.account.claim(execution, needed)
                    BUDGET.claim(execution, needed)
                    bound.slabs.run, self.used_s = execution, time.perf_counter()
                    return execution
                left = self._left()
                ticket = changed if lacking and changed is not None else self.ends.enter()
            if left is not None:
                left.await_end()
            elif not lacking:
                ticket.acquire(timeout=_LOOK_S)
            elif not BUDGET.reclaim(needed, self):
                self._await_budget(stage, ticket, epoch)

    def _lacking(self, needed: int) -> int:
        """By how many bytes the budget of all models is too small for a run, as things are."""
        if not needed or BUDGET.limit is None:
            return 0
        return int(max(needed - max(BUDGET.left, 0), 0))

    def _await_budget(self, stage: PlannedSegment, ticket: Any, epoch: object) -> None:
        """Waits for runs that give memory back, of this model and of others.

        Raises:
            OutOfMemoryError: There is none to wait for.
        """
        with self.lock:
            busy = any(not _is_own(e) for e in self._in_use.values())
            if not busy and not BUDGET.is_shared(self):
                if BUDGET.epoch is not epoch:  # what ended meanwhile may have left memory
                    return
                if self.account.nbytes > 0 and not self._in_use:
                    self._free()
                    return
                raise over_budget(self._planner, stage)
        ticket.acquire(timeout=_LOOK_S)

    @property
    def is_busy(self) -> bool:
        """Whether a run of another thread than this has memory."""
        return any(not _is_own(e) for e in tuple(self._in_use.values()))

    def give_up(self, *, weights: bool) -> None:
        """Frees what no run uses; the weights only where there is no run."""
        with self.lock:
            if not weights or not self._in_use:
                self._free(keeps_weights=not weights)

    def _take(self, stage: PlannedSegment) -> BoundPlan | None:
        """The stage bound to an arena; None where somebody has to end before."""
        self._drop_torn()
        idle = self._idle
        for slabs in idle:
            bound = stage.bound.get(slabs)
            if bound is not None and bound.ready:
                return bound
        if not idle and len(self._in_use) >= MOST_ARENAS:
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
        made = ArenaMemory(self.session, self.account)
        self._arenas.append(made)
        return made

    def bind(self, plan: Plan, slabs: ArenaMemory | None = None, own: bool = False) -> BoundPlan:
        """A plan bound to an arena, by default one of its own.

        Args:
            own: Whether it has weights of its own, too.
        """
        weights = WeightStore(self.session, self.account) if own else self.weights
        slabs = slabs or ArenaMemory(self.session, self.account)
        return BoundPlan(plan, self.session, weights, slabs, self._planner.constants, self.lane)

    def _has_room(self, stage: PlannedSegment, slabs: ArenaMemory) -> bool:
        """Whether it fits beside what other shapes left and other runs use.

        Raises:
            OutOfMemoryError: It does not fit alone.
        """
        memory = self._planner.memory(stage.plan, stage.graph_break)
        if memory.device_bytes > self._planner.limit:
            raise self.no_room(stage)
        return self._needed(stage, slabs) <= self.account.left

    def _needed(self, stage: PlannedSegment, slabs: ArenaMemory) -> int:
        """Bytes that a run of a stage in an arena will allocate: none where it is bound."""
        bound = stage.bound.get(slabs)
        if bound is not None and bound.ready:
            return 0
        plan, shared = stage.plan, self.weights.sizes
        uploads = sum(n for key, n in plan.uploads.items() if key not in shared)
        pairs = zip_longest(slabs.sizes, plan.arena.slab_bytes, fillvalue=0)
        grows = sum(max(pair) - pair[0] for pair in pairs)
        own = 0 if bound is None else bound.own_bytes
        return max(uploads + 8 * plan.status_count - own, 0) + grows

    def _left(self) -> Execution | None:
        """The oldest execution that nobody is at: enqueued and not waited for, or broken off."""
        return next((e for e in self._in_use.values() if e.is_left), None)

    def _check_others(self, stage: PlannedSegment) -> None:
        """Whether there is somebody to wait for but this thread.

        Raises:
            OutOfMemoryError: A signal's handler asks for more than the run that it came into
                leaves.
        """
        if all(_is_own(e) for e in self._in_use.values()):
            raise self.no_room(stage)

    def _give_back(self, execution: Execution) -> None:
        slabs = execution.bound.slabs
        with self.lock:
            if slabs.run is execution:  # another one may have it by now
                slabs.run = None
            if self._closed:
                self._free()
        self.ends.wake()
        BUDGET.note_change()

    def release(self, keeps_weights: bool = False) -> None:
        """Frees the device memory once no other run uses it; what is needed is made again."""
        self.await_detached()
        while True:
            with self.lock:
                if all(_is_own(e) for e in self._in_use.values()):
                    self._free(keeps_weights)
                    return
                ticket = self.ends.enter()
            ticket.acquire(timeout=_LOOK_S)
            self.await_detached()

    def await_detached(self) -> None:
        """Waits for what is enqueued and not waited for; who does later gets what came of it.

        What an exception broke off ends, too.
        """
        while True:
            with self.lock:
                execution = self._left()
            if execution is None:
                return
            execution.await_end()

    def recover(self) -> None:
        """Ends runs that an exception broke off, and forgets all arenas that no run is in.

        What is bound to them is to be forgotten with the plans.
        """
        for execution in tuple(self._in_use.values()):
            if execution.is_broken_off:
                execution.await_end()
        with self.lock:
            self._free(keeps_weights=True)

    def _free(self, keeps_weights: bool = False) -> None:
        for bound in tuple(self._bound):  # a thread may have one still, and with it weights
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
        """Frees the memory, and the programs that no other model uses."""
        with self.lock:
            self._closed = True
            is_large = self.weights.nbytes >= _LARGE_BYTES
            self._free()
            self.weights.programs.clear()
        BUDGET.note_change()
        if is_large:
            return_freed()

    def forget_runs(self) -> None:
        """In a fork, where the threads that ran are not."""
        self.ends = Waiters()
        self._arenas = self._idle

    def no_room(
        self, stage: PlannedSegment, error: OutOfMemoryError | None = None
    ) -> OutOfMemoryError:
        """The error for a stage over the limit, or for one that the driver gave no room."""
        of = "the device has" if self.own_limit is None else "memory_limit allows"
        return no_room(self._planner, stage, of, error)


def _is_own(execution: Execution) -> bool:
    """Whether an execution is one of a call of this thread, which is in its midst."""
    call = execution.call
    return call is not None and call.thread == get_ident() and not call.is_over
