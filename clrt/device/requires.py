"""Device requirements of kernels, and their check against a device's capabilities."""

from __future__ import annotations

from clrt.device.caps import DeviceCaps, MatrixShape
from clrt.util.fast_dataclass import dataclass

_CPU, _OTHERS = frozenset({"cpu"}), frozenset({"gpu", "igpu", "accelerator"})


@dataclass(frozen=True)
class Requires:
    """Requirements of a kernel on a device; the defaults require nothing beyond OpenCL 1.2.

    Attributes:
        kinds: Device kinds that the kernel is written for; empty for all.
        opencl_c: (major, minor) of the OpenCL C version that the kernel needs.
        extensions: OpenCL extensions that the kernel needs.
        work_group_size: Work-items per work-group.
        sub_group_size: Sub-group size that the kernel requests; 0 if it uses no sub-groups.
        local_mem_bytes: Local memory per work-group, in bytes.
        matrix: Matrix instruction that the kernel uses; None for none.
    """

    kinds: frozenset[str] = frozenset()
    opencl_c: tuple[int, int] = (1, 2)
    extensions: frozenset[str] = frozenset()
    work_group_size: int = 1
    sub_group_size: int = 0
    local_mem_bytes: int = 0
    matrix: MatrixShape | None = None

    def missing(self, caps: DeviceCaps) -> str | None:
        """Returns the first requirement that a device does not meet, as a clause; None if none."""
        if self.kinds and caps.kind not in self.kinds:
            return f"for devices of kind {' or '.join(sorted(self.kinds))}, not {caps.kind}"
        missing = self.extensions - caps.extensions
        if missing:
            return f"needs {', '.join(sorted(missing))}"
        if self.opencl_c > caps.opencl_c:
            needed, available = (".".join(map(str, v)) for v in (self.opencl_c, caps.opencl_c))
            return f"needs OpenCL C {needed}; the device has {available}"
        if self.work_group_size > caps.max_work_group_size:
            available = str(caps.max_work_group_size)
            return f"needs work-groups of {self.work_group_size} items; the device has {available}"
        if self.local_mem_bytes > caps.local_mem_bytes:
            available = str(caps.local_mem_bytes)
            return f"needs {self.local_mem_bytes} bytes of local memory; the device has {available}"
        if self.sub_group_size and self.sub_group_size not in caps.sub_group_sizes:
            return f"needs sub-groups of {self.sub_group_size} work-items"
        if self.matrix is not None and self.matrix not in caps.matrix_shapes:
            return f"needs a matrix unit for {self.matrix}"
        return None


ANY = Requires()
CPU = Requires(kinds=_CPU)
GPU = Requires(kinds=_OTHERS)
FLOAT64 = Requires(extensions=frozenset({"cl_khr_fp64"}))
