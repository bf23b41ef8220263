"""`Transfers`: copies a run's inputs to the device, and its results to arrays or tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from clrt.ir.graph import Value
from clrt.ir.node_errors import NodeErrorContext
from clrt.ir.op import Array
from clrt.plan.steps import HostStep
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.external_buffers import ExternalBuffers, Feed
from clrt.runtime.opencl.device_context import TrackedBuffer
from clrt.runtime.opencl.driver import cl
from clrt.runtime.opencl.tensors import DeviceTensor


@dataclass(eq=False, slots=True)
class Transfers:
    """Enqueues the copies of a run's inputs and results, and holds the memory that the run uses.

    Attributes:
        leases: Buffers of external values; None if the plan has none.
        last: Event of the run's last command, whether launch or copy; None before the first.
        slabs: Buffers of the arena, held because the driver does not keep buffers alive.
        results: Array or device tensor of each requested output, by name, once `complete` returns.
        status: Status words and the event of their copy; None if the plan has none, or if the host
            reads them directly.
    """

    bound: BoundPlan
    leases: ExternalBuffers | None = None
    last: cl.Event | None = None
    slabs: tuple[TrackedBuffer, ...] = ()
    results: dict[str, Feed] = field(default_factory=dict)
    status: tuple[Array, cl.Event] | None = None
    _events: list[cl.Event] = field(default_factory=list)
    _views: list[tuple[str, Array]] = field(default_factory=list)

    @property
    def queue(self) -> cl.CommandQueue:
        """OpenCL queue of the plan, in which the run's commands are enqueued."""
        return self.bound.lane.queue

    def _note(self, event: cl.Event) -> None:
        """Records a copy's event as the run's last event, and holds all events of copies.

        An event of pyopencl keeps the copied host array alive.
        """
        self.last = event
        self._events.append(event)

    def feed(self, feeds: Mapping[str, Feed]) -> None:
        """Binds external buffers and copies the inputs; donated tensors lose their memory.

        Args:
            feeds: Array or device tensor per input of the plan, by name.

        Raises:
            InputError: A tensor was donated to another run, or released.
            OutOfMemoryError: An external value does not fit.
        """
        bound = self.bound
        self.slabs = tuple(bound.slabs.buffers)
        if bound.plan.external:
            self.leases = ExternalBuffers(bound.plan, bound.session)
            bound.bind_external(self.leases.take(feeds))
        views = bound.views
        for value in bound.plan.graph.inputs:
            feed = feeds[value.name]
            if value in views and type(feed) is np.ndarray:
                views[value][...] = feed
            else:
                self._feed(value, feed)
        if self.leases is not None:
            self.leases.use_up()

    def _feed(self, value: Value, feed: Feed) -> None:
        """Enqueues the copy of an input into the memory of its value, unless they are the same."""
        bound, queue = self.bound, self.queue
        is_external = self.leases is not None and value in self.leases.by_root
        if feed.nbytes == 0 or not (is_external or value in bound.plan.allocations):
            return
        if isinstance(feed, DeviceTensor):
            target, offset = bound.bytes_of(value)
            if target is not feed.buffer:
                size = feed.nbytes
                cl.enqueue_copy(queue, target, feed.buffer, dst_offset=offset, byte_count=size)
            return
        target, offset = bound.bytes_of(value)
        self._note(cl.enqueue_copy(queue, target, feed, dst_offset=offset, is_blocking=False))

    def run_host(self, step: HostStep) -> None:
        """Computes a host step by its NumPy reference: reads its inputs and uploads its outputs.

        Waits for the launches that compute the inputs.
        """
        from clrt.ops.base import Op  # imported late: most plans have no host steps

        node = step.node
        inputs = [
            None if v is None else v.numbers if v.numbers is not None else self._read(v, wait=True)
            for v in node.inputs
        ]
        with NodeErrorContext(node):
            results = node.op_as(Op).run_reference(*inputs)
        for value, array in zip(node.outputs, results, strict=False):
            elements = np.asarray(array, value.dtype.numpy, order="C")
            if elements.nbytes:
                buffer, offset = self.bound.bytes_of(value)
                cl.enqueue_copy(self.queue, buffer, elements, dst_offset=offset)

    def read_back(self, outputs: Mapping[str, bool]) -> None:
        """Enqueues the copies of requested outputs and of the status words to host memory.

        Args:
            outputs: Names of the requested outputs, and whether each stays on the device.
        """
        graph, views = self.bound.plan.graph, self.bound.views
        for name, value in zip(graph.output_names, graph.outputs, strict=True):
            if name not in outputs:
                continue
            if outputs[name]:
                self.results[name] = self._keep(value)
            elif value in views:
                self.results[name] = views[value]
                self._views.append((name, views[value]))
            else:
                self.results[name] = self._read(value)
        self.status = self.bound.copy_status()
        if self.status is not None:
            self._note(self.status[1])

    def _keep(self, value: Value) -> DeviceTensor:
        """Returns a device tensor with the elements of an output that stays on the device.

        The tensor owns the value's external buffer or, if the value is in the arena, a copy.
        """
        claimed = None if self.leases is None else self.leases.claim(value)
        if claimed is not None:
            return claimed
        bound, session = self.bound, self.bound.session
        copy = session.tensor(value.dims, value.dtype)
        if copy.nbytes:
            buffer, offset = bound.bytes_of(value)
            size = copy.nbytes
            self._note(
                cl.enqueue_copy(self.queue, copy.buffer, buffer, src_offset=offset, byte_count=size)
            )
        return copy

    def _read(self, value: Value, *, wait: bool = False) -> Array:
        """Enqueues a copy of a value to the host, and returns the array that receives it.

        Args:
            wait: Whether to wait for the copy; else the array is filled once `complete` returns.
        """
        array = np.empty(value.dims, value.dtype.numpy)
        if array.nbytes:
            buffer, offset = self.bound.bytes_of(value)
            self._note(
                cl.enqueue_copy(self.queue, array, buffer, src_offset=offset, is_blocking=wait)
            )
        return array

    def complete(self, words: Array | None) -> None:
        """Checks the status words, and copies results that the host can read in the arena.

        Call it once all commands of the run are done.

        Args:
            words: The status words, as `BoundPlan.status_words` returns them.

        Raises:
            NumberError: A kernel found an index or length out of range.
        """
        if words is not None:
            first = int(np.flatnonzero(words)[0])
            raise self.bound.plan.status_words[first].error(words[first])
        for name, view in self._views:
            self.results[name] = view.copy()

    def drop(self) -> None:
        """Drops the results of a failed run, and gives donated tensors their memory back."""
        if self.leases is not None:
            self.leases.give_back()
        self.results = {}

    def end(self) -> None:
        """Drops the references to all memory of the run except its results."""
        if self.leases is not None:
            self.bound.forget_external()
            self.leases.end()
        self._events, self._views, self.slabs, self.last = [], [], (), None
