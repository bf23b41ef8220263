"""`WeightStore`: device buffers of a model's constants, in the layouts that its kernels read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from threading import RLock
from typing import Any

from clrt.errors import InputError
from clrt.ir.graph import Value
from clrt.ir.op import Array, ConcatenatedRows, PackedConstant
from clrt.kernels.spec import PackedWeight
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.device_packing import pack, packs
from clrt.runtime.opencl.ledger import Ledger
from clrt.runtime.opencl.model_programs import ModelPrograms
from clrt.runtime.opencl.os_memory import drop_pages
from clrt.runtime.opencl.session import DeviceSession
from clrt.util.fast_dataclass import dataclass


@dataclass(eq=False)
class WeightStore:
    """Holds a model's constants on the device, one buffer per layout, and its compiled programs.

    Attributes:
        account: Ledger of the model, which counts and limits the buffers; None if there is none.
        programs: Compiled programs of the model for the device.
        twin_programs: Those for the device's twin; None if it has no twin.
        lock: Lock to hold while adding entries. Each model has its own lock, so that other models
            proceed while this one compiles or uploads for seconds.
    """

    session: DeviceSession
    account: Ledger | None = None
    lock: Any = field(default_factory=RLock)
    _buffers: dict[tuple[Value, str], TrackedBuffer] = field(default_factory=dict)
    programs: ModelPrograms = field(init=False)
    twin_programs: ModelPrograms | None = None

    def __post_init__(self) -> None:
        self.programs = ModelPrograms(self.session.programs)
        if self.session.twin_programs is not None:
            self.twin_programs = ModelPrograms(self.session.twin_programs)
        self.session.connection.owners.add(self)

    def get(self, source: Value | PackedWeight) -> TrackedBuffer:
        """Returns the device buffer of a constant, uploaded at the first call.

        Args:
            source: The constant, or a packed weight for the constant in a packed layout.

        Raises:
            InputError: The value is not a constant.
            OutOfMemoryError: The buffer does not fit, or exceeds a limit.
            DeviceError: The driver fails.
        """
        value = source.value if isinstance(source, PackedWeight) else source
        layout = source.layout if isinstance(source, PackedWeight) else ""
        key = (value, layout)
        if key not in self._buffers:
            self._buffers[key] = self._upload(source, value, layout)
        return self._buffers[key]

    def _upload(self, source: Value | PackedWeight, value: Value, layout: str) -> TrackedBuffer:
        """Returns a new device buffer of a weight in a layout, packed on the device or the host.

        Args:
            source: The constant, or a packed weight for the constant in a packed layout.
            value: The constant.
            layout: Name of the packed layout; "" if the constant is not packed.
        """
        known = value.type.known_elements
        if isinstance(known, PackedConstant) and known.layout == layout:
            return self.session.constant(known.array, self.account)
        if isinstance(source, PackedWeight) and packs(source, self.session, self.account):
            return pack(source, self.session, self.programs.kernel, self.account)
        array = value.numbers
        if array is None:
            raise InputError(f"'{value.name}' is not a constant")
        if not isinstance(source, PackedWeight):
            return self.session.constant(array, self.account)
        packed = source.pack(array)
        assert packed.nbytes == source.nbytes, source.layout
        buffer = self.session.upload(packed, self.account)
        _drop_pages(value)
        return buffer

    def missing_bytes(self, sizes: Mapping[tuple[Value, str], int]) -> int:
        """Returns the total size in bytes of the weights that have no device buffer yet.

        Args:
            sizes: Bytes by (constant, packed layout or "" if not packed).
        """
        return sum([nbytes for key, nbytes in sizes.items() if key not in self._buffers])

    @property
    def nbytes(self) -> int:
        buffers = {id(buffer): buffer for buffer in self._buffers.values()}
        return sum(buffer.nbytes for buffer in buffers.values())

    @property
    def all_programs(self) -> tuple[ModelPrograms, ...]:
        """Programs of the model for the device, and for its twin if it has one."""
        return (self.programs, *(() if self.twin_programs is None else (self.twin_programs,)))

    def share(self, stored: Value | PackedWeight, value: Value) -> None:
        """Uses the buffer of one constant for another one with the same elements as well.

        Args:
            stored: Constant that may have a buffer; if not, nothing happens.
            value: The other constant, in the same layout.
        """
        source = stored.value if isinstance(stored, PackedWeight) else stored
        layout = stored.layout if isinstance(stored, PackedWeight) else ""
        with self.lock:
            if (buffer := self._buffers.get((source, layout))) is not None:
                self._buffers[value, layout] = buffer

    def clear(self) -> None:
        """Frees the device buffers, and drops the pages of mapped files they were read from.

        Compiled programs are kept.
        """
        values = {value for value, _ in self._buffers}
        self._buffers.clear()
        for value in values:
            _drop_pages(value)

    def hand_over(self, other: WeightStore, keep: Collection[Value]) -> set[int]:
        """Moves buffers from this store to another one.

        Args:
            other: Store that receives the buffers.
            keep: Constants whose buffers stay in this store.

        Returns:
            `id()` of every buffer that this store had before, moved or not.
        """
        ids = {id(buffer) for buffer in self._buffers.values()}
        for key in [k for k in self._buffers if k[0] not in keep]:
            other._buffers[key] = self._buffers.pop(key)
        return ids


def _drop_pages(value: Value) -> None:
    """Drops the resident pages of a constant that is read from a mapped file."""
    known = value.type.known_elements
    if isinstance(known, ConcatenatedRows):
        parts: tuple[Array, ...] = known.parts
    else:
        array = known.array if isinstance(known, PackedConstant) else value.numbers
        parts = () if array is None else (array,)
    for part in parts:
        drop_pages(part)
