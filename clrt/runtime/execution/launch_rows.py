"""Joins rows of small launches of a bound plan: each row becomes one launch of a kernel sequence.

The programs are compiled in the background once a plan has run often, by the compiler processes of
`clrt.runtime.opencl.tiers`. Runs use the plan's own launches until then, and if there is no such
process. Measured with PatchTSMixer, 36 launches of 1 to 3 us, as 5 rows, on 2 cores: 123 to 104 us
on PoCL's twin, 143 to 67 us for the launches alone on Intel's runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast
from weakref import ref

import numpy as np

from clrt.errors import ClrtError
from clrt.kernels.kernel_sequence import KernelSequence, SequencedKernel, can_join
from clrt.kernels.spec import KernelSpec, Launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import record_for
from clrt.runtime.execution.argument_patcher import BoundLaunch
from clrt.runtime.execution.compile_requests import sample_arguments
from clrt.runtime.opencl.background_compiler import SampleLaunch
from clrt.runtime.opencl.driver import cl
from clrt.util.background import BACKGROUND, yield_point
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.runtime.execution.bound_plan import BoundPlan

# Maximum size in bytes of a sequence's parameters: for a row of some 10 launches, which compiles in
# about a second. OpenCL guarantees 1024.
_MAX_PARAMETER_BYTES = 2000
# Global and local size of a sequence: one work-item.
_SINGLE = (1,)
# Part of a run that is not spent in launches, in nanoseconds; measured.
_RUN_NS = 12_000
# Ratio of durations of runs, with rows and without, above which rows are dropped; above noise.
_MAX_SLOWDOWN = 1.05
_LOG = logging.getLogger(__name__)


class RowLimits(Thresholds):
    """Limits that decide which adjacent launches are joined."""

    group: ClassVar = "launch_rows"
    launch_ns: int = tunable(
        4_000,
        "nanoseconds per launch",
        "Time that a driver takes to start a launch. Launches are joined if the other cores would "
        "save less than this.",
    )


@dataclass(frozen=True)
class _Candidate:
    """A launch of a plan that may be joined with adjacent ones.

    Attributes:
        launch: The launch.
        kernel: Its kernel, with the size of the work-groups.
        sample: Arguments of the kernel in the form of `SampleLaunch.arguments`, without the global
            sizes.
    """

    launch: Launch
    kernel: SequencedKernel
    sample: tuple[int | str, ...]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters that a sequence has for the launch."""
        params = self.launch.kernel.signature.params
        sizes = 4 * len(self.launch.global_size)
        return sizes + sum(12 if param.access else 8 for param in params)

    @property
    def sizes(self) -> list[np.int32]:
        """Global sizes of the launch: a sequence's arguments in front of the kernel's own."""
        return [np.int32(size) for size in self.launch.global_size]


@dataclass(frozen=True)
class _Row:
    """Adjacent launches of a plan, and the kernel sequence that runs them.

    Attributes:
        first: Index of the first launch.
        launches: The launches.
        kernel: The sequence.
    """

    first: int
    launches: Sequence[_Candidate]
    kernel: KernelSequence

    def sample(self) -> SampleLaunch:
        """Returns the row's launch as data, with buffers of the sizes that it has in the plan."""
        arguments = list[int | str]()
        for each in self.launches:
            arguments += [size.tobytes().hex() for size in each.sizes]
            arguments += each.sample
        return SampleLaunch(self.kernel.entry, tuple(arguments), _SINGLE, _SINGLE)


class LaunchRows:
    """Rows of a bound plan's launches, and a kernel object for each row that is compiled."""

    def __init__(self, bound: BoundPlan, seconds: float) -> None:
        """Collects the launches of a plan; `request` finds the rows.

        Args:
            bound: Plan that is bound, without host steps, and in no run.
            seconds: Duration of its shortest run.
        """
        self._seconds = seconds
        self._programs = bound.programs
        self._rows: Sequence[_Row] = ()
        self._bound: dict[int, BoundLaunch] = {}
        self._changes = self._programs.joined.changes
        self._caps = bound.session.device.caps
        self._candidates = [
            _Candidate(
                x, SequencedKernel(x.kernel, bound.local_size(x)), sample_arguments(x, bound.place)
            )
            for x in bound.steps_to_bind()
            if isinstance(x, Launch)
        ]
        # Templates that were stored before their first run have no costs.
        self._costs = bound.plan.costs or [1] * len(self._candidates)

    def request(self) -> None:
        """Starts `find_and_compile`, which decides which launches to join, in the background."""
        BACKGROUND.submit(partial(_request, ref(self)))

    def find_and_compile(self) -> None:
        """Finds the rows; loads their programs from the cache, or has them compiled."""
        joined, cache = self._programs.joined, self._programs.cache
        most_bytes = min(cache.device.max_parameter_size, _MAX_PARAMETER_BYTES)
        limits = RowLimits.of(record_for(RowLimits.group, self._caps))
        # Time for which kernels run, by their costs; the rest of a run starts them.
        started_ns = _RUN_NS + limits.launch_ns * len(self._costs)
        total_ns = max(self._seconds * 1e9 - started_ns, 0)
        # Other cores take their part of a kernel's work: alone, a core would take this much longer.
        longer = total_ns * (max(self._caps.cores, 2) - 1) / sum(self._costs)
        is_small = [cost * longer <= limits.launch_ns for cost in self._costs]
        self._rows = _rows(self._candidates, is_small, most_bytes)
        missing = dict[KernelSpec, tuple[float, tuple[SampleLaunch, ...]]]()
        for row in self._rows:
            _ = row.kernel.text  # in slices, unlike under the lock of the cache
            if not joined.is_quick(row.kernel) and cache.missing([row.kernel], joined):
                missing[row.kernel] = 0.0, (row.sample(),)
        joined.changes += 1
        if missing:
            cache.compile_later(missing, joined)

    @property
    def has_new(self) -> bool:
        """Whether rows may be ready to bind that the last `join` did not bind."""
        return self._changes != self._programs.joined.changes

    @property
    def kernels(self) -> set[int]:
        """`id` of each row's kernel object."""
        return {id(launch.kernel) for launch in self._bound.values()}

    def join(self, bound: BoundPlan) -> list[BoundLaunch]:
        """Returns the launches to enqueue: a sequence for each bound row, else the plan's own.

        Binds at most one more row per call, so that no run waits long.

        Args:
            bound: Plan of the rows, which is bound.
        """
        joined, changes = self._programs.joined, self._programs.joined.changes
        for row in self._rows:
            if row.first not in self._bound and row.kernel in joined.programs:
                self._bind(bound, row)
                break
        else:
            self._changes = changes
        steps, launches, at = cast(list[BoundLaunch], bound.steps), list[BoundLaunch](), 0
        for row in self._rows:
            if row.first in self._bound:
                launches += [*steps[at : row.first], self._bound[row.first]]
                at = row.first + len(row.launches)
        return [*launches, *steps[at:]]

    def _bind(self, bound: BoundPlan, row: _Row) -> None:
        """Creates the kernel object of a row, and sets its arguments.

        Drops the row if that fails: the plan's own launches do as well.
        """
        kernel = None
        try:
            kernel = self._programs.cache.kernel(row.kernel, self._programs.joined.programs)
            index = 0
            for each in row.launches:
                for size in each.sizes:
                    kernel.set_arg(index, size)
                    index += 1
                index = bound.set_arguments(kernel, each.launch, index)
        except (ClrtError, cl.Error, MemoryError):
            _LOG.debug("a row of launches cannot be joined", exc_info=True)
            bound.forget_kernels({id(kernel)})
            self._rows = [other for other in self._rows if other is not row]
            return
        self._bound[row.first] = BoundLaunch(row.kernel.entry, kernel, _SINGLE, _SINGLE, ())

    def are_slower(self, seconds: float) -> bool:
        """Returns whether runs take longer with the rows than without, once all rows are bound.

        Args:
            seconds: Duration of the shortest run with the rows.
        """
        is_complete = bool(self._bound) and not self.has_new and not self._programs.joined.pending
        return is_complete and seconds > _MAX_SLOWDOWN * self._seconds

    def drop(self) -> None:
        """Goes back to the plan's own launches, for good."""
        self._rows, self._bound = (), {}


def _request(reference: ref[LaunchRows]) -> None:
    """Finds the rows of a plan and requests their programs, if the plan still exists."""
    rows = reference()
    if rows is not None:
        rows.find_and_compile()


def _rows(launches: Sequence[_Candidate], is_small: Sequence[bool], most_bytes: int) -> list[_Row]:
    """Returns the rows of a plan's launches that can be joined, of at least two launches each.

    Args:
        launches: All launches of the plan.
        is_small: Per launch, whether it may be joined.
        most_bytes: Maximum size of a kernel's parameters in bytes.
    """
    rows, nbytes = list[list[int]]([[]]), 0
    for index, (each, small) in enumerate(zip(launches, is_small, strict=True)):
        yield_point()
        kernel, own = each.launch.kernel, each.parameter_bytes
        if not small or own > most_bytes or not can_join(kernel.source, kernel.entry):
            rows.append([])
            continue
        first = launches[rows[-1][0]].launch.kernel if rows[-1] else None
        is_like = first is not None and first.build_options == kernel.build_options
        if not is_like or nbytes + own > most_bytes:
            rows.append([])
            nbytes = 0
        rows[-1].append(index)
        nbytes += own
    return [row_of(r[0], launches[r[0] : r[-1] + 1]) for r in rows if len(r) > 1]


def row_of(first: int, launches: Sequence[_Candidate]) -> _Row:
    """Returns the row of adjacent launches whose first has the index `first`."""
    kernel = KernelSequence.from_kernels([each.kernel for each in launches])
    return _Row(first, launches, kernel)
