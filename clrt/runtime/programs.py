"""Compiled programs, cached in memory and on disk."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import stat
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import pyopencl as cl

import clrt
from clrt.device.caps import DeviceCaps
from clrt.errors import InputError, KernelBuildError
from clrt.files import make_cache_folder, replacing
from clrt.kernels.spec import KernelSpec
from clrt.runtime.invokers import remember_invokers
from clrt.runtime.source import render_source

# Without warnings: drivers print them, and no user can act on one.
BUILD_OPTIONS = ("-cl-std=CL1.2", "-w")
remember_invokers()


@dataclass
class ProgramCache:
    """Programs of one device.

    A disk entry holds a digest and the device's binary; a damaged or stale one is rebuilt. On a
    CPU device a binary is native code, so the folder must belong to the user and be closed to
    others, else it is not used.

    Attributes:
        requests: How many different programs were asked for: compiled, or found on disk.
        builds: How many of them were compiled from source.
    """

    context: cl.Context
    device: cl.Device
    caps: DeviceCaps
    folder: Path
    requests: int = 0
    builds: int = 0
    _programs: dict[KernelSpec, cl.Program] = field(default_factory=dict)
    _lock: Any = field(default_factory=RLock)
    _unsaved: dict[Path, cl.Program] = field(default_factory=dict)

    def kernel(self, spec: KernelSpec) -> cl.Kernel:
        """A new kernel object, with arguments of its own.

        Raises:
            KernelBuildError: The program does not compile; the message names kernel and device.
        """
        with self._lock:
            program = self._programs.get(spec)
            if program is None:
                program = self._programs[spec] = self._make(spec)
                self.requests += 1
        return cl.Kernel(program, spec.entry)

    def _make(self, spec: KernelSpec) -> cl.Program:
        source = render_source(spec)
        path = self.folder / f"{self._key(source)}.clbin"
        program = self._load(path)
        if program is None:
            program = self._build(spec, source)
            self.builds += 1
            self._unsaved[path] = program
            if "costly-binaries" not in self.caps.quirks:
                self._save_if_possible()
            elif len(self._unsaved) == 1:
                atexit.register(self._save_if_possible)
        return program

    def save(self) -> None:
        """Writes the programs built since the last time to disk.

        Raises:
            InputError: The folder cannot be written, or is open to others.
        """
        with self._lock:
            while self._unsaved:
                path, program = next(iter(self._unsaved.items()))
                self._store(path, program)
                del self._unsaved[path]

    def _save_if_possible(self) -> None:
        with contextlib.suppress(InputError):
            self.save()

    def _key(self, source: str) -> str:
        caps = self.caps
        lanes = str(caps.float_lanes)  # stands for the instructions a CPU compiler uses
        parts = (source, *self._options, caps.platform, caps.name, caps.driver, lanes)
        text = "\0".join((*parts, clrt.__version__))
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def _build(self, spec: KernelSpec, source: str) -> cl.Program:
        try:
            return self._compile(cl.Program(self.context, source))
        except cl.Error as error:
            defines = ", ".join(f"{k}={v}" for k, v in spec.defines)
            raise KernelBuildError(
                f"Kernel '{spec.entry}' of {spec.source} does not compile for {self.caps.name} "
                f"(driver {self.caps.driver}; {defines}). Please report it with the log:\n{error}",
                str(error),
            ) from error

    def _load(self, path: Path) -> cl.Program | None:
        if not _is_private(path.parent):
            return None
        try:
            data = path.read_bytes()
        except OSError:
            return None
        digest, binary = data[:32], data[32:]
        if hashlib.sha256(binary).digest() != digest:
            return None
        try:
            return self._compile(cl.Program(self.context, [self.device], [binary]))
        except cl.Error:
            return None

    def _compile(self, program: cl.Program) -> cl.Program:
        """Builds a program; what a compiler says of one that works is of no use to the user."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            return program.build(self._options, [self.device], cache_dir=False)

    @property
    def _options(self) -> list[str]:
        """The compiler's options; see the quirk "simulator"."""
        simulated = ["-cl-opt-disable", "-DSIMULATOR"] if self.caps.simulator else []
        return [*BUILD_OPTIONS, *simulated]

    def _store(self, path: Path, program: cl.Program) -> None:
        """Writes an entry atomically; that no binary can be had is no error."""
        folder = path.parent
        make_cache_folder(folder)
        if not _is_private(folder):
            raise InputError(
                f"Other users can write to '{folder}', so that no programs are kept there; close "
                "it by chmod go-w, or name another folder."
            )
        with contextlib.suppress(cl.Error):
            (binary,) = program.get_info(cl.program_info.BINARIES)
            with replacing(path, sync=False) as stream:  # a torn entry fails its digest
                stream.write(hashlib.sha256(binary).digest() + binary)


def _is_private(folder: Path) -> bool:
    """Whether only this user, or who installs programs, can write to a folder."""
    try:
        status = folder.stat()
    except OSError:
        return False
    if os.name != "posix":
        return True
    return status.st_uid in (0, os.getuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
