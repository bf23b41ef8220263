"""The caller's memory in a run: tensors read where they lie, donated, or left on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from clrt.ir.graph import Value
from clrt.ir.op import Array
from clrt.plan.plan import Plan
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.session import DeviceSession
from clrt.runtime.opencl.tensors import DeviceTensor, PooledBuffer

Feed: TypeAlias = "Array | DeviceTensor"


@dataclass
class ExternalBuffers:
    """The memory of a plan's external values in one run. It is not used again while this lives.

    Attributes:
        by_root: Of each external value.
    """

    plan: Plan
    session: DeviceSession
    by_root: dict[Value, PooledBuffer] = field(default_factory=dict)
    _donated: list[tuple[DeviceTensor, PooledBuffer]] = field(default_factory=list)
    _claimed: set[PooledBuffer] = field(default_factory=set)

    def take(self, feeds: Mapping[str, Feed]) -> dict[Value, TrackedBuffer]:
        """The buffers of the external values: of tensors that are given, or new ones.

        Raises:
            InputError: A tensor was donated to another run.
            OutOfMemoryError: There is no room for a new one.
        """
        contract = self.plan.contract
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
        """A tensor in the memory where a value was computed; None where that is somebody else's."""
        lease = self.by_root.get(self.plan.root(value))
        if lease is None or lease in self._claimed:
            return None
        self._claimed.add(lease)
        return DeviceTensor(value.dims, value.dtype, self.session, lease)

    def use_up(self) -> None:
        """The tensors that were donated have no memory any more."""
        for tensor, _ in self._donated:
            tensor.lease = None

    def give_back(self) -> None:
        """Of a run that failed: what was donated is the caller's again."""
        for tensor, lease in self._donated:
            tensor.lease = lease

    def end(self) -> None:
        """Lets go of all memory."""
        self.by_root.clear()
        self._donated.clear()
        self._claimed.clear()
