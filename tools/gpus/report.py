"""Page of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from clrt.kernels.spec import KernelSpec

from . import page_texts as texts
from .aims import AIMS, DEVICES, aims_of
from .checks import idle_launches
from .compiling import Results
from .faults import Faults
from .planning import Planned
from .predict import predict
from .profiles import Profile
from .targets import STRICT, TARGETS, Compiled

# By target, how much of the rate of a device the main loops of kernels reach.
Shares: TypeAlias = "Mapping[str, Mapping[KernelSpec, float]]"


@dataclass(frozen=True)
class Page:
    """Contents of the report.

    Attributes:
        faults: Faults that make it fail.
    """

    devices: Sequence[Profile]
    plans: Sequence[Planned]
    results: Results
    faults: Faults

    def __str__(self) -> str:
        shares = {t: self.results.shares(t) for t in TARGETS}
        parts = [texts.INTRO, texts.DEVICES, *self._devices(), texts.MODELS, *self._models(shares)]
        parts += [texts.AIMS, *self._aims(shares), texts.IDLE, *self._idle(shares)]
        if self.results.compiled:
            parts += [texts.KERNELS, *self._kernels()]
        return "\n".join([*parts, *self._faults()]).rstrip("\n") + "\n"

    def _devices(self) -> Iterator[str]:
        yield _row(
            "Device", "Target", "Units", "Cores", "Local", "Buffer", "TFLOP/s", "GB/s", "Launch"
        )
        yield _rule(9, 2)
        for d in self.devices:
            caps = d.caps
            yield _row(
                *(d.name, d.target, caps.compute_units, caps.cores),
                *(f"{caps.local_mem_bytes >> 10} KiB", _mebibytes(caps.max_alloc_bytes)),
                *(f"{d.flops / 1e12:.3g}", f"{d.bytes_per_s / 1e9:.4g}"),
                f"{d.launch_s * 1e6:.0f} µs",
            )
        yield f"\n{texts.SOURCES}"
        for d in self.devices:
            yield f"- {d.name}: {d.source}. Compared with: {d.compared or 'nothing'}."
        yield ""

    def _models(self, shares: Shares) -> Iterator[str]:
        by_model: dict[str, list[Planned]] = defaultdict(list)
        for planned in self.plans:
            by_model[planned.model].append(planned)
        for name, rows in by_model.items():
            yield f"### {name}\n"
            yield _row(
                *("Device", "Launches", "On the host", "Groups per core", "Idle"),
                *("Perfect", "Likely", "Launching"),
            )
            yield _rule(8, 1)
            for planned in (p for p in rows if not p.error):
                yield self._model_row(planned, shares[planned.profile.target])
            yield ""
            lines = [f"- {p.profile.name}: {p.error}" for p in rows if p.error]
            yield from (["Does not fit:\n", *lines, ""] if lines else [])

    @staticmethod
    def _model_row(planned: Planned, shares: Mapping[KernelSpec, float]) -> str:
        found, cores = predict(planned, shares), planned.profile.caps.cores
        times = (found.perfect, found.likely, found.launching)
        return _row(
            *(planned.profile.name, len(planned.work), len(planned.host)),
            *(f"{median(w.groups / cores for w in planned.work):.2g}", found.idle),
            *(f"{1e3 * t:.3g} ms" for t in times),
        )

    def _aims(self, shares: Shares) -> Iterator[str]:
        yield _row("Model", "Device", "At most", "Predicted")
        yield _rule(4, 2)
        for aim, device, predicted, fine in aims_of(self.plans, shares):
            yield _row(aim.model, device, aim, predicted if fine else f"**{predicted}**")
        yield ""

    def _idle(self, shares: Shares) -> Iterator[str]:
        wanted = {aim.model for aim in AIMS}
        for planned in self.plans:
            if planned.model not in wanted or planned.profile.name not in DEVICES:
                continue
            yield f"{planned.model}, {planned.profile.name}:\n"
            found = idle_launches(planned, shares[planned.profile.target])
            lines = [f"- {i}: {i.reason or 'no reason is given'}." for i in found]
            yield from (lines or ["- None."])
            yield ""

    def _kernels(self) -> Iterator[str]:
        by_entry: dict[str, dict[str, list[Compiled]]] = defaultdict(lambda: defaultdict(list))
        programs: dict[str, set[object]] = defaultdict(set)
        for (kernel, target), made in self.results.compiled.items():
            by_entry[kernel.entry][target].append(made)
            programs[kernel.entry].add(kernel)
        yield _row("Kernel", "Programs", "Local", *TARGETS)
        yield _rule(3 + len(TARGETS), 1)
        for entry, found in sorted(by_entry.items()):
            local = [c.local for made in found.values() for c in made]
            cells = (_cell(target, found.get(target, [])) for target in TARGETS)
            yield _row(f"`{entry}`", len(programs[entry]), max(local), *cells)
        yield ""

    def _faults(self) -> Iterator[str]:
        for title, lines in self.faults.titled():
            yield f"## {title}\n"
            yield from (f"- {line}" for line in sorted(set(lines)) or ["None."])
            yield ""


def _cell(target: str, made: Sequence[Compiled]) -> str:
    if not made or target == STRICT:
        return "✓" if made else ""
    loops = [c.loop for c in made if c.loop is not None]
    parts = [_range(c.registers for c in made), _occupancies(made)]
    if loops:
        parts.append(f"{_percents(loop.share for loop in loops)} %")
    if any(loop.slots for loop in loops):
        parts.append(f"{_percents(loop.filled for loop in loops)} % of slots")
    return " · ".join(parts) if all(c.fits for c in made) else f"**{' · '.join(parts)}**"


def _occupancies(made: Sequence[Compiled]) -> str:
    if made[0].occupancy.startswith("SIMD"):
        return f"SIMD{_range(int(c.occupancy[4:]) for c in made)}"
    return _range(int(c.occupancy.split()[0]) for c in made)


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


def _percents(shares: Iterable[float]) -> str:
    return _range(round(100 * s) for s in shares)


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB" if nbytes >= 2**30 else f"{nbytes >> 20} MiB"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _rule(columns: int, left: int) -> str:
    return f"|{'|'.join(['---'] * left + ['---:'] * (columns - left))}|"
