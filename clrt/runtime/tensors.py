"""Tensors that stay on a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.runtime.connection import TrackedBuffer
from clrt.runtime.driver import cl

if TYPE_CHECKING:
    from clrt.runtime.session import Session


@dataclass(eq=False)
class Lease:
    """Memory of tensors; it goes back to the pool of its session with the last of them."""

    buffer: TrackedBuffer


@dataclass(eq=False)
class DeviceTensor:
    """A tensor that stays on the device, from `run(device_outputs=True)`.

    It can be an input of any model on the same device. Its memory is used again once it is
    garbage collected.

    Attributes:
        lease: Its memory; None once it was donated to a run.
    """

    shape: tuple[int, ...]
    dtype: DType
    session: Session = field(repr=False)
    lease: Lease | None = field(repr=False)

    @property
    def buffer(self) -> TrackedBuffer:
        """The buffer that it lies at the start of.

        Raises:
            InputError: It was donated to a run.
        """
        return self.held().buffer

    def held(self) -> Lease:
        """Its memory.

        Raises:
            InputError: It was donated to a run.
        """
        if self.lease is None:
            raise InputError(
                f"A tensor {self.dtype}{list(self.shape)} was donated to a run, which has used its "
                "memory; take the output that the run made of it."
            )
        return self.lease

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def numpy(self) -> Array:
        """A copy of the elements on the host.

        Raises:
            DeviceError: The driver fails, or does not work in this fork.
            InputError: It was donated to a run.
        """
        with self.session.using():
            array = np.empty(self.shape, self.dtype.numpy)
            if array.nbytes:
                cl.enqueue_copy(self.session.queue, array, self.buffer)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)
