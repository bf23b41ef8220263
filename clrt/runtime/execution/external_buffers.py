"""`ExternalBuffers`: memory of a run outside of its arena: tensors of the caller, and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.plan.plan import Plan
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor, PooledBuffer
from clrt.util.fast_dataclass import dataclass

Feed: TypeAlias = "Array | DeviceTensor"


@dataclass
class ExternalBuffers:
    """Holds the buffers of a plan's external values during a run, so the pool cannot reuse them.

    Attributes:
        by_root: Buffer of each external root value (the value that owns the memory of its views).
    """

    plan: Plan
    session: DeviceSession
    by_root: dict[Value, PooledBuffer] = field(default_factory=dict)
    _donated: list[tuple[DeviceTensor, PooledBuffer]] = field(default_factory=list)
    _claimed: set[PooledBuffer] = field(default_factory=set)

    def take(self, feeds: Mapping[str, Feed]) -> dict[Value, TrackedBuffer]:
        """Acquires a buffer per external value: that of the caller's device tensor, or a new one.

        Args:
            feeds: Array or device tensor per input of the run, by name.

        Returns:
            The buffer of each external root value (the value that owns the memory of its views).

        Raises:
            InputError: A tensor was donated to another run, or released.
            OutOfMemoryError: A new buffer does not fit.
        """
        contract = self.plan.device_io
        for root in self.plan.external:
            feed = feeds[root.name] if root.name in contract.device_inputs else None
            if isinstance(feed, DeviceTensor):
                lease = feed.held()
                if root.name in contract.donated:
                    self._donated.append((feed, lease))
                elif root in self.plan.graph.inputs:
                    self._claimed.add(lease)
            else:
                lease = self.session.tensor(root.dims, root.dtype).held()
            self.by_root[root] = lease
        return {root: lease.buffer for root, lease in self.by_root.items()}

    def claim(self, value: Value) -> DeviceTensor | None:
        """Returns a new output tensor that owns the external buffer of a value.

        None if the value is in the arena, or if another tensor owns the buffer: an input that is
        not donated, or an earlier result of `claim`.
        """
        lease = self.by_root.get(self.plan.root(value))
        if lease is None or lease in self._claimed:
            return None
        self._claimed.add(lease)
        return DeviceTensor(value.dims, value.dtype, self.session, lease)

    def use_up(self) -> None:
        """Detaches donated tensors from their memory: callers can no longer use the tensors."""
        for tensor, _ in self._donated:
            tensor.lease = None

    def give_back(self) -> None:
        """Gives donated tensors their memory back, after a run that failed."""
        for tensor, lease in self._donated:
            tensor.lease = lease

    def end(self) -> None:
        """Drops the references to all buffers, at the end of the run."""
        self.by_root.clear()
        self._donated.clear()
        self._claimed.clear()
