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
        tiers: The model's programs, and which of these were compiled quickly, without optimization.
        joined: Programs of kernel sequences (`launch_rows.py`); without them, runs use the plan's
            own launches.
    """

    cache: ProgramCache
    tiers: ModelTiers = field(default_factory=lambda: ModelTiers({}))
    joined: ModelTiers = field(default_factory=lambda: ModelTiers({}, reports=False))

    def kernel(self, spec: KernelSpec) -> cl.Kernel:
        """Creates a kernel object of the optimized program.

        Compiles the program only if neither the model nor the cache has it.
        """
        held = {} if self.tiers.is_quick(spec) else self.tiers.programs
        return self.cache.kernel(spec, held)

    def tiered_kernel(self, spec: KernelSpec) -> cl.Kernel:
        """Creates a kernel object, of the quick program while the optimized one is pending.

        Compiles the program only if neither the model nor the cache has it.
        """
        return self.cache.tiered_kernel(spec, self.tiers)

    def clear(self) -> None:
        """Drops all programs, because the model is closed."""
        for tiers in (self.tiers, self.joined):
            tiers.programs.clear()
            tiers.clear()
