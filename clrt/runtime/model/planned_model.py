"""`PlannedModel`: base of `Model` that plans and explains runs without running the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from clrt.errors import InputError
from clrt.ir.graph import Graph
from clrt.plan import memory as sizes
from clrt.plan.device_io import HOST_ONLY, DeviceIo
from clrt.plan.memory import Memory
from clrt.plan.plan import Plan
from clrt.runtime.execution.bound_plan import BoundPlan
from clrt.runtime.execution.runner import Runner
from clrt.runtime.execution.signature import Signature, shape_of
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.runtime.opencl.tiers import ModelTiers
from clrt.util.formatting import format_shapes, parse_bytes

if TYPE_CHECKING:
    from clrt.passes.driver import PassReport
    from clrt.runtime.inspection.explain import Explanation


class PlannedModel:
    """Base of `Model` that plans and explains runs, without running the model.

    Attributes:
        device: The device that plans are for.
    """

    device: DeviceInfo
    _report: PassReport | None
    _graph: Graph
    _runner: Runner
    _signature: Signature

    def plan(self, shapes: Mapping[str, Sequence[int]]) -> Plan:
        """Returns the execution plan for input shapes: steps, launches, arena.

        If shapes depend on computed data, the plan ends at the first such shape.

        Args:
            shapes: Shape of each input by name.
        """
        self._runner.open()
        with self._runner.lock:
            return self._runner.planner.stage(self._graph, self._shapes(shapes)).plan

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        """Returns the memory that a run at input shapes needs, without allocating it.

        If shapes depend on computed data, the result covers the run up to the first such shape.

        Args:
            shapes: Shape of each input by name.

        Raises:
            OutOfMemoryError: A single buffer is larger than the device can allocate.
        """
        planner = self._runner.planner
        return planner.memory(*planner.plan(self._graph, self._shapes(shapes)))

    def explain(self, shapes: Mapping[str, Sequence[int]]) -> Explanation:
        """Explains the plan for input shapes, without running it.

        For each node: where it runs, by which kernel and why, the ONNX nodes that it stands for,
        and the bytes that it moves. For each graph pass: its matches and near misses. Names the
        kernels whose programs are compiled without optimization so far (see `tiers` of
        `clrt.load`). If shapes
        depend on computed data, the explanation ends at the first such shape.

        Args:
            shapes: Shape of each input by name.

        Returns:
            An explanation, which can be printed, and has a row per node (`rows`).
        """
        from clrt.runtime.inspection.explain import explain  # imported late to speed up the start

        planner = self._runner.planner
        plan, graph_break = planner.plan(self._graph, self._shapes(shapes))
        memory = planner.memory(plan, graph_break)
        caps, device = self.device.caps, str(self.device)
        quick, graph = self._all_tiers[int(plan.on_twin)].is_quick, self._graph
        if plan.on_twin:
            device += ", on the calling thread"
        return explain(graph, plan, graph_break, caps, device, memory, self._report, quick)

    def best_batch_size(
        self, shapes: Mapping[str, Sequence[int]], memory_limit: int | str | None = None
    ) -> int:
        """Returns the largest batch size whose run fits on the device, found by planning alone.

        Args:
            shapes: Shape of each input by name, at any batch size. The batch size is the symbolic
                dim of axis 0 in the model.
            memory_limit: Maximum device memory, in bytes or as a string such as "2GiB"; None for
                the model's limit, or the device's memory if it has none.

        Raises:
            OutOfMemoryError: Not even a batch of 1 fits.
            InputError: Axis 0 of the inputs is fixed.
        """
        planner, input_shapes = self._runner.planner, self._shapes(shapes)
        limit = planner.limit if memory_limit is None else parse_bytes(memory_limit)
        smallest = planner.at_batch(input_shapes)(1)
        if (batch := planner.fitting_batch(input_shapes, limit)) > 0:
            return batch
        text = format_shapes(smallest)
        raise sizes.out_of_memory(text, self.memory(smallest), limit, "there are", 0)

    @property
    def _all_tiers(self) -> list[ModelTiers]:
        """Tiers of the model's programs on its device, and on the device's twin if it has one."""
        return [programs.tiers for programs in self._runner.room.weights.all_programs]

    @property
    def graph(self) -> Graph:
        """The optimised graph, from which plans are made. Do not change it."""
        return self._graph

    @property
    def weight_bytes(self) -> int:
        """Total size in bytes of the constants of the graph and its subgraphs."""
        return sum(value.nbytes for value in self._runner.planner.constants)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of device memory that the model holds now: weights, arenas, constants of plans."""
        return self._runner.room.account.nbytes

    @property
    def max_device_bytes(self) -> int:
        """Maximum bytes that the model may allocate: `memory_limit`, or the device's memory."""
        return self._runner.planner.limit

    @property
    def memory_limit(self) -> int | None:
        """Maximum bytes that the model may allocate on the device; None for the device's memory."""
        return self._runner.room.own_limit

    def zeros(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Returns a NumPy array of zeros per input, by name, in the dtype of the input.

        Args:
            shapes: Shape of each input by name.

        Raises:
            InputError: The shapes do not match the model.
            OutOfMemoryError: A run with these shapes would need a single buffer that is larger than
                the device can allocate.
        """
        dims = self._shapes(shapes)
        self.memory(dims)  # raises for too large shapes, before zeros are allocated
        return {s.name: np.zeros(dims[s.name], s.dtype.numpy) for s in self._signature.inputs}

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]],
        tunables: Mapping[str, Mapping[str, int]],
        contract: DeviceIo = HOST_ONLY,
    ) -> BoundPlan:
        """Creates a separate bound plan for input shapes, for the tuner to measure.

        No output overwrites an input that `contract` does not donate, so that the launches can be
        repeated.

        Args:
            shapes: Shape of each input by name.
            tunables: `T_` macros by kernel entry point, in place of the tuning records.
            contract: Which outputs stay on the device, and which inputs are donated, so that
                launches may overwrite them.
        """
        dims = self._shapes(shapes)
        contract = replace(contract, device_inputs=frozenset(dims))
        planner = self._runner.planner
        plan, _ = planner.plan(self._graph, dims, contract=contract, tunables=tunables)
        # own: with other tunables, weights have other layouts, which no other plan uses.
        return self._runner.room.bind(plan, own=bool(tunables))

    def _shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Checks input shapes and converts them to tuples of ints, by input name.

        Args:
            shapes: Shape of each input by name.

        Raises:
            InputError: An input is missing or unknown, or a shape is invalid.
        """
        if not isinstance(shapes, Mapping):
            raise InputError(f"Shapes must be a dict by input name, not {shapes!r}.")
        self._signature.check_names(shapes)
        return {name: shape_of(name, shape) for name, shape in shapes.items()}
