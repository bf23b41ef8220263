"""What can be said of a model without running it: plans, memory, reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.errors import InputError
from clrt.ir.graph import Graph
from clrt.passes.driver import PassReport
from clrt.plan import memory as sizes
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.memory import Memory
from clrt.plan.plan import Plan
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.runner import Runner
from clrt.runtime.execution.signature import Signature, shape_of
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.formatting import format_shapes, parse_bytes

if TYPE_CHECKING:
    from clrt.runtime.inspection.explain import Explanation


class PlannedModel:
    """A model whose plans can be looked at: what `Model` is, but for running it.

    Attributes:
        device: The device it is planned for.
        report: What the graph passes did.
    """

    device: DeviceInfo
    report: PassReport | None
    _graph: Graph
    _runner: Runner
    _signature: Signature

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """The execution plan for given input shapes: steps, launches, arena.

        Where shapes depend on computed data it goes as far as the first of those.
        """
        with self._runner.lock:
            return self._runner.planner.stage(self._graph, self._shapes(shapes)).plan

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """The memory that a run at given input shapes needs; nothing is allocated for it.

        Where shapes depend on computed data it goes as far as the first of those.

        Raises:
            OutOfMemoryError: A single buffer is larger than the device can allocate.
        """
        planner = self._runner.planner
        return planner.memory(*planner.plan(self._graph, self._shapes(shapes)))

    def explain(self, shapes: Mapping[str, Sequence[int]]) -> Explanation:
        """Why the plan for given input shapes is as it is: print it, or take its `rows`.

        Per node where it runs, by which kernel and why, the ONNX nodes it stands for, and what it
        moves; and what the graph passes did and nearly did. Where shapes depend on computed data
        it goes as far as the first of those.
        """
        from clrt.runtime.inspection.explain import explain  # a first result need not wait for it

        planner = self._runner.planner
        plan, graph_break = planner.plan(self._graph, self._shapes(shapes))
        memory = planner.memory(plan, graph_break)
        caps, device = self.device.caps, str(self.device)
        return explain(self._graph, plan, graph_break, caps, device, memory, self.report)

    def best_batch_size(
        self, shapes: Mapping[str, Sequence[int]], memory_limit: int | str | None = None
    ) -> int:
        """The largest batch with which a run fits; found by planning alone.

        Args:
            shapes: Input shapes at any batch. The batch is the symbol of their axis 0.
            memory_limit: Bytes of the device, or text such as "2GiB"; None takes the model's limit,
                else all that the device has.

        Raises:
            OutOfMemoryError: Not even a batch of 1 fits.
            InputError: Axis 0 of the inputs is fixed.
        """
        planner, given = self._runner.planner, self._shapes(shapes)
        limit = planner.limit if memory_limit is None else parse_bytes(memory_limit)
        smallest = planner.at_batch(given)(1)
        if (batch := planner.fitting_batch(given, limit)) > 0:
            return batch
        text = format_shapes(smallest)
        raise sizes.out_of_memory(text, self.memory(smallest), limit, "there are", 0)

    @property
    def memory_limit(self) -> int | None:
        """Bytes that it may allocate on the device; None for what there is."""
        return self._runner.room.own_limit

    def zeros(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Inputs of given shapes that are all zeros.

        Raises:
            InputError, ShapeError, OutOfMemoryError: A run at these shapes is not possible.
        """
        given = self._shapes(shapes)
        self.memory(given)  # what is too large is an error before there are zeros for it
        return {s.name: np.zeros(given[s.name], s.dtype.numpy) for s in self._signature.inputs}

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]],
        tunables: Mapping[str, Mapping[str, int]],
        contract: DeviceIo = HOST_ONLY,
    ) -> BoundPlan:
        """A plan of its own for given input shapes, as the tuner compares them.

        No result takes the place of an input, so that its launches can be repeated.

        Args:
            tunables: The `T_` macros of kernels by entry point, in place of the tuning records.
            contract: What may be written to all the same, and which outputs stay on the device.
        """
        given = self._shapes(shapes)
        contract = replace(contract, device_inputs=frozenset(given))
        planner = self._runner.planner
        plan, _ = planner.plan(self._graph, given, contract=contract, tunables=tunables)
        # Others pack weights in other ways, which nobody reads once this plan is gone.
        return self._runner.room.bind(plan, own=bool(tunables))

    def _shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Input shapes as planning takes them."""
        if not isinstance(shapes, Mapping):
            raise InputError(f"Shapes are a dict by input name; {shapes!r} is none.")
        self._signature.check_names(shapes)
        return {name: shape_of(name, shape) for name, shape in shapes.items()}
