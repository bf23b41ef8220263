"""`PlanMaker`: plans graphs for a device, without caching the plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

from clrt.device.caps import DeviceCaps
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.kernels.tuning_records import record_for
from clrt.plan.device_io import DeviceIo
from clrt.plan.graph_break import GraphBreak
from clrt.plan.make_plan import make_plan
from clrt.plan.memory import Shapes
from clrt.plan.plan import Plan
from clrt.plan.specialise import specialise_to_break
from clrt.plan.template import PlanTemplate
from clrt.plan.trace_plan import trace_plan
from clrt.plan.twin_choice import TwinCosts, is_faster_on_twin
from clrt.runtime.execution.plan_arguments import NOTHING, Tunables, bindings_of
from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class PlanMaker:
    """Plans graphs for a device.

    Attributes:
        caps: Capabilities of the device.
    """

    caps: DeviceCaps

    def plan(
        self,
        graph: Graph,
        shapes: Shapes,
        known: Mapping[str, Array],
        contract: DeviceIo,
        tunables: Tunables,
        repeated: bool,
    ) -> tuple[Plan, GraphBreak | None]:
        """Plans the first segment of a graph; arguments and results are those of `Planner.plan`."""
        bindings, donated = bindings_of(graph, shapes, known), contract.donated
        first, graph_break = specialise_to_break(graph, bindings, shapes, known, donated, repeated)
        if graph_break is not None:  # the suffix may still read donated inputs
            later = {v.name for v in graph_break.suffix.inputs} | set(graph_break.reads)
            outputs = frozenset(first.output_names).difference(graph_break.reads)
            contract = replace(contract, donated=donated - later, device_outputs=outputs)
        return self._make(contract, first, tunables), graph_break

    def trace(
        self, graph: Graph, shapes: Shapes, known: Mapping[str, Array], contract: DeviceIo
    ) -> PlanTemplate | None:
        """Plans a graph with traced sizes, as `trace_plan`; arguments are those of `plan`."""
        bindings = bindings_of(graph, shapes, known)
        template = None
        for caps in filter(None, (self.caps, self.caps.twin)):
            make = partial(self._make_for, caps, contract)
            template = trace_plan(graph, bindings, shapes, known, make, contract.donated)
            if template is None or not template.plan.on_twin:
                break
        return template

    def _make(self, contract: DeviceIo, graph: Graph, tunables: Tunables) -> Plan:
        """Plans a specialised graph for the device, or for its twin if it is small.

        Args:
            contract: Which inputs and outputs are tensors on the device.
            tunables: `T_` macros by kernel entry point, in place of the tuning records.
        """
        plan, twin = self._make_for(self.caps, contract, graph, tunables), self.caps.twin
        if plan.on_twin and twin is not None:
            plan = self._make_for(twin, contract, graph, tunables)
        return plan

    def _make_for(
        self, caps: DeviceCaps, contract: DeviceIo, graph: Graph, tunables: Tunables = NOTHING
    ) -> Plan:
        """Plans a specialised graph for the device or its twin.

        Args:
            caps: Capabilities of the one or the other.
            contract: Which inputs and outputs are tensors on the device.
            tunables: `T_` macros by kernel entry point, in place of the tuning records.

        Returns:
            The plan. If it is for the device, `on_twin` tells whether the twin would be faster.
        """

        @cache
        def record(kernel: str) -> Mapping[str, int]:
            return tunables[kernel] if kernel in tunables else record_for(kernel, caps)

        plan = make_plan(graph, caps, record, contract)
        if not self.caps.has_twin:
            return plan
        # Evaluated for the twin's plan as well, whose trace notes at which sizes this holds.
        costs = TwinCosts.of(record(TwinCosts.group))
        is_faster = is_faster_on_twin(plan, self.caps, costs)
        return replace(plan, on_twin=is_faster or caps is not self.caps)
