"""Joins rows of small launches of a bound plan: each row becomes one launch of a kernel sequence.

The programs are compiled in the background once a plan has run often, by the compiler processes of
`clrt.runtime.opencl.tiers`. Runs use the plan's own launches until then, and where there is no such
process. Measured with PatchTSMixer, 36 launches of 1 to 3 us, as 5 rows, on 2 cores: 123 to 104 us
on PoCL's twin, 143 to 67 us for the launches alone on Intel's runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np

from clrt.device.caps import DeviceCaps
from clrt.kernels.kernel_sequence import KernelSequence, SequencedKernel, can_join
from clrt.kernels.spec import BufferArg, KernelSpec, Launch
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import record_for
from clrt.plan.plan import Plan
from clrt.runtime.execution.argument_patcher import BoundLaunch
from clrt.runtime.opencl.background_compiler import SampleLaunch
from clrt.util.background import BACKGROUND, yield_point
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.runtime.execution.bound_plan import BoundPlan

# Maximum size in bytes of a sequence's parameters: for a row of some 10 launches, which compiles in
# about a second. OpenCL guarantees 1024.
_MAX_PARAMETER_BYTES = 2000
_SINGLE = (1,)


class RowLimits(Thresholds):
    """Which launches are joined in rows."""

    group: ClassVar = "launch_rows"
    max_work: int = tunable(
        320_000,
        "operations and bytes per launch",
        "Work that one core does in the time that it takes to start a launch, some 4 us. Launches "
        "are joined if the other cores would save less than this.",
    )


@dataclass(frozen=True)
class _Candidate:
    """A launch of a plan that may be joined with those beside it.

    Attributes:
        launch: The launch.
        kernel: Its kernel, with the size of the work-groups.
        sample: Arguments of the launch in `SampleLaunch`, without the global sizes.
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
        """Arguments of a sequence in front of the launch's own: its global sizes."""
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
    """The rows of a bound plan's launches, and their kernels as far as these are compiled."""

    def __init__(self, bound: BoundPlan) -> None:
        """Takes the launches of a plan; `request` finds the rows.

        Args:
            bound: Plan that is bound, without host steps.
        """
        self._programs = bound.programs
        self._rows: Sequence[_Row] = ()
        self._bound: dict[int, BoundLaunch] = {}
        self._changes = self._programs.joined.changes
        self._plan, self._caps = bound.plan, bound.session.device.caps
        self._candidates = [
            _Candidate(x, SequencedKernel(x.kernel, bound.local_size(x)), _sample(bound, x))
            for x in bound.steps_to_bind()
            if isinstance(x, Launch)
        ]

    def request(self) -> None:
        """Finds the rows and requests their programs, in the background thread."""
        BACKGROUND.submit(self._request)

    def _request(self) -> None:
        """Finds the rows; loads their programs from the cache, or has them compiled."""
        joined, cache = self._programs.joined, self._programs.cache
        most_bytes = min(cache.device.max_parameter_size, _MAX_PARAMETER_BYTES)
        self._rows = _rows(self._plan, self._candidates, self._caps, most_bytes)
        missing = dict[KernelSpec, tuple[float, tuple[SampleLaunch, ...]]]()
        for row in self._rows:
            yield_point()
            if not joined.is_quick(row.kernel) and cache.missing([row.kernel], joined):
                missing[row.kernel] = 0.0, (row.sample(),)
        joined.changes += 1
        if missing:
            cache.compile_later(missing, joined)

    @property
    def has_new(self) -> bool:
        """Whether programs of rows may have come since the last `join`."""
        return self._changes != self._programs.joined.changes

    @property
    def kernels(self) -> set[int]:
        """`id` of each row's kernel object."""
        return {id(launch.kernel) for launch in self._bound.values()}

    def join(self, bound: BoundPlan) -> list[BoundLaunch]:
        """Returns the launches of a run, with one launch for each row whose program is there.

        Binds at most one more row than the call before, so that no run waits long.

        Args:
            bound: Plan of the rows, which is bound.

        Raises:
            DeviceError: The driver fails.
        """
        joined, changes = self._programs.joined, self._programs.joined.changes
        for row in self._rows:
            if row.first not in self._bound and row.kernel in joined.programs:
                self._bound[row.first] = self._bind(bound, row)
                break
        else:
            self._changes = changes
        steps, launches, at = cast(list[BoundLaunch], bound.steps), list[BoundLaunch](), 0
        for row in self._rows:
            if row.first in self._bound:
                launches += [*steps[at : row.first], self._bound[row.first]]
                at = row.first + len(row.launches)
        return [*launches, *steps[at:]]

    def _bind(self, bound: BoundPlan, row: _Row) -> BoundLaunch:
        """Creates the kernel object of a row, and sets its arguments."""
        kernel = self._programs.cache.kernel(row.kernel, self._programs.joined.programs)
        index = 0
        for each in row.launches:
            for size in each.sizes:
                kernel.set_arg(index, size)
                index += 1
            index = bound.set_arguments(kernel, each.launch, index)
        return BoundLaunch(row.kernel.entry, kernel, _SINGLE, _SINGLE, ())


def _rows(
    plan: Plan, launches: Sequence[_Candidate], caps: DeviceCaps, most_bytes: int
) -> list[_Row]:
    """Returns the rows of a plan's launches that can be joined, of at least two launches each.

    Args:
        launches: All launches of the plan.
        caps: Capabilities of the device.
        most_bytes: Maximum size of a kernel's parameters in bytes.
    """
    limits, others = RowLimits.of(record_for(RowLimits.group, caps)), max(caps.cores, 2) - 1
    most = limits.max_work * (others + 1) // others
    rows, nbytes = list[list[int]]([[]]), 0
    for index, (each, work) in enumerate(zip(launches, plan.costs, strict=True)):
        yield_point()
        kernel, own = each.launch.kernel, each.parameter_bytes
        if work > most or own > most_bytes or not can_join(kernel.source, kernel.entry):
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


def _sample(bound: BoundPlan, launch: Launch) -> tuple[int | str, ...]:
    """Returns the arguments of a launch as in `SampleLaunch`."""
    arguments = list[int | str]()
    for arg in launch.args:
        if isinstance(arg, BufferArg):
            nbytes, offset = bound.place(arg)
            arguments += [nbytes, np.int32(offset).tobytes().hex()]
        else:
            arguments.append(arg.tobytes().hex())
    return tuple(arguments)
