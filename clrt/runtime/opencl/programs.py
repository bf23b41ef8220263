"""`ProgramCache`: compiled OpenCL programs, cached in memory and on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import warnings
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary

import clrt
from clrt.device.caps import DeviceCaps
from clrt.errors import ClrtError, InputError, KernelBuildError
from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl.cache_folders import warn_if_unusable
from clrt.runtime.opencl.driver import BUILD_ERROR_CODES, Guard, binary_of, check_process, cl
from clrt.runtime.opencl.kernel_invokers import remember_invokers
from clrt.runtime.opencl.program_writer import Saver
from clrt.util.active_calls import RecencyDict
from clrt.util.files import SHIPPED, atomic_write, is_private, make_cache_folder, read_regular

# Suppresses compiler warnings, which users cannot act on.
_NO_WARNINGS = "-w"
_EXACT = "-cl-fp32-correctly-rounded-divide-sqrt"
# Maximum number of recently used programs kept in memory when no model uses them any more.
_MAX_RECENT_PROGRAMS = 16
# Maximum size of a cache entry that is read, in bytes.
_MAX_ENTRY_BYTES = 256 << 20
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
    """

    context: cl.Context
    device: cl.Device
    caps: DeviceCaps
    folder: Path
    requests: int = 0
    builds: int = 0
    _programs: WeakValueDictionary[KernelSpec, cl.Program] = field(
        default_factory=WeakValueDictionary
    )
    _recent: RecencyDict[KernelSpec, cl.Program] = field(default_factory=RecencyDict)
    _lock: Any = field(default_factory=RLock)

    @cached_property
    def _saver(self) -> Saver:
        return Saver(self._store, "costly-binaries" in self.caps.quirks)

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
            program = self._programs[spec] = self._load_or_build(spec)
            self.requests += 1
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
        return program

    def save(self) -> None:
        """Writes the programs built since the last call to the cache folder.

        Raises:
            InputError: The folder cannot be written, or is open to others.
            DeviceError: The driver does not work in this fork.
        """
        check_process(self._name, self.caps)
        self._saver.save()

    def after_fork_in_child(self) -> None:
        """Replaces the locks in a forked child process, which lacks the threads that held locks.

        Also forgets the programs still to be written: the parent process writes these.
        """
        self._lock = RLock()
        self._saver.reset()

    def _key(self, source: str, options: Sequence[str]) -> str:
        caps = self.caps
        lanes = str(caps.float_lanes)  # represents the instruction set that a CPU compiler targets
        parts = (source, *options, caps.platform, caps.name, caps.driver, lanes)
        text = "\0".join((*parts, clrt.__version__))
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def _build(self, spec: KernelSpec, source: str, options: Sequence[str]) -> cl.Program:
        try:
            return self._compile(cl.Program(self.context, source), options)
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
        binaries = (_read(folder, key) for folder in (self.folder, _SHIPPED_PROGRAMS))
        binary = next((b for b in binaries if b is not None), None)
        if binary is None:
            return None
        try:
            return self._compile(cl.Program(self.context, [self.device], [binary]), options)
        except cl.Error:
            return None

    def _compile(self, program: cl.Program, options: Sequence[str]) -> cl.Program:
        """Builds a program from its source or binary, ignoring compiler warnings.

        Args:
            options: Compiler options.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
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

    def _store(self, key: str, program: cl.Program) -> None:
        """Writes a program's cache entry atomically; does nothing if the driver returns no binary.

        Args:
            key: Cache key of the program.

        Raises:
            InputError: The folder cannot be written, or is open to others.
        """
        path = _path(self.folder, key)
        make_cache_folder(self.folder)
        if not _is_private(self.folder):
            raise InputError(
                f"Other users can write to '{self.folder}', so clrt does not store programs "
                "there; run chmod go-w on it, or name another folder."
            )
        with contextlib.suppress(cl.Error, MemoryError):
            binary = binary_of(program)
            _remove_special_file(path)
            with atomic_write(path, sync=False) as stream:  # a torn entry fails its digest
                stream.write(_digest(key, binary) + binary)


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.clbin"


def _is_private(folder: Path) -> bool:
    """Returns whether no other user can write to a folder; False if it does not exist."""
    try:
        return is_private(folder.stat())
    except OSError:
        return False


def _read(folder: Path, key: str) -> bytes | None:
    """Returns the program binary of a cache entry; None if it is missing, damaged or not trusted.

    An entry is trusted if no other user can write to it or its folder.
    """
    try:
        data = read_regular(_path(folder, key), _MAX_ENTRY_BYTES, private=True)
    except OSError:
        return None
    digest, binary = data[:32], data[32:]
    return binary if _is_private(folder) and _digest(key, binary) == digest else None


def _digest(key: str, binary: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + binary).digest()


def _remove_special_file(path: Path) -> None:
    """Removes a pipe, link or device at a cache entry's path, so that no write goes through it."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
