"""What a kernel asks of a device, as data, and the one place where the two are compared."""

from __future__ import annotations

from dataclasses import dataclass

from clrt.device.caps import DeviceCaps, MatrixShape

_CPU, _OTHERS = frozenset({"cpu"}), frozenset({"gpu", "igpu", "accelerator"})


@dataclass(frozen=True)
class Requires:
    """What a device must have. By default nothing that OpenCL 1.2 does not promise.

    Attributes:
        kinds: Kinds of devices that the kernel is made for; empty for all.
        opencl_c: The language version that it is written in.
        extensions: Extensions that it uses.
        work_group_size: Work-items of its work-groups.
        sub_group_size: Work-items of its sub-groups, which the device must offer; 0: it has none.
        local_mem_bytes: Local memory of a work-group.
        matrix: What it multiplies by a matrix unit.
    """

    kinds: frozenset[str] = frozenset()
    opencl_c: tuple[int, int] = (1, 2)
    extensions: frozenset[str] = frozenset()
    work_group_size: int = 1
    sub_group_size: int = 0
    local_mem_bytes: int = 0
    matrix: MatrixShape | None = None

    def missing(self, caps: DeviceCaps) -> str | None:
        """What a device lacks; None where it has everything."""
        if self.kinds and caps.kind not in self.kinds:
            return f"for devices of kind {' or '.join(sorted(self.kinds))}, not {caps.kind}"
        missing = self.extensions - caps.extensions
        if missing:
            return f"needs {', '.join(sorted(missing))}"
        if self.opencl_c > caps.opencl_c:
            wanted, had = (".".join(map(str, v)) for v in (self.opencl_c, caps.opencl_c))
            return f"needs OpenCL C {wanted}; the device has {had}"
        if self.work_group_size > caps.max_work_group_size:
            had = str(caps.max_work_group_size)
            return f"needs work-groups of {self.work_group_size} items; the device has {had}"
        if self.local_mem_bytes > caps.local_mem_bytes:
            had = str(caps.local_mem_bytes)
            return f"needs {self.local_mem_bytes} bytes of local memory; the device has {had}"
        if self.sub_group_size and self.sub_group_size not in caps.sub_group_sizes:
            return f"needs sub-groups of {self.sub_group_size} work-items"
        if self.matrix is not None and self.matrix not in caps.matrix_shapes:
            return f"needs a matrix unit for {self.matrix}"
        return None


ANY = Requires()
CPU = Requires(kinds=_CPU)
GPU = Requires(kinds=_OTHERS)
FLOAT64 = Requires(extensions=frozenset({"cl_khr_fp64"}))
