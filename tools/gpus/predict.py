"""How long launches take, roughly: rates of data sheets, and what keeps kernels from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clrt.kernels.gemm_unit import products_of
from clrt.kernels.spec import KernelSpec

from .planning import Planned, Work
from .profiles import Profile

# Of kernels whose loops no disassembler shows: what those that are known have, about.
_USUAL_SHARE = 0.5
# Of the peak of matrix units, which compute beside the instructions that feed them; an assumption.
_UNIT_SHARE = 0.6
# Work-items that a compute unit needs to hide the latency of its instructions.
_ITEMS_PER_UNIT = 256
# Work-items that go in step, of which those past the last of a group are idle.
_WAVE = 32
# Of memory; and bytes that a work-item has on the way at a time.
_LATENCY_S, _IN_FLIGHT = 0.6e-6, 16


@dataclass(frozen=True)
class Prediction:
    """Seconds of a run.

    Attributes:
        perfect: By data sheets alone: each launch by its operations or its bytes, none waits.
        likely: With launches, idle units and the other instructions of loops; to a factor of two.
        idle: How many launches have fewer work-groups than the device has compute units.
    """

    perfect: float
    likely: float
    idle: int


def predict(planned: Planned, shares: Mapping[KernelSpec, float]) -> Prediction:
    """The times of a model on a device.

    Args:
        shares: How much of a kernel's main loop multiplies and adds.
    """
    device = planned.profile
    return Prediction(
        sum(max(w.flops / _flops(w, device), w.nbytes / device.bytes_per_s) for w in planned.work),
        sum(_likely(w, device, _share(w, shares)) for w in planned.work),
        sum(w.groups < device.caps.compute_units for w in planned.work),
    )


def _flops(work: Work, device: Profile) -> float:
    """The rate of a launch's operations: of the matrix unit over its products for each."""
    products = products_of(work.kernel)
    return device.unit_flops / products if products else device.flops


def _share(work: Work, shares: Mapping[KernelSpec, float]) -> float:
    return _UNIT_SHARE if products_of(work.kernel) else shares.get(work.kernel, _USUAL_SHARE)


def _likely(work: Work, device: Profile, share: float) -> float:
    units, items = device.caps.compute_units, work.groups * work.items
    # The last round of work-groups leaves units idle, and few work-items leave lanes so.
    rounds = -(-work.groups // units)
    busy = min(work.groups / (rounds * units), items / (units * _ITEMS_PER_UNIT))
    busy *= work.items / (-(-work.items // _WAVE) * _WAVE)
    computing = work.flops / (_flops(work, device) * share * busy)
    reached = min(device.bytes_per_s, items * _IN_FLIGHT / _LATENCY_S)
    return device.launch_s + max(computing, work.nbytes / reached)
