"""`ModelPrograms`: the compiled programs of a model on a device, or on its twin."""

from __future__ import annotations

from dataclasses import field

from clrt.kernels.spec import KernelSpec
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.programs import ProgramCache
from clrt.runtime.opencl.tiers import ModelTiers
from clrt.util.fast_dataclass import dataclass


@dataclass(eq=False)
class ModelPrograms:
    """Holds a model's compiled programs, which its kernels are created from.

    Attributes:
        cache: Cache of the device's programs, shared with other models.
        tiers: The programs; which were compiled quickly, and are to be replaced.
    """

    cache: ProgramCache
    tiers: ModelTiers = field(default_factory=lambda: ModelTiers({}))

    def kernel(self, spec: KernelSpec) -> cl.Kernel:
        """Creates a kernel object; compiles its program only if neither model nor cache has it."""
        held = {} if self.tiers.is_quick(spec) else self.tiers.programs
        return self.cache.kernel(spec, held)

    def tiered_kernel(self, spec: KernelSpec) -> cl.Kernel:
        """Creates a kernel object as `kernel`, or from a quick program if `tiers` wait for it."""
        return self.cache.tiered_kernel(spec, self.tiers)

    def clear(self) -> None:
        """Drops all programs, because the model is closed."""
        self.tiers.programs.clear()
        self.tiers.clear()
