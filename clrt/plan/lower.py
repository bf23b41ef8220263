"""Chooses how to run a node: its cheapest applicable kernel variant, or the host."""

from __future__ import annotations

from clrt.errors import ShapeError, UnsupportedError, reworded
from clrt.ir.graph import Node
from clrt.kernels.variant import Lowering, by_cost
from clrt.ops.base import Op
from clrt.plan.steps import DeviceStep, HostStep, PlanStep
from clrt.util.background import yield_point
from clrt.util.host_limits import check_host_bytes


def lower(node: Node, ctx: Lowering) -> PlanStep:
    """Chooses how a plan runs a node: kernel launches of a variant, or the host.

    Launches without work-items are left out; their kernels are recorded in
    `DeviceStep.precompiled_kernels`.

    Returns:
        A DeviceStep of the first variant, in the order of `by_cost`, that can run the node; it
        lists the reject reasons of earlier variants. If no variant can run the node, a HostStep
        with all reject reasons.

    Raises:
        ShapeError: A kernel argument of the chosen variant would exceed 32 bits.
        OutOfMemoryError: The outputs of a HostStep would exceed the host's memory limit.
    """
    yield_point()
    op = node.op_as(Op)
    rejected: list[str] = []
    dtypes = {v.dtype: None for v in (*node.inputs, *node.outputs) if v is not None}
    unsupported = [d for d in dtypes if d.storage not in (op.supported_storages or (d.storage,))]
    if unsupported:
        return _host(node, f"no kernel for {unsupported[0]}")
    for variant, reason in by_cost(op.variants, node, ctx.caps):
        if reason is None:
            try:
                launches = variant.emit(node, ctx)
            except UnsupportedError as error:
                reason = str(error)
            except ShapeError as error:
                raise reworded(error, f"{node}: {error}") from error
            else:
                nonempty = tuple(x for x in launches if all(x.global_size))
                idle = tuple(x.kernel for x in launches if not all(x.global_size))
                return DeviceStep((node,), variant.name, nonempty, tuple(rejected), idle)
        rejected.append(f"{variant.name}: {reason}")
    return _host(node, "; ".join(rejected) or f"{op.name} has no kernel")


def _host(node: Node, reason: str) -> HostStep:
    """Returns a step that runs a node on the host.

    Args:
        reason: Why no kernel variant applies.

    Raises:
        OutOfMemoryError: The outputs would exceed the host's memory limit.
    """
    check_host_bytes(
        sum(v.nbytes for v in node.outputs), f"The result of {node}, made on the host,"
    )
    return HostStep(node, reason)
