"""`Runner`: runs a model in the calling thread or asynchronously, and closes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from threading import RLock, Thread, get_ident
from typing import TYPE_CHECKING, Any

from clrt.errors import CancelledError, ClrtError, InputError
from clrt.ir.graph import Graph, Value
from clrt.ir.runtime_values import RuntimeValue
from clrt.kernels.spec import KernelSpec, PackedWeight
from clrt.runtime.executables.branches import Branch, BranchKey, BranchPath, inputs_of
from clrt.runtime.executables.executable import numbered_constants
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.execution.arena_pool import MAX_ARENAS, ArenaPool
from clrt.runtime.execution.graph_run import GraphRun
from clrt.runtime.execution.launch_throttle import CancellationToken
from clrt.runtime.execution.planner import Planner
from clrt.runtime.execution.profiler import Recorder
from clrt.runtime.execution.run import Enqueued, Pending
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor
from clrt.util.active_calls import ActiveCall
from clrt.util.background import BACKGROUND

if TYPE_CHECKING:
    from clrt.runtime.executables.executable import Executable
    from clrt.runtime.execution.branch_specializer import Branches

# Maximum time, in seconds, that `close` waits for runs in other threads.
_CLOSE_S = 1.0
# Interval, in seconds, at which a run that waits for others checks whether it was cancelled.
_POLL_S = 0.05


def _closed() -> ClrtError:
    return ClrtError("The model was closed during the run; load it again to run it.")


def _cancelled() -> ClrtError:
    return CancelledError("The run was cancelled.")


def _readers(feeds: Mapping[str, RuntimeValue], donated: Collection[str]) -> list[Future[Any]]:
    """Returns the futures of runs in worker threads that still read tensors to be donated.

    Args:
        donated: Names of the donated inputs among `feeds`.
    """
    tensors = [feeds[name] for name in donated]
    return [run for t in tensors if isinstance(t, DeviceTensor) for run in tuple(t.readers)]


def make_branches(
    graph: Graph, rewrite: Callable[[Graph], object], adopt: Callable[[Graph], object]
) -> Branches:
    """Returns the specialisations of a graph; arguments are those of `Branches`."""
    from clrt.runtime.execution.branch_specializer import Branches  # imports ops

    return Branches(graph, rewrite, adopt)


def _value_of(constant: Value | PackedWeight) -> Value:
    return constant.value if isinstance(constant, PackedWeight) else constant


class Runner:
    """Starts, tracks and ends the runs of a model.

    Attributes:
        planner: Creates and caches plans.
        room: Arenas and weights of the model on the device.
        stop: Cancels all runs of the model; set by `close`.
        check: Completes the check of a compiled model's bytes before the first result is returned;
            raises ModelError if the bytes are damaged. None if nothing is left to check.
        lock: Lock to hold while shared state changes; never held while the device computes.
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
        """Creates the planner and the memory of a model.

        Args:
            graph: Optimised graph of the model.
            rewrite: Applies the passes of `graph` to another graph in place.
            session: Session of the device.
            strict: Whether nodes without a kernel are errors.
            own_limit: Limit of device memory in bytes; None for the device's memory.
            background: Whether runs give way to runs of other models.
        """
        caps = session.device.caps
        limit = caps.global_mem_bytes if own_limit is None else own_limit
        self.lock: Any = RLock()
        self.planner = Planner(graph, caps, strict, limit, rewrite)
        self.room = ArenaPool(session, self.planner, own_limit, self.lock, background)
        self.stop = CancellationToken(_closed)
        self.check: Callable[[], None] | None = None
        self._branches: Branches | None = None
        if not isinstance(graph, StoredGraph):
            self._branches = make_branches(graph, rewrite, self.planner.adopt)
        self._session = session
        self._executable: Executable | None = None
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
        """Computes outputs of the model in the calling thread.

        Args:
            feeds: Array, device tensor, list, dict or None per model input, by name.
            wanted: Names of the requested outputs, and whether each stays on the device.
            donated: Names of inputs whose memory the run may overwrite.
            recorder: Records when steps run; None for no profile.
            stop: Cancels the run; by default the model's own, which cancels all runs.

        Returns:
            Array, device tensor, list, dict or None per requested output, by name.

        Raises:
            InputError: The model is closed, or an index or length is out of range.
            OutOfMemoryError: The run does not fit.
            DeviceError: The driver fails.
            ClrtError: The run was cancelled, or cannot be planned.
        """
        before = _readers(feeds, donated) if donated else ()
        return self._run(feeds, wanted, donated, stop or self.stop, before, recorder)

    def _run(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str],
        stop: CancellationToken,
        before: Collection[Future[Any]],
        recorder: Recorder | None = None,
    ) -> Mapping[str, RuntimeValue]:
        """Computes outputs of the model and returns them by name, after waiting for other runs.

        Args:
            feeds: Array, device tensor, list, dict or None per model input, by name.
            wanted: Names of the requested outputs, and whether each stays on the device.
            donated: Names of inputs whose memory the run may overwrite.
            stop: Token that cancels the run.
            recorder: Records when steps run; None for no profile.
            before: Asynchronous runs to wait for. They were all submitted earlier, so that no two
                runs wait for each other.
        """
        call = self._enter(ActiveCall(), "profile" if recorder else "run")
        try:
            while before and wait(before, _POLL_S).not_done:
                stop.check()
            graph_run, feeds = self._graph_run(feeds, stop, call, recorder)
            outputs = graph_run.outputs(feeds, wanted, donated)
            if self.check is not None:
                self.check()
                self.check = None
        except BaseException as error:
            self._end(call, error)
            raise
        self._leave(call)
        return outputs

    def submit(
        self,
        feeds: Mapping[str, RuntimeValue],
        wanted: Mapping[str, bool],
        donated: Collection[str] = (),
        in_worker: bool = False,
    ) -> tuple[Pending, CancellationToken]:
        """Starts an asynchronous run.

        A short run is enqueued in this thread; one that needs planning, waits or host work runs in
        a worker thread.

        Args:
            feeds: Array, device tensor, list, dict or None per model input, by name.
            wanted: Names of the requested outputs, and whether each stays on the device.
            donated: Names of inputs whose memory the run may overwrite.
            in_worker: Whether to always use a worker thread, so that the calling thread never
                waits.

        Returns:
            The future outputs of the run, and a token that cancels it.

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
        """Enqueues a run in this thread if that needs no waits; else a worker thread runs it.

        Args:
            call: Call that starts the run.
            stop: Token that cancels the run.
            feeds: Array, device tensor, list, dict or None per model input, by name.
            wanted: Names of the requested outputs, and whether each stays on the device.
            donated: Names of inputs whose memory the run may overwrite.
            in_worker: Whether to always submit the run to a worker thread.
        """
        before = _readers(feeds, donated)
        if not in_worker and not before:
            graph_run, graph_feeds = self._graph_run(feeds, stop, call)
            begun = graph_run.begin(graph_feeds, wanted, donated)
            if begun is not None:
                available, execution = begun
                return Enqueued(execution, available, graph_run.graph)
        with self.lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(MAX_ARENAS, "clrt-run")
            worker = self._workers.submit(self._run, feeds, wanted, donated, stop, before)
        for feed in feeds.values():
            if isinstance(feed, DeviceTensor):
                feed.readers.add(worker)
                worker.add_done_callback(feed.readers.discard)  # the future holds the results
        return worker

    def _graph_run(
        self,
        feeds: Mapping[str, RuntimeValue],
        stop: CancellationToken,
        call: ActiveCall,
        recorder: Recorder | None = None,
    ) -> tuple[GraphRun, Mapping[str, RuntimeValue]]:
        """Creates a run of the model's graph, specialised for inputs that decide its branches.

        Args:
            feeds: Inputs of the model by name.
            stop: Token that cancels the run.
            call: Call that the run belongs to.
            recorder: Records when steps run; None for no profile.

        Returns:
            The run, and the inputs of its graph: `feeds` without inputs that became constants.
        """
        stored = None
        if self._executable is not None:
            stored = self._executable.branch.chosen(feeds)
            if stored is None:
                _ = self._executable.graph.nodes  # not under the lock: it takes another one
        graph = self.planner.graph
        if stored is not None:
            graph, feeds = stored
        elif self._branches is None or self._branches.specialises:
            with self.lock:
                graph, feeds = self._all_branches.chosen(feeds)
        return GraphRun(self.planner, self.room, graph, stop, call, recorder), feeds

    @property
    def _all_branches(self) -> Branches:
        """Branches of the model; reads the nodes of a stored graph."""
        if self._branches is None:
            planner = self.planner
            self._branches = make_branches(planner.graph, planner.rewrite, planner.adopt)
        return self._branches

    def branch_paths(self) -> list[BranchPath]:
        """Returns all graphs that runs have chosen, each with the inputs that lead to it."""
        paths: dict[Any, Branch] = {}
        if self._executable is not None:
            paths.update(self._executable.branch.paths())
        if self._branches is not None:
            paths = dict(self._branches.paths()) | paths
        return [BranchPath(keys, branch) for keys, branch in paths.items()]

    def _read_branch(self, root: StoredGraph, keys: Sequence[BranchKey]) -> Graph:
        """Returns the graph of a stored branch, made anew.

        Args:
            root: Graph of the model.
            keys: Keys that lead to the branch.
        """
        feeds: dict[str, Any] = {}
        for key in keys:
            feeds |= inputs_of(root, key)
        _ = root.nodes
        with self.lock:
            return self._all_branches.chosen(feeds)[0]

    def play(self, executable: Executable) -> None:
        """Runs the model by stored plans from now on, as far as they fit.

        Args:
            executable: Stored plans of the model's graph.
        """
        self._executable = executable
        values = {_value_of(c) for c, origin in executable.origins.items() if origin.number != -1}
        self.planner.constants |= values
        kernels: set[tuple[bool, KernelSpec]] = set()
        for keys, branch in executable.branch.paths():
            self.planner.add_stored(branch.graph, branch.templates)
            for template in branch.templates[:1]:  # others have nearly the same kernels
                kernels.update((template.on_twin, kernel) for kernel in template.kernels)
            if keys:
                branch.graph.read = partial(self._read_branch, executable.graph, keys)
        executable.graph.on_open = self._share_weights
        # The driver releases Python's lock meanwhile.
        Thread(target=self._load_programs, args=(kernels,), name="clrt-load", daemon=True).start()

    def _load_programs(self, kernels: Collection[tuple[bool, KernelSpec]]) -> None:
        """Loads those programs of kernels that are in the cache.

        Args:
            kernels: Whether each is for the device's twin, and the kernel.
        """
        with suppress(ClrtError):  # the first run will report it
            for on_twin, programs in enumerate(self.room.weights.all_programs):
                wanted = [kernel for of_twin, kernel in kernels if of_twin == on_twin]
                programs.cache.missing(wanted, programs.tiers)

    def open(self) -> None:
        """Reads the nodes of a stored graph, whose plans are then made as those of any graph."""
        if self._executable is not None:
            _ = self._executable.graph.nodes
            with self.lock:
                self.planner.drop_stored()

    def _share_weights(self, graph: Graph) -> None:
        """Lets later plans of a stored graph use the weights that its stored plans have uploaded.

        Args:
            graph: The graph as it was read.
        """
        assert self._executable is not None
        with self.lock:
            self.planner.adopt(graph)
        constants = numbered_constants(graph)
        for stored, origin in self._executable.origins.items():
            if 0 <= origin.number < len(constants):
                self.room.weights.share(stored, constants[origin.number])

    def trim(self) -> None:
        """Frees the model's arenas and plans; weights stay on the device.

        Waits for runs of other threads first; later runs plan and allocate again.

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
        """Cleans up after calls that an exception such as KeyboardInterrupt ended at any point.

        Waits for the commands of these calls on the device. Drops the model's plans and unused
        arenas, since they may be incomplete. Weights are kept: each is either complete or absent.
        Does nothing if no call was ended in that way.
        """
        if any(call.is_over for call in tuple(self._calls)):
            self._repair()

    def _repair(self) -> None:
        """Recovers arenas and plans after an exception that interrupted their bookkeeping."""
        over = [call for call in tuple(self._calls) if call.is_over]
        self.room.recover()
        with self.lock:
            self.planner.forget()
            self._calls = [call for call in self._calls if call not in over]
        self.room.ends.wake()

    def _end(self, call: ActiveCall, error: BaseException) -> None:
        """Ends a failed call; repairs the model's plans and arenas unless a ClrtError ended it.

        If another exception interrupts the repair, the next call repeats it.
        """
        if isinstance(error, ClrtError):
            self._leave(call)
            return
        call.end()
        BACKGROUND.leave(call)
        self._repair()
        self._leave(None)

    def _enter(self, call: ActiveCall, action: str) -> ActiveCall:
        """Registers a call and returns it; `close` then frees no memory until `_leave`.

        Args:
            action: Verb for the error's message, such as "run".

        Raises:
            InputError: The model is closed.
        """
        if self._calls:
            self.recover()
        with self.lock:
            if self.stop.requested:
                raise InputError(f"This model is closed; load it again to {action} it.")
            self._calls.append(call)
        BACKGROUND.enter(call)
        return call

    def _leave(self, call: ActiveCall | None) -> None:
        """Ends a registered call; the last one frees the memory of a closed model."""
        if call is not None:
            BACKGROUND.leave(call)
            self.planner.learner.learn_later()
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
        """Cancels all runs of the model, and frees its device memory.

        Waits at most 1 s for runs of other threads. A run that takes longer frees the memory when
        it ends.
        """
        self.stop.requested = True
        if not self._session.connection.usable:
            return
        self.recover()
        this_thread, end = get_ident(), time.monotonic() + _CLOSE_S
        while True:
            with self.lock:
                # A run of this thread cannot end before `close` returns: it was interrupted by the
                # signal handler that called `close`.
                others = any(call.thread != this_thread for call in self._calls)
                frees = not self._calls
                ticket = self.room.ends.enter()
            if not others or time.monotonic() > end:
                break
            ticket.acquire(timeout=_POLL_S)
        if frees:
            self._free()

    def _free(self) -> None:
        self.room.await_detached()  # not under the lock: runs acquire it to end
        self.room.close()
        if self._workers is not None:
            self._workers.shutdown(wait=False)
            self._workers = None

    def after_fork_in_child(self) -> None:
        """Replaces the lock, and forgets calls, worker threads and runs, in a forked child process.

        The threads that held the lock or waited for runs exist only in the parent process.
        """
        self.lock = self.room.lock = RLock()
        self._calls = []
        self._workers = None
        if self._executable is not None:
            for _, branch in self._executable.branch.paths():
                branch.graph.after_fork_in_child()
        self.room.forget_runs()
