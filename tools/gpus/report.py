"""The page of the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from clrt.kernels.spec import KernelSpec

from .compiling import Results, describe
from .planning import Planned
from .predict import predict
from .profiles import Profile
from .targets import STRICT, TARGETS, Compiled

_INTRO = """\
# GPUs, planned and compiled

What clrt launches on GPUs, and what compilers for them make of its kernels, found without a GPU:
`make gpu-report` makes this page. Models are planned for devices as their vendors publish them, and
each distinct kernel of the plans is compiled for the nearest target that a compiler here knows. No
time on this page was measured.

The report fails where a kernel does not compile, spills registers or has a stack, or where a device
would refuse a launch.

## Running it

The compilers are found on the path, or below the folder that `CLRT_GPU_TOOLS` names, into which
packages may be unpacked by `dpkg -x` and `pip install --target`.

| For | Packages |
|---|---|
| AMD | Debian's `clang-19` and `libclc-19` |
| NVIDIA | these, and from PyPI `nvidia-cuda-nvcc` and `nvidia-cuda-nvdisasm` |
| Intel | Debian's `intel-opencl-icd` and `libigc-tools`, which have `ocloc` and its compiler |
| OpenCL C 1.2 | `clang-19` |

`make gpu-report ARGS="--no-compile"` plans alone, which needs none of them.
"""

_DEVICES = """\
## Devices

*units* are compute units as the device's OpenCL runtime counts them, *local* is local memory of a
work-group, *buffer* the largest one. None of it was read from a device, and *launch*, which no
vendor publishes, is assumed. Where compilers here do not know a device, its target is the nearest
one: `gfx90a` for RX 580 and MI300X, `gfx1100` for 780M, `sm_80` for GTX 1060, `pvc` for B580.
"""

_MODELS = """\
## Models

*perfect* is the time of a device that does each launch at the rates of its data sheet, by
operations or by bytes, and that starts launches in no time. *likely* adds what a launch takes,
units and lanes that too few work-groups leave idle, bytes that too few work-items ask for at a
time, and the instructions of a kernel's main loop that do not multiply (half, where no compiler
showed them). It tells devices and launches apart; take it for a time to a factor of two, and for
`strict` not even that. *groups per unit* is of the launch in the middle, and *idle* counts
launches with fewer work-groups than compute units.
"""

_KERNELS = """\
## Kernels

A row has all programs of a kernel, which differ by their macros. A cell has *registers* ·
*occupancy* · *multiplying share of the main loop*, each from the least to the most; it is bold
where a program spills or has a stack. Registers are those of a work-item, on Intel's those of a
thread; occupancy is in waves of a scheduler (AMD) and warps of a multiprocessor (NVIDIA), and
Intel's is how many work-items a thread has. *local* is bytes of local memory. `strict` is OpenCL C
1.2 without extensions, which is compiled no further: ✓.
"""


@dataclass(frozen=True)
class Page:
    """What the report is about.

    Attributes:
        refused: Launches that devices would refuse.
    """

    devices: Sequence[Profile]
    plans: Sequence[Planned]
    results: Results
    refused: Sequence[str]

    def __str__(self) -> str:
        parts = [_INTRO, _DEVICES, *self._devices(), _MODELS, *self._models()]
        if self.results.compiled:
            parts += [_KERNELS, *self._kernels()]
        return "\n".join([*parts, *self._faults()]).rstrip("\n") + "\n"

    def _devices(self) -> Iterator[str]:
        yield _row("Device", "Target", "Units", "Local", "Buffer", "TFLOP/s", "GB/s", "Launch")
        yield _rule(8, 2)
        for d in self.devices:
            yield _row(
                *(d.name, d.target, d.caps.compute_units, f"{d.caps.local_mem_bytes >> 10} KiB"),
                *(_mebibytes(d.caps.max_alloc_bytes), f"{d.flops / 1e12:.3g}"),
                *(f"{d.bytes_per_s / 1e9:.4g}", f"{d.launch_s * 1e6:.0f} µs"),
            )
        yield "\nWho publishes the figures, which have not been compared with these pages again:\n"
        yield from (f"- {d.name}: {d.source}." for d in self.devices)
        yield ""

    def _models(self) -> Iterator[str]:
        by_model: dict[str, list[Planned]] = defaultdict(list)
        for planned in self.plans:
            by_model[planned.model].append(planned)
        shares = {t: self.results.shares(t) for t in TARGETS}
        for name, rows in by_model.items():
            yield f"### {name}\n"
            yield _row(
                "Device", "Launches", "On the host", "Groups per unit", "Idle", "Perfect", "Likely"
            )
            yield _rule(7, 1)
            for planned in (p for p in rows if not p.error):
                yield self._model_row(planned, shares[planned.profile.target])
            yield ""
            lines = [f"- {p.profile.name}: {p.error}" for p in rows if p.error]
            yield from (["Does not fit:\n", *lines, ""] if lines else [])

    @staticmethod
    def _model_row(planned: Planned, shares: Mapping[KernelSpec, float]) -> str:
        found, units = predict(planned, shares), planned.profile.caps.compute_units
        return _row(
            *(planned.profile.name, len(planned.work), len(planned.host)),
            f"{median(w.groups / units for w in planned.work):.2g}",
            *(found.idle, f"{found.perfect * 1e3:.3g} ms", f"{found.likely * 1e3:.3g} ms"),
        )

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
        errors = (f"{describe(p.kernel)} on {p.target}" for p in self.results.errors)
        for title, lines in (
            ("Programs that do not compile", errors),
            ("Programs that spill registers or have a stack", self.results.misfits()),
            ("Launches that devices would refuse", self.refused),
        ):
            listed = sorted(set(lines))
            yield f"## {title}\n"
            yield from (f"- {line}" for line in listed or ["None."])
            yield ""


def _cell(target: str, made: Sequence[Compiled]) -> str:
    if not made or target == STRICT:
        return "✓" if made else ""
    shares = [100 * c.loop.share for c in made if c.loop is not None]
    parts = [_range(c.registers for c in made), _occupancies(made)]
    if shares:
        parts.append(f"{_range(map(round, shares))} %")
    return " · ".join(parts) if all(c.fits for c in made) else f"**{' · '.join(parts)}**"


def _occupancies(made: Sequence[Compiled]) -> str:
    if made[0].occupancy.startswith("SIMD"):
        return f"SIMD{_range(int(c.occupancy[4:]) for c in made)}"
    return _range(int(c.occupancy.split()[0]) for c in made)


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


def _mebibytes(nbytes: int) -> str:
    return f"{nbytes / 2**30:.3g} GiB" if nbytes >= 2**30 else f"{nbytes >> 20} MiB"


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _rule(columns: int, left: int) -> str:
    return f"|{'|'.join(['---'] * left + ['---:'] * (columns - left))}|"
