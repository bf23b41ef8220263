"""`ProgramCache`: compiled OpenCL programs, cached in memory and on disk."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import clrt
from clrt.device.caps import DeviceCaps
from clrt.errors import ClrtError, KernelBuildError, warn_user
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl import program_files
from clrt.runtime.opencl.background_compiler import (
    BackgroundCompiler,
    CompileJob,
    SampleLaunch,
)
from clrt.runtime.opencl.cache_folders import warn_if_unusable
from clrt.runtime.opencl.driver import (
    BUILD_ERROR_CODES,
    Guard,
    binary_of,
    check_process,
    cl,
    compile_kernel,
    quiet_compiler,
)
from clrt.runtime.opencl.kernel_invokers import remember_invokers
from clrt.runtime.opencl.program_writer import Saver
from clrt.runtime.opencl.tiers import QUICK, ModelTiers
from clrt.util.active_calls import RecencyDict
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import SHIPPED

_LOG = logging.getLogger(__name__)
# Suppresses compiler warnings, which users cannot act on.
_NO_WARNINGS = "-w"
_EXACT = "-cl-fp32-correctly-rounded-divide-sqrt"
# Maximum number of recently used programs kept in memory when no model uses them any more.
_MAX_RECENT_PROGRAMS = 16
# Read-only cache that a frozen application ships; searched after the user's cache folder.
_SHIPPED_PROGRAMS = SHIPPED / "programs"
# Macros that kernels see, by quirk of the device.
_MACROS = {"widens-unsigned": "WIDENS_UNSIGNED", "no-nested-barriers": "NO_NESTED_BARRIERS"}
remember_invokers()


@dataclass
class ProgramCache:
    """Compiles and caches the programs of one device.

    A disk entry is the device's binary of a program, after a SHA-256 digest of cache key and
    binary. An entry that is damaged, stale or under another key's name is rebuilt. On a CPU device
    a binary is native code. So the folder and an entry are used only if both belong to the user and
    no other user can write to them.

    Attributes:
        folder: Cache folder on disk.
        requests: Number of programs compiled or loaded from disk.
        builds: Number of these programs that were compiled from source.
        quick_builds: Number of programs compiled without optimization, in addition.
    """

    context: cl.Context
    device: cl.Device
    caps: DeviceCaps
    folder: Path
    requests: int = 0
    builds: int = 0
    quick_builds: int = 0
    _programs: WeakValueDictionary[KernelSpec, cl.Program] = field(
        default_factory=WeakValueDictionary
    )
    _recent: RecencyDict[KernelSpec, cl.Program] = field(default_factory=RecencyDict)
    _quick: WeakValueDictionary[KernelSpec, cl.Program] = field(default_factory=WeakValueDictionary)
    # Models with kernels whose optimized program is compiled in the background.
    _waiting: WeakSet[ModelTiers] = field(default_factory=WeakSet)
    # Programs that the compiler process writes to the folder, by cache key; and those that failed.
    _written_elsewhere: WeakValueDictionary[str, cl.Program] = field(
        default_factory=WeakValueDictionary
    )
    _failed: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=RLock)

    @cached_property
    def _saver(self) -> Saver:
        return Saver(self.store, "costly-binaries" in self.caps.quirks)

    @cached_property
    def background(self) -> BackgroundCompiler:
        """Compiles the optimized tier of programs in other processes."""
        return BackgroundCompiler(self.caps, self.folder, self._finish, self._fail)

    @property
    def _name(self) -> str:
        return f"{self.caps.platform}: {self.caps.name}"

    def kernel(
        self, spec: KernelSpec, held: MutableMapping[KernelSpec, cl.Program] | None = None
    ) -> cl.Kernel:
        """Creates a kernel object, which has its own arguments, from a cached or new program.

        Args:
            spec: Source, entry point and macros of the kernel.
            held: Dict of programs by specification that the caller keeps alive; the kernel's
                program is added. None if the caller keeps none: the cache may then evict it.

        Raises:
            KernelBuildError: The program does not compile; the message names kernel and device.
            DeviceError: The driver fails otherwise.
        """
        program = None if held is None else held.get(spec)
        if program is None:
            check_process(self._name, self.caps)
            with self._lock, Guard(self._name):
                program = self._program(spec)
            if held is not None:
                held[spec] = program
        return self._kernel(program, spec, held)

    def _kernel(
        self,
        program: cl.Program,
        spec: KernelSpec,
        held: MutableMapping[KernelSpec, cl.Program] | None,
    ) -> cl.Kernel:
        try:
            return cl.Kernel(program, spec.entry)
        except (cl.Error, MemoryError) as error:
            with self._lock:
                for programs in (self._programs, self._recent, held or {}):
                    programs.pop(spec, None)
            raise self._build_error(error, spec) from error

    def _program(self, spec: KernelSpec) -> cl.Program:
        """Returns the program of a kernel from memory, from the cache folder, or newly built."""
        program = self._programs.get(spec)
        if program is None:
            program = self._load_or_build(spec)
            self._settle(spec, program)
        self._recent.put(spec, program)
        if len(self._recent) > _MAX_RECENT_PROGRAMS:
            self._recent.pop_oldest()
        return program

    def _load_or_build(self, spec: KernelSpec) -> cl.Program:
        source = spec.text
        options = self._options(spec)
        key = self._key(source, options)
        program = self._load(key, options)
        if program is None:
            warn_if_unusable(self.folder)
            program = self._build(spec, source, options)
            self.builds += 1
            self._saver.add(key, program)
            if "background" in self.__dict__:
                self.background.cancel(key)
        return program

    def tiered_kernel(self, spec: KernelSpec, model: ModelTiers) -> cl.Kernel:
        """Creates a kernel object, from a quickly compiled program if the optimized one is pending.

        Args:
            spec: Source, entry point and macros of the kernel.
            model: Programs and tiers of the kernel's model.

        Raises:
            KernelBuildError: The program does not compile.
            DeviceError: The driver fails otherwise.
        """
        if spec in model.pending and spec not in model.programs:
            with self._lock, Guard(self._name):
                program = self._programs.get(spec) or self._quick.get(spec)
                if program is None:
                    options = (*self._options(spec), *QUICK)
                    program = self._quick[spec] = self._build(spec, spec.text, options)
                    self.quick_builds += 1
                if spec in model.pending:  # else the optimized program came meanwhile
                    model.programs[spec] = program
        program = model.programs.get(spec)
        if program is None:
            return self.kernel(spec, model.programs)
        return self._kernel(program, spec, model.programs)

    def missing(self, specs: Iterable[KernelSpec], model: ModelTiers) -> list[KernelSpec]:
        """Returns the kernels whose optimized program is in no cache; loads those of the others."""
        found = []
        check_process(self._name, self.caps)
        for spec in (s for s in specs if s not in model.programs):
            with self._lock, Guard(self._name):
                program = self._programs.get(spec)
                if program is None:
                    options = self._options(spec)
                    program = self._load(self._key(spec.text, options), options)
            if program is None:
                found.append(spec)
                continue
            if spec.is_optional:  # here in the background thread, and not in a run
                compile_kernel(program, spec.entry)
            self._settle(spec, program)
            model.programs[spec] = program
        return found

    def compile_later(
        self,
        launches: Mapping[KernelSpec, tuple[float, tuple[SampleLaunch, ...]]],
        model: ModelTiers,
    ) -> None:
        """Compiles optimized programs in the background, for a model that goes on without them.

        Args:
            launches: Value of each kernel's program (its share of the run time), and launches to
                compile it for.
            model: Programs and tiers of the model.
        """
        jobs = []
        with self._lock:
            model.expect(launches)
            self._waiting.add(model)
        for spec, (value, samples) in launches.items():
            source, options = spec.text, self._options(spec)
            key = self._key(source, options)
            jobs.append(CompileJob(spec, key, source, options, value, samples))
        warn_if_unusable(self.folder)
        self.background.submit(jobs)

    def _settle(self, spec: KernelSpec, program: cl.Program | None) -> None:
        """Notes an optimized program, for all models that wait for it.

        Args:
            program: The program; None if it does not compile.
        """
        with self._lock:
            if program is not None:
                self.requests += self._programs.get(spec) is None
                self._programs[spec] = program
            waiting = [model for model in self._waiting if spec in model.pending]
            for model in waiting:
                model.settle(spec, program)
                if not model.pending:
                    self._waiting.discard(model)
        for model in waiting:
            model.report()

    def _finish(self, job: CompileJob, is_compiled: bool) -> None:
        """Takes over a program that a compiler process built; else compiles it, unless optional.

        The threads of the `BackgroundCompiler` call this method.

        Args:
            is_compiled: Whether a compiler process built the program: into the cache folder, or, on
                devices that compile at the first launch, into the driver's own cache.
        """
        if not any(job.spec in model.pending for model in tuple(self._waiting)):
            return  # all models are closed
        at_launch = "compiles-at-launch" in self.caps.quirks
        program = None
        try:
            if is_compiled and not at_launch:
                program = self._load(job.key, job.options)
            if program is None:
                if job.spec.is_optional and not is_compiled:
                    self._settle(job.spec, None)
                    return
                with Guard(self._name):
                    program = self._build(job.spec, job.source, job.options)
                self.builds += not is_compiled
                if is_compiled and at_launch:
                    self._written_elsewhere[job.key] = program
                else:
                    self._saver.add(job.key, program)
        except ClrtError as error:
            self._fail(job, str(error))
            return
        compile_kernel(program, job.spec.entry)
        self._settle(job.spec, program)

    def _fail(self, job: CompileJob, reason: str) -> None:
        """Keeps the quick program of a failed job, with a warning; optional kernels are logged."""
        self._settle(job.spec, None)
        if job.spec.is_optional:
            _LOG.debug("%s does not compile: %s", job.spec.entry, reason)
        if job.spec.is_optional or job.key in self._failed:
            return
        self._failed.add(job.key)
        warn_user(
            f"Kernel '{job.spec.entry}' of {job.spec.source} stays without optimization on "
            f"{self._name}, and is slow, since its compilation failed; CLRT_TIERS=off shows the "
            f"error at the first run. Please report it with the log:\n{reason}"
        )

    def save(self) -> None:
        """Writes the programs built since the last call to the cache folder.

        Raises:
            InputError: The folder cannot be written, or is open to others.
            DeviceError: The driver does not work in this fork.
        """
        check_process(self._name, self.caps)
        for key, program in tuple(self._written_elsewhere.items()):
            if program_files.read(self.folder, key) is None:
                self.store(key, program)
            self._written_elsewhere.pop(key, None)
        self._saver.save()

    def after_fork_in_child(self) -> None:
        """Replaces the locks in a forked child process, which lacks the threads that held locks.

        Also forgets the programs still to be written: the parent process writes these. Models that
        wait for programs compile them at their next run.
        """
        self._lock = RLock()
        self._saver.reset()
        if "background" in self.__dict__:
            self.background.reset()
        for model in tuple(self._waiting):
            model.enabled = False

    def _key(self, source: str, options: Sequence[str]) -> str:
        caps = self.caps
        lanes = str(caps.float_lanes)  # represents the instruction set that a CPU compiler targets
        parts = (source, *options, caps.platform, caps.name, caps.driver, lanes)
        text = "\0".join((*parts, clrt.__version__))
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def _build(self, spec: KernelSpec, source: str, options: Sequence[str]) -> cl.Program:
        try:
            return self.compile_source(source, options)
        except (cl.Error, MemoryError) as error:
            raise self._build_error(error, spec) from error

    def _build_error(self, error: cl.Error | MemoryError, spec: KernelSpec) -> ClrtError:
        """Converts an error of the driver or host, for a kernel that cannot be built or created."""
        if isinstance(error, MemoryError) or error.code not in BUILD_ERROR_CODES:
            return Guard(self._name).translated(error)
        defines = ", ".join(f"{k}={v}" for k, v in spec.defines)
        return KernelBuildError(
            f"Kernel '{spec.entry}' of {spec.source} does not compile for {self.caps.name} "
            f"(driver {self.caps.driver}; {defines}). Please report it with the log:\n{error}",
            str(error),
        )

    def _load(self, key: str, options: Sequence[str]) -> cl.Program | None:
        """Returns a program from the cache folder, else from the programs that clrt ships.

        None if both lack the program, or if the driver rejects its binary.

        Args:
            key: Cache key of the program.
            options: Compiler options.
        """
        binaries = (program_files.read(folder, key) for folder in (self.folder, _SHIPPED_PROGRAMS))
        binary = next((b for b in binaries if b is not None), None)
        if binary is None:
            return None
        try:
            return self._compile(cl.Program(self.context, [self.device], [binary]), options)
        except cl.Error:
            return None

    def compile_source(self, source: str, options: Sequence[str]) -> cl.Program:
        """Builds a program from its source, without any cache.

        Args:
            options: Compiler options.

        Raises:
            cl.Error: The program does not compile, or the driver fails otherwise.
        """
        return self._compile(cl.Program(self.context, source), options)

    def _compile(self, program: cl.Program, options: Sequence[str]) -> cl.Program:
        """Builds a program from its source or binary, ignoring compiler warnings.

        Args:
            options: Compiler options.
        """
        with quiet_compiler():
            return program.build(list(options), [self.device], cache_dir=False)

    def _options(self, spec: KernelSpec) -> tuple[str, ...]:
        """Returns the compiler options of a kernel, with macros for the device's quirks."""
        simulated = ("-cl-opt-disable", "-DSIMULATOR") if self.caps.simulator else ()
        macros = (f"-D{macro}" for quirk, macro in _MACROS.items() if quirk in self.caps.quirks)
        exact = (_EXACT,) if self._divides_exactly else ()
        return (*spec.build_options, _NO_WARNINGS, *exact, *simulated, *macros)

    @cached_property
    def _divides_exactly(self) -> bool:
        """Whether the compiler option for correctly rounded division and square root is used.

        False for CPUs, which round correctly without it, and for devices that do not support it.
        """
        exact = cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        return not self.caps.is_cpu and bool(self.device.single_fp_config & exact)

    def store(self, key: str, program: cl.Program) -> None:
        """Writes a program's cache entry atomically; does nothing if the driver returns no binary.

        Args:
            key: Cache key of the program.

        Raises:
            InputError: The folder cannot be written, or is open to others.
        """
        program_files.prepare(self.folder)
        with contextlib.suppress(cl.Error, MemoryError):
            program_files.write(self.folder, key, binary_of(program))
