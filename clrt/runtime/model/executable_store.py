"""Keeps executables in the user's cache: finds them at load, and writes them at exit.

The first process that runs a model plans it. When it ends, it traces the planning and writes the
templates. Later processes evaluate these, and import neither importer, ops, passes nor planning.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

import numpy as np

import clrt
from clrt.errors import ClrtError
from clrt.formats.checksum import digest_of, text_digest
from clrt.ir.mmap_arrays import is_mapped
from clrt.ir.op import TensorType
from clrt.plan.device_io import DeviceIo
from clrt.plan.memory import Shapes
from clrt.plan.stored_checks import DAMAGED
from clrt.plan.stored_template import StoredTemplate, Unstorable
from clrt.plan.template import PlanTemplate
from clrt.runtime.executables.branches import BranchPath
from clrt.runtime.executables.executable import (
    Executable,
    ExecutableWriter,
    read_executable,
)
from clrt.runtime.executables.stored_graph import StoredGraph
from clrt.runtime.execution.planner import Planner
from clrt.util import env_vars
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import is_private, make_cache_folder
from clrt.util.gc_control import gc_disabled

if TYPE_CHECKING:
    from clrt.device.caps import DeviceCaps
    from clrt.ir.graph import Graph
    from clrt.runtime.execution.runner import Runner

_LOG = logging.getLogger(__name__)
_FOLDER, _SUFFIX = "executables", ".clexe"
# Maximum size of the constants of one executable, and of all in a folder, in bytes; the least
# recently used ones are removed.
MAX_CONSTANT_BYTES = 1 << 30
_MAX_FOLDER_BYTES = 4 << 30
# Maximum host memory of constants, in bytes, that is kept until the end for a model that is gone.
_MAX_KEPT_BYTES = 32 << 20
# Maximum number of models that wait for the end of the process, and seconds that writing may take.
_MAX_WAITING = 8
_END_S = 2.0


@dataclass(frozen=True)
class ExecutableKey:
    """Identifies the executable of a model.

    Attributes:
        folder: Folder of the executables.
        digest: Digest of all that the plans depend on.
        files: Absolute paths of the model's files.
        stamps: Size and time of each of these files when they were read.
    """

    folder: Path
    digest: str
    files: tuple[Path, ...]
    stamps: tuple[tuple[int, int], ...]

    @property
    def path(self) -> Path:
        """File of the executable."""
        return self.folder / f"{self.digest}{_SUFFIX}"


class ModelContent(NamedTuple):
    """The files of a model.

    Attributes:
        files: Absolute paths of the files.
        stamps: Size and time of each file before it was read.
        digest: Digest of what the graph depends on: the content of the files, and more.
    """

    files: tuple[Path, ...]
    stamps: tuple[tuple[int, int], ...]
    digest: str

    @classmethod
    def read(cls, files: Sequence[Path], digest: Callable[[], str]) -> ModelContent:
        """Reads the files of a model.

        Args:
            digest: Returns the digest; reads the files.

        Raises:
            OSError: A file is missing.
        """
        paths = tuple(f.absolute() for f in files)
        return cls(paths, _stamps(paths), digest())


def uses_executables() -> bool:
    """Returns whether executables are used: not if they are switched off, or passes are shown."""
    shows_passes = env_vars.EXPLAIN_PASSES.get() or env_vars.VERIFY.get()
    return bool(env_vars.EXECUTABLES.get()) and not shows_passes


def key_for(
    model: ModelContent, caps: DeviceCaps, level: int, cache_folder: Path
) -> ExecutableKey | None:
    """Returns the key of a model's executable; None for a simulator, which has none.

    Args:
        caps: Capabilities of the device.
        level: `optimize_level` of `clrt.load`.
        cache_folder: Folder of compiled programs.
    """
    if caps.simulator:
        return None
    tuning = digest_of([env_vars.cache_dir() / "tuning.json"])
    limits = (env_vars.FOLD_LIMIT.get(), env_vars.MAX_PATCHES.get(), env_vars.TWINS.get())
    facts = (caps.to_json(), str(level), tuning, str(limits))
    parts = (clrt.__version__, code_digest(), model.digest, *facts)
    return ExecutableKey(cache_folder / _FOLDER, text_digest(parts), model.files, model.stamps)


def _stamps(files: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Returns size in bytes and time of the last change, in nanoseconds, of each file."""
    found = [file.stat() for file in files]
    return tuple((status.st_size, status.st_mtime_ns) for status in found)


@cache
def code_digest() -> str:
    """Returns a digest of the sizes and times of clrt's own files, which change with its code."""
    root = Path(clrt.__file__).parent
    facts = []
    for folder in (root, root.parent / "kernels_cl"):
        pending = [str(folder)]
        while pending:
            with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir() and entry.name != "__pycache__":
                        pending.append(entry.path)
                    elif entry.name.endswith((".py", ".cl", ".clh", ".json")):
                        status = entry.stat()
                        facts.append(f"{entry.name} {status.st_size} {status.st_mtime_ns}")
    return text_digest(sorted(facts))


@gc_disabled
def find_executable(key: ExecutableKey) -> Executable | None:
    """Returns a stored executable; None if there is none that is whole and private."""
    path = key.path
    try:
        if not (is_private(key.folder.stat()) and is_private(path.lstat())):
            return None
        executable = read_executable(path, key.digest, key.files)
        os.utime(path)  # it was used: see `_MAX_FOLDER_BYTES`
        return executable
    except FileNotFoundError:
        return None
    except (ClrtError, OSError, *DAMAGED):
        _LOG.debug("executable %s cannot be used", path, exc_info=True)
        return None


@dataclass(eq=False)
class Recording:
    """Data with which the executable of a model is written, once its runs have made plans.

    Attributes:
        key: Identifies the executable.
        graph: Graph of the model.
        runner: Runner of the model; None once the model is gone, whose memory is then free.
        caps: Capabilities of the device.
        shapes: Sets of input shapes that a compiled model was made for.
        base: The executable that was found; None if there was none.
        texts: Returns texts to store beside the plans, by name.
        saved: Number of templates written that `base` lacks.
    """

    key: ExecutableKey
    graph: Graph
    runner: Runner | None
    caps: DeviceCaps
    shapes: Sequence[Mapping[str, Sequence[int]]] = ()
    base: Executable | None = None
    texts: Callable[[], Mapping[str, str]] = dict
    saved: int = 0
    _seen: Sequence[tuple[BranchPath, Sequence[tuple[Shapes, DeviceIo]]]] = ()

    def detach(self) -> None:
        """Lets go of a model that is gone; keeps its graph and the shapes to plan for, if small."""
        if self.runner is not None:
            planner, paths = self.runner.planner, self.runner.branch_paths()
            self._seen = [(path, planner.learner.seen(path.branch.graph)) for path in paths]
            self.runner = None
        if isinstance(self.graph, StoredGraph) or self._host_bytes() > _MAX_KEPT_BYTES:
            _AT_EXIT.drop(self)

    def _host_bytes(self) -> int:
        """Returns the size of the graph's constants that lie in no mapped file."""
        known = (v.type.known_elements for v in self.graph.constants())
        return sum(a.nbytes for a in known if isinstance(a, np.ndarray) and not is_mapped(a))

    def _templates(self) -> list[tuple[BranchPath, list[PlanTemplate | StoredTemplate]]]:
        """Returns the templates of the model's plans, by graph."""
        if self.runner is not None:
            with self.runner.lock:
                planner, paths = self.runner.planner, self.runner.branch_paths()
                return [(path, planner.learner.learned(path.branch.graph)) for path in paths]
        found = []
        for path, seen in self._seen:
            graph = path.branch.graph
            planner = Planner(graph, self.caps, False, self.caps.global_mem_bytes)
            for shapes, contract in seen:
                planner.stage(graph, shapes, contract=contract)
            found.append((path, planner.learner.learned(graph)))
        return found

    def save(self) -> None:
        """Writes the executable, unless the file has all templates already.

        Does nothing if a file of the model was changed after the model was loaded: weights mapped
        from the file may have changed with it.

        Raises:
            ClrtError, OSError: The file cannot be written.
        """
        if _stamps(self.key.files) != self.key.stamps:
            return
        templates = [
            (path, [t for t in each if isinstance(t, PlanTemplate)])
            for path, each in self._templates()
        ]
        count = sum(len(each) for _, each in templates)
        if count <= self.saved:
            return
        base = find_executable(self.key)  # another model or process may have written it meanwhile
        texts = self.texts() if base is None else base.texts
        writer = ExecutableWriter(self.graph, self.key.files, self.shapes, texts, base)
        try:
            for path, new in templates:
                index = writer.add_branch(path)
                for template in new:
                    if base is None or not base.serves(path.keys, template):
                        writer.add(index, template)
        except Unstorable as error:
            _LOG.debug("no executable of %s: %s", self.graph.name, error)
            return
        self.saved = count
        if writer.nbytes > MAX_CONSTANT_BYTES:
            return
        folder = self.key.folder
        make_cache_folder(folder)
        if is_private(folder.stat()):
            _make_room(folder, writer.nbytes)
            writer.write(self.key.path, self.key.digest)


def _make_room(folder: Path, nbytes: int) -> None:
    """Removes the least recently used executables of a folder until `nbytes` more fit."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    total = nbytes + sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= _MAX_FOLDER_BYTES:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


class _AtExit:
    """Writes executables when the process ends."""

    def __init__(self) -> None:
        self._waiting: list[Recording] = []
        self._process = os.getpid()
        self._lock: Any = RLock()
        atexit.register(self.save)

    def add(self, recording: Recording) -> None:
        with self._lock:
            if self._process != os.getpid():  # the parent process writes its own
                self._waiting, self._process = [], os.getpid()
            self._waiting.append(recording)
            del self._waiting[:-_MAX_WAITING]

    def drop(self, recording: Recording) -> None:
        with self._lock:
            if recording in self._waiting:
                self._waiting.remove(recording)

    def save_now(self, graph: Graph) -> None:
        for recording in tuple(self._waiting):
            if recording.graph is graph:
                recording.save()

    def save(self) -> None:
        end = time.monotonic() + _END_S
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for recording in reversed(waiting if self._process == os.getpid() else []):
            if time.monotonic() > end or sys.is_finalizing():
                return
            try:
                recording.save()
            except Exception:  # the next process plans again
                _LOG.debug("no executable of %s", recording.graph.name, exc_info=True)


_AT_EXIT = _AtExit()


def is_storable(runner: Runner) -> bool:
    """Returns whether stored plans could serve a model."""
    graph = runner.planner.graph
    values = [*graph.inputs, *graph.outputs]
    plain = all(type(v.type) is TensorType for v in values) and len(set(values)) == len(values)
    return plain and graph.defaults is None


def save_now(graph: Graph) -> None:
    """Writes the executable of a model that waits for the end of the process, if there is one.

    Args:
        graph: Graph of the model.
    """
    _AT_EXIT.save_now(graph)


def save_at_exit(recording: Recording, model: object) -> None:
    """Writes an executable when the process ends, if its model was planned by then.

    Args:
        model: The model, whose memory is free once nobody else refers to it.
    """
    _AT_EXIT.add(recording)
    finalize(model, recording.detach).atexit = False
