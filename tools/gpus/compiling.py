"""Compiles the kernels of plans for all targets, several at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from clrt.kernels.spec import KernelSpec

from .loops import Loop
from .made import made_before
from .planning import Planned, lacking_group
from .targets import TARGETS, Compiled
from .toolchain import CompileError


@dataclass(frozen=True)
class Program:
    """A kernel for a target.

    Attributes:
        items: Maximum work-group size.
    """

    kernel: KernelSpec
    target: str
    items: int


@dataclass
class Results:
    """Results of the compilers.

    Attributes:
        compiled: Compiled programs by kernel and target.
        errors: Errors of programs that do not compile.
    """

    compiled: dict[tuple[KernelSpec, str], Compiled] = field(default_factory=dict)
    errors: dict[Program, str] = field(default_factory=dict)

    def loops(self, target: str) -> dict[KernelSpec, Loop]:
        """Returns the main loops of kernels, for targets whose assembly is read."""
        found = ((k, c.loop) for (k, t), c in self.compiled.items() if t == target)
        return {kernel: loop for kernel, loop in found if loop is not None}

    def shares(self, target: str) -> dict[KernelSpec, float]:
        """Returns the maximum fraction of a device's peak rate that these loops reach."""
        return {kernel: loop.reached for kernel, loop in self.loops(target).items()}

    def local_bytes(self) -> dict[KernelSpec, int]:
        """Returns the local memory of kernels in bytes, the maximum over targets."""
        found: dict[KernelSpec, int] = {}
        for (kernel, _), compiled in self.compiled.items():
            found[kernel] = max(found.get(kernel, 0), compiled.local)
        return found

    def misfits(self) -> Iterator[str]:
        """Yields one line per program with register spills or a stack."""
        for (kernel, target), made in self.compiled.items():
            if not made.fits:
                what = f"{made.spilled} spilled, {made.stack} bytes of stack"
                yield f"{describe(kernel)} on {target}: {what}"


def describe(kernel: KernelSpec) -> str:
    """Describes a kernel by its entry point and numeric macros."""
    numbers = (f"{k}={v}" for k, v in kernel.defines if str(v).lstrip("-").isdigit())
    return " ".join((kernel.entry, *numbers))


def programs_of(plans: Iterable[Planned]) -> list[Program]:
    """Returns each distinct kernel, for the targets of the devices it is planned for."""
    found: dict[tuple[KernelSpec, str], int] = {}
    for planned in plans:
        for kernel, items in planned.kernels:
            key = kernel, planned.profile.target
            found[key] = max(found.get(key, 0), items)
    return [Program(kernel, target, items) for (kernel, target), items in found.items()]


def compile_all(programs: Sequence[Program], done: Callable[[], None]) -> Results:
    """Compiles programs.

    Args:
        done: Called after each.

    Raises:
        MissingToolError: A compiler is not there.
    """
    results = Results()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for program, made in zip(programs, pool.map(_compile, programs), strict=True):
            if isinstance(made, Compiled):
                results.compiled[program.kernel, program.target] = made
            else:
                results.errors[program] = made
            done()
    return results


def _compile(program: Program) -> Compiled | str:
    kernel, target, items = program.kernel, program.target, program.items

    def make() -> Compiled:
        with tempfile.TemporaryDirectory() as folder:
            return TARGETS[target](kernel, items, Path(folder))

    try:
        return made_before(kernel, target, items, make)
    except CompileError as error:
        return str(error)


def refusals(plans: Iterable[Planned], local: Mapping[KernelSpec, int]) -> Iterator[str]:
    """Yields launches that devices would refuse, by the results of plans and compilers.

    Args:
        local: Local memory in bytes, by kernel.
    """
    for planned in plans:
        where = f"{planned.model} on {planned.profile.name}"
        yield from (f"{where}: {line}" for line in planned.illegal)
        for kernel, items in planned.kernels:
            lacking = lacking_group(items, local.get(kernel, 0), planned.profile.caps)
            if lacking:
                yield f"{where}: {kernel.entry} {lacking}"
