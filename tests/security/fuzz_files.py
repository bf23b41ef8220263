"""Loads and runs mutants of models in separate processes, and reports how each ends.

    python -m tests.security.fuzz_files onnx 20000
    CLRT_FUZZ_SEED=4711 python -m tests.security.fuzz_files clrt
    python -m tests.security.fuzz_files sizes 500 --oclgrind

A mutant must end in a run, or in a `ClrtError` that blames model, inputs or device; within a time
and an amount of memory. Failures are kept as files, by default under build/fuzz.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory

KINDS = ("onnx", "clrt", "sizes", "executables")
# Of processor time, which other work on the machine does not lengthen; a process that sleeps has
# ten times as long.
LIMIT_S = 20.0
LIMIT_BYTES = 4 << 30
# How many times as long a mutant may take under Oclgrind.
_SIMULATED = 10
# A process is replaced before what it keeps (programs, plans) counts as a mutant's.
_RENEW_AFTER = 250
_RENEW_BYTES = 3 << 29
_BUGS = ("PassError", "PlanError", "KernelBuildError")


@dataclass(frozen=True)
class Ending:
    """How a mutant ended.

    Attributes:
        how: "ran", "too large" for made-up inputs, the class of an error, "crash", "hang",
            "memory", or "access" where Oclgrind found one outside a tensor. An executable "ran",
            was "planned" anew, or "differs" in its results.
        where: The function that raised, and what it said.
        allowed: Whether a mutant may end so.
        is_code: Whether the mutant may have other kernels, launches, formulas or buffers, whose
            accesses clrt does not check.
    """

    seed: int
    how: str
    where: str = ""
    allowed: bool = True
    is_code: bool = False

    @property
    def group(self) -> str:
        """What failures of one cause share."""
        return f"{self.how} {self.where.splitlines()[0] if self.where else ''}"


def contents(kind: str, seed: int) -> dict[str, bytes]:
    """The files of a mutant by name, the model first."""
    if kind == "clrt":
        from tests.security.mutate_compiled import compiled_mutant

        return {"m.clrt": compiled_mutant(seed)}
    if kind == "sizes":
        from tests.security.mutate_sizes import sizes_mutant

        return {"m.onnx": sizes_mutant(seed)}
    if kind == "executables":
        from tests.security.mutate_executables import stored_mutant

        with TemporaryDirectory() as folder:
            mutant = stored_mutant(seed, Path(folder))
            beside = mutant.stored.path.parent.iterdir()
            files = {file.name: file.read_bytes() for file in beside}
            return files | {mutant.stored.executable.name: mutant.content}
    from tests.security.mutate_onnx import onnx_mutant
    from tests.security.seeds import EXTERNAL

    model, beside = onnx_mutant(seed)
    return {"m.onnx": model, EXTERNAL: beside}


def end_of(kind: str, seed: int, folder: Path) -> Ending:
    """Loads and runs a mutant in this process."""
    from clrt.errors import ClrtError

    try:
        run = _run_executable if kind == "executables" else _run_file
        return run(kind, seed, folder)
    except ClrtError as error:
        how = type(error).__name__
        return Ending(seed, how, _where(error), how not in _BUGS)
    except Exception as error:
        return Ending(seed, type(error).__name__, _where(error), False)


def _run_file(kind: str, seed: int, folder: Path) -> Ending:
    import clrt
    from tests.security.made_up_inputs import made_up

    files = contents(kind, seed)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    # What a mutant asks of the device is refused as an app would have it. Results may be as large,
    # and are copied to the host: both together stay below LIMIT_BYTES.
    with clrt.load(folder / next(iter(files)), memory_limit="1536MiB") as model:
        feeds = made_up(model)
        if feeds is None:
            return Ending(seed, "too large")
        model.run(feeds)
    return Ending(seed, "ran")


def _run_executable(kind: str, seed: int, folder: Path) -> Ending:
    """Runs a model beside a mutated executable.

    "differs" is allowed if the digests fit: the file may be the executable of another model.
    """
    from clrt.errors import KernelBuildError
    from tests.security.mutate_executables import stored_mutant

    mutant = stored_mutant(seed, folder)
    if mutant.is_code and os.environ.get("CLRT_DEVICE") != "oclgrind":
        return Ending(seed, "code")  # on a device of its own process, it may end that
    try:
        how = mutant.stored.run(mutant.content)
    except KernelBuildError as error:
        return Ending(seed, "KernelBuildError", _where(error), mutant.is_code)
    return Ending(seed, how, "", how != "differs" or mutant.is_sealed, mutant.is_code)


def _where(error: BaseException) -> str:
    """The innermost function of clrt below the error, and the message."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f"{os.sep}clrt{os.sep}" in f.filename] or frames
    inner = f"{Path(own[-1].filename).name}:{own[-1].name}"
    return f"{inner}\n{str(error)[:2000]}\n{''.join(traceback.format_tb(error.__traceback__)[-6:])}"


def _accesses(ending: Ending, log: Path) -> Ending:
    """The ending of a mutant, or what Oclgrind wrote about it."""
    found = log.read_text("utf-8", "replace") if log.exists() else ""
    if not found.strip():
        return ending
    log.write_text("", "utf-8")
    return Ending(ending.seed, "access", found.strip("\0\n")[:4000], ending.is_code)


def _work(connection: Connection, kind: str, pause_s: float, simulated: bool) -> None:
    """Ends mutants whose seeds come in, until there are no more."""
    warnings.simplefilter("ignore")
    from tests.security import mutate_compiled, mutate_onnx  # noqa: F401  (before the clock runs)

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    with TemporaryDirectory() as folder:
        log = Path(folder) / "oclgrind.log"
        if simulated:
            os.environ |= {"CLRT_DEVICE": "oclgrind", "OCLGRIND_LOG": str(log)}
        end_of(kind, -1, Path(folder))
        connection.send(None)
        while (seed := connection.recv()) is not None:
            time.sleep(pause_s)
            ending = _accesses(end_of(kind, seed, Path(folder)), log)
            connection.send((ending, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


class _Worker:
    """A process that ends mutants one by one.

    Args:
        pause_s: How long it sleeps before each: a hang, for the test of the limit.
        simulated: Whether Oclgrind is its device.
    """

    def __init__(self, kind: str, pause_s: float = 0.0, simulated: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.limit_s = LIMIT_S * (_SIMULATED if simulated else 1)
        given = (other, kind, pause_s, simulated)
        self.process = context.Process(target=_work, args=given, daemon=True)
        self.process.start()
        other.close()
        self.connection.recv()
        self.done = 0
        self.peak_bytes = 0

    def end(self, seed: int) -> Ending:
        """How a mutant ends; where that is by force, the process is gone."""
        start, cpu = time.monotonic(), self._cpu_seconds()
        self.done += 1
        with suppress(BrokenPipeError):
            self.connection.send(seed)
        while not self.connection.poll(0.1):
            over = self._cpu_seconds() - cpu > self.limit_s
            over |= time.monotonic() - start > 10 * self.limit_s
            if over or self._rss_bytes() > LIMIT_BYTES:
                self.stop()
                return Ending(seed, "hang" if over else "memory", allowed=False)
        try:
            ending, peak = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            return Ending(seed, "crash", f"exit status {self.process.exitcode}", False)
        self.peak_bytes = peak * (1 if sys.platform == "darwin" else 1024)
        if self.peak_bytes > LIMIT_BYTES:
            return Ending(seed, "memory", f"{self.peak_bytes >> 20} MiB", False)
        return ending  # type: ignore[no-any-return]

    @property
    def spent(self) -> bool:
        """Whether another process should go on."""
        many = self.done >= _RENEW_AFTER or self.peak_bytes > _RENEW_BYTES
        return many or not self.process.is_alive()

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()

    def _cpu_seconds(self) -> float:
        try:
            fields = (
                Path(f"/proc/{self.process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
            )
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _rss_bytes(self) -> int:
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text("utf-8").split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")


def endings(
    kind: str, seeds: Iterable[int], workers: int = 1, simulated: bool = False
) -> Iterator[Ending]:
    """How mutants end, in any order."""
    todo: SimpleQueue[int] = SimpleQueue()
    for seed in seeds:
        todo.put(seed)
    count = todo.qsize()
    found: SimpleQueue[Ending] = SimpleQueue()

    def run() -> None:
        worker = None
        while True:
            try:
                seed = todo.get_nowait()
            except Empty:
                break
            worker = worker or _Worker(kind, simulated=simulated)
            found.put(worker.end(seed))
            if worker.spent:
                worker.stop()
                worker = None
        if worker is not None:
            worker.stop()

    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(run) for _ in range(workers)]
        for _ in range(count):
            while True:
                try:
                    yield found.get(timeout=1)
                    break
                except Empty:
                    for task in tasks:
                        if task.done():
                            task.result()


def keep(kind: str, ending: Ending) -> Path:
    """Saves the files of a failure, and what is known of it; says where."""
    folder = Path(os.environ.get("CLRT_FUZZ_OUT", "build/fuzz")) / f"{kind}-{ending.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents(kind, ending.seed).items():
        (folder / name).write_bytes(data)
    (folder / "ending.txt").write_text(f"{ending.how}\n{ending.where}\n", errors="replace")
    return folder


def chosen(count: int) -> Sequence[int]:
    """The seeds to run: that of CLRT_FUZZ_SEED alone, or the first so many."""
    seed = os.environ.get("CLRT_FUZZ_SEED")
    return range(count) if seed is None else [int(seed)]


def main() -> int:
    """The command; 1 where a mutant failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--oclgrind", action="store_true", help="find accesses outside tensors")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    seeds = [seed + given.first for seed in chosen(given.count)]
    counts: Counter[str] = Counter()
    groups: dict[str, list[int]] = {}
    found = endings(given.kind, seeds, given.workers, given.oclgrind)
    for done, ending in enumerate(found, start=1):
        counts[ending.how] += 1
        if not ending.allowed:
            same = groups.setdefault(ending.group, [])
            same.append(ending.seed)
            if len(same) == 1:
                print(f"{ending.group}\n  {keep(given.kind, ending)}", flush=True)
        if done % 500 == 0:
            print(f"{done} of {len(seeds)}: {dict(counts)}", flush=True)
    for group, same in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"{len(same):6} {group}  (seeds {', '.join(map(str, same[:5]))})")
    print(f"{len(seeds)} mutants: {dict(counts)}; {sum(map(len, groups.values()))} failures")
    return 1 if groups else 0


if __name__ == "__main__":
    sys.exit(main())
