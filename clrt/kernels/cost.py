"""Cost model of kernel variants: predicts seconds from FLOPs, bytes and launches."""

from __future__ import annotations

from typing import ClassVar

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Node
from clrt.ir.symbolic_trace import untraced
from clrt.kernels.thresholds import Thresholds, tunable
from clrt.kernels.tuning_records import device_thresholds
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class WorkEstimate:
    """Work of a variant on one node, including padding and copies.

    Attributes:
        flops: Floating-point operations.
        nbytes: Bytes read and written.
        launches: Number of kernel launches.
    """

    flops: int
    nbytes: int = 0
    launches: int = 1


class Efficiency(Thresholds):
    """Fractions of a device's peak rates that the kernels of a variant reach."""

    compute: int = tunable(80, "percent", "Of the rate of floating-point operations.")
    memory: int = tunable(50, "percent", "Of the memory bandwidth.")

    group: ClassVar = "fast_kernels"


class PlainEfficiency(Efficiency):
    """Fractions of kernels with one work-item per element and no register blocking."""

    compute: int = tunable(10, "percent", "Of the rate of floating-point operations.")
    memory: int = tunable(10, "percent", "Of the memory bandwidth.")

    group: ClassVar = "plain_kernels"


class CpuRates(Thresholds):
    """Estimated rates of a CPU, to rank variants."""

    mflops: int = tunable(
        112_000, "MFLOP/s per core", "Two FMAs of `lanes` numbers per cycle at 3.5 GHz."
    )
    lanes: int = tunable(
        8, "float32 lanes", "Maximum that counts: Zen 4 needs two cycles for registers of 16 lanes."
    )
    mbytes: int = tunable(12_000, "MB/s per core", "Estimated memory bandwidth.")
    launch_ns: int = tunable(4_000, "ns", "Estimated fixed overhead per launch.")

    group: ClassVar = "cpu_rates"


class GpuRates(Thresholds):
    """Estimated rates of a GPU, to rank variants."""

    mflops: int = tunable(384_000, "MFLOP/s per core", "128 FMAs per cycle at 1.5 GHz.")
    mbytes: int = tunable(8_000, "MB/s per core", "Estimated memory bandwidth.")
    launch_ns: int = tunable(4_000, "ns", "Estimated fixed overhead per launch.")

    group: ClassVar = "gpu_rates"


@dataclass(frozen=True)
class DeviceRates:
    """Estimated rates of a device.

    Attributes:
        flops: Floating-point operations per second.
        nbytes: Memory bandwidth in bytes per second.
        launch_s: Fixed overhead per launch, in seconds.
    """

    flops: float
    nbytes: float
    launch_s: float


def rates_of(caps: DeviceCaps) -> DeviceRates:
    """Returns the estimated rates of a device."""
    if caps.is_cpu:
        cpu = device_thresholds(CpuRates, caps)
        share = min(caps.float_lanes, cpu.lanes) / cpu.lanes
        return _rates(caps.cores, cpu.mflops * share, cpu.mbytes, cpu.launch_ns)
    gpu = device_thresholds(GpuRates, caps)
    return _rates(caps.cores, gpu.mflops, gpu.mbytes, gpu.launch_ns)


def _rates(cores: int, mflops: float, mbytes: int, launch_ns: int) -> DeviceRates:
    """Returns the rates of a device from those of a core."""
    return DeviceRates(cores * mflops * 1e6, cores * mbytes * 1e6, launch_ns / 1e9)


def work_of(node: Node, caps: DeviceCaps) -> WorkEstimate:
    """Returns the minimum work of a node: its op's FLOPs, and each operand read or written once."""
    values = {v: None for v in (*node.inputs, *node.outputs) if v is not None}
    flops = node.op.flops(node.input_types, [v.type for v in node.outputs])
    return WorkEstimate(flops, sum(v.nbytes for v in values))


def seconds(work: WorkEstimate, speed: Efficiency, caps: DeviceCaps) -> float:
    """Returns the predicted time of a kernel variant in seconds.

    Compute and memory time overlap; launch overhead is added.

    Args:
        work: Work of the variant on a node.
        speed: Fractions of the device's peak rates that the variant reaches.
    """
    rates = rates_of(caps)
    computing = untraced(work.flops) / (rates.flops * (speed.compute / 100))
    moving = untraced(work.nbytes) / (rates.nbytes * (speed.memory / 100))
    return work.launches * rates.launch_s + max(computing, moving)
