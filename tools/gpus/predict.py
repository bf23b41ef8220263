"""Rough predictions of launch times, from data-sheet rates and the losses of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clrt.kernels.gemm_matrix_unit_gpu import bytes_in_flight, products_of
from clrt.kernels.spec import KernelSpec

from .planning import Planned, Work
from .profiles import Profile

# Of kernels whose loops no disassembler shows: what those that are known have, about.
USUAL_SHARE = 0.5
# Of the peak of matrix units, which compute beside the instructions that feed them; an assumption.
_UNIT_SHARE = 0.6
# Work-items that a core needs to hide the latency of its instructions.
_ITEMS_PER_CORE = 256
# Work-items that go in step, of which those past the last of a group are idle.
_WAVE = 32
# Of memory; and bytes that a work-item has on the way at a time, of kernels that do not say it.
_LATENCY_S, _IN_FLIGHT = 0.6e-6, 16
_BYTES = {"half": 2, "ushort": 2, "uchar": 1}


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a run.

    Attributes:
        perfect: By data sheets alone: launches bound by operations or bytes, without overhead.
        likely: With launch overhead, idle cores and loop overhead; accurate to a factor of two.
        launching: Launch overhead in seconds.
        idle: Number of launches with fewer work-groups than the device has cores.
    """

    perfect: float
    likely: float
    launching: float
    idle: int


def predict(planned: Planned, shares: Mapping[KernelSpec, float]) -> Prediction:
    """Predicts the times of a model on a device.

    Args:
        shares: How much of the device's rate the main loop of a kernel reaches.
    """
    device, works = planned.profile, planned.work
    return Prediction(
        sum(seconds(w, device) for w in works),
        sum(device.launch_s + likely_seconds(w, device, shares) for w in works),
        len(works) * device.launch_s,
        sum(w.groups < device.caps.cores for w in works),
    )


def seconds(work: Work, device: Profile, share: float = 1.0) -> float:
    """Returns the seconds of a launch without idle cores, bound by its operations or bytes.

    Args:
        share: How much of the device's rate its operations reach.
    """
    return max(work.flops / (_flops(work, device) * share), work.nbytes / device.bytes_per_s)


def share_of(work: Work, shares: Mapping[KernelSpec, float]) -> float:
    """Returns the fraction of the peak rate that a launch reaches with all cores busy."""
    return _UNIT_SHARE if products_of(work.kernel) else shares.get(work.kernel, USUAL_SHARE)


def likely_seconds(work: Work, device: Profile, shares: Mapping[KernelSpec, float]) -> float:
    """Returns the seconds of a launch including idle cores and lanes."""
    share, items = share_of(work, shares), work.groups * work.items
    # The last round of work-groups leaves cores idle, and few work-items leave lanes so.
    cores = device.caps.cores
    rounds = -(-work.groups // cores)
    busy = min(work.groups / (rounds * cores), items / (cores * _ITEMS_PER_CORE))
    busy *= work.items / (-(-work.items // _WAVE) * _WAVE)
    reached = min(device.bytes_per_s, items * _in_flight(work.kernel) / _LATENCY_S)
    return max(work.flops / (_flops(work, device) * share * busy), work.nbytes / reached)


def _flops(work: Work, device: Profile) -> float:
    """Returns the operation rate of a launch: the matrix unit's over its products per result."""
    products = products_of(work.kernel)
    return device.unit_flops / products if products else device.flops


def _in_flight(kernel: KernelSpec) -> float:
    """Bytes that a work-item has on the way: the elements that it reads before it uses the first
    (T_HELD); of tiles in local memory, a slice of both operands.
    """
    if products_of(kernel):
        return bytes_in_flight(kernel)
    macros = dict(kernel.defines)
    if "T_HELD" in macros:
        return int(macros["T_HELD"]) * _BYTES.get(macros.get("CACHE_T") or macros["DATA_T"], 4)
    if kernel.entry not in ("gemm_gpu", "conv_gpu"):
        return _IN_FLIGHT
    rows, columns, depth = (int(macros[name]) for name in ("T_RM", "T_RN", "T_TK"))
    return 4 * depth * (rows + columns) / 16
