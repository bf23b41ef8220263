"""`DeviceTensor`: a tensor in device memory, with NumPy and DLPack access."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.driver import cl
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from clrt.runtime.opencl.session import DeviceSession


@dataclass(eq=False)
class PooledBuffer:
    """A device buffer that returns to its session's pool once no tensor references it.

    Attributes:
        buffer: The device buffer.
        back: Weak reference to this object, whose callback returns the buffer to the pool. Stored
            here because the reference must exist when this object is collected.
    """

    buffer: TrackedBuffer
    back: object = field(default=None, repr=False)


# DLPack device (kDLCPU, 0): tensors are always exported as host memory, since other libraries
# cannot read OpenCL buffers.
_HOST = (1, 0)
# Since NumPy 2.1, `ndarray.__dlpack__` accepts `max_version` (array API 2023.12).
_VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


@dataclass(frozen=True)
class _SharedElements:
    """Array-interface object over a tensor's host memory.

    NumPy arrays made from this object keep it alive, and with it `lease`, so that the pool does not
    reuse the memory.
    """

    lease: PooledBuffer
    __array_interface__: dict[str, Any]


@dataclass(eq=False)
class DeviceTensor:
    """A tensor that stays on the device, from `clrt.tensor` or `run(device_outputs=True)`.

    It can be an input of any model on the same device. Its memory returns to a pool once the
    tensor is garbage collected, or released: by `release`, or at the end of a `with` block.

    `np.asarray` copies it to the host. `np.from_dlpack` and other DLPack consumers share its memory
    without a copy if it is host memory, as on most CPU devices.

    Attributes:
        lease: Memory of the tensor; None after it was donated to a run, or released.
        readers: Futures of asynchronous runs that still have to read the tensor. A run to which
            the tensor is donated waits for these runs.
    """

    shape: tuple[int, ...]
    dtype: DType
    session: DeviceSession = field(repr=False)
    lease: PooledBuffer | None = field(repr=False)
    readers: set[Future[Any]] = field(default_factory=set, repr=False)
    _released: bool = field(default=False, repr=False)

    @property
    def buffer(self) -> TrackedBuffer:
        """The device buffer that holds the tensor's elements, starting at offset 0.

        Raises:
            InputError: The tensor was donated to a run, or released.
        """
        return self.held().buffer

    def held(self) -> PooledBuffer:
        """Returns the pooled buffer that holds the tensor's elements.

        Raises:
            InputError: The tensor was donated to a run, or released.
        """
        if self.lease is None:
            what = f"A tensor {self.dtype}{list(self.shape)} was"
            if self._released:
                raise InputError(f"{what} released, so its memory is freed; use it earlier.")
            raise InputError(
                f"{what} donated to a run, which reused its memory; use the run's output instead."
            )
        return self.lease

    @property
    def is_released(self) -> bool:
        """Whether `release` was called."""
        return self._released

    def release(self) -> None:
        """Returns the tensor's memory to the session's pool; the tensor cannot be used afterwards.

        The pool gets the memory once runs that use the tensor have ended, and arrays that share its
        memory are gone.
        """
        self._released = self._released or self.lease is not None
        self.lease = None

    def __enter__(self) -> DeviceTensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def ndim(self) -> int:
        """Number of axes of the tensor."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the tensor's elements in bytes."""
        return self.size * self.dtype.itemsize

    def numpy(self) -> Array:
        """Copies the tensor's elements to a new NumPy array.

        Raises:
            DeviceError: The driver fails, or does not work in this fork.
            InputError: The tensor was donated to a run, or released.
        """
        with self.session.lock, self.session.commands:
            array = np.empty(self.shape, self.dtype.numpy)
            if array.nbytes:
                cl.enqueue_copy(self.session.queue, array, self.buffer)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        wanted = self.dtype.numpy if dtype is None else np.dtype(dtype)
        if copy is not False:
            return self.numpy().astype(wanted, copy=False)
        shared = self._shared()
        if shared is None or wanted != self.dtype.numpy:
            why = "is not in host memory" if shared is None else f"is {self.dtype}"
            raise ValueError(f"A tensor that {why} cannot be a {wanted} array without a copy.")
        return shared

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if stream is not None:
            raise BufferError(f"Host memory has no streams; stream is {stream!r}, pass None.")
        if dl_device not in (None, _HOST):
            raise BufferError(
                f"DLPack exports tensors to the host, {_HOST}; dl_device is {dl_device!r}."
            )
        array = None if copy else self._shared()
        if array is None:
            if copy is False:
                raise BufferError(f"{self!r} is not in host memory; it must be copied.")
            array = self.numpy()
        if array.dtype.isbuiltin != 1:
            raise BufferError(
                f"NumPy cannot export {self.dtype} by DLPack; pass the bits: "
                f"tensor.numpy().view('u{array.itemsize}')."
            )
        return array.__dlpack__(max_version=max_version) if _VERSIONED else array.__dlpack__()

    def _shared(self) -> Array | None:
        """Returns an array that shares the tensor's memory; None if the host cannot access it.

        Raises:
            DeviceError: The driver fails, or does not work in this fork.
            InputError: The tensor was donated to a run, or released.
        """
        lease = self.held()
        if lease.buffer.host is None:
            return None
        with self.session.lock, self.session.commands:
            self.session.queue.finish()
        address = lease.buffer.host.ctypes.data
        data = (address, False)
        interface = {"shape": (self.nbytes,), "typestr": "|u1", "data": data, "version": 3}
        memory = np.asarray(_SharedElements(lease, interface))
        return memory.view(self.dtype.numpy).reshape(self.shape)
