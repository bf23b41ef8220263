"""Memory use of a plan, computed before anything is allocated, and the batch that fits a limit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import count

from clrt.errors import InputError, OutOfMemoryError, ShapeError
from clrt.ir.dims import is_symbol, substitute
from clrt.ir.graph import Value, all_graphs
from clrt.plan.graph_break import GraphBreak
from clrt.plan.plan import MIN_BUFFER_BYTES, Plan
from clrt.util.fast_dataclass import dataclass
from clrt.util.formatting import format_bytes


@dataclass(frozen=True)
class Memory:
    """The memory of a run at one set of input shapes, in bytes.

    Attributes:
        weights_bytes: Constants of the model in the layouts that kernels read, for all plans.
        plan_bytes: Constants that planning computed (positions, masks), and status words.
        arena_bytes: Activations: the slabs of the arena, which all plans share, and the values that
            stay on the device for the suffix after a graph break.
        staging_bytes: Copies of inputs and outputs outside the arena.
        graph_break: Description of the nodes at the first graph break; "" if there is none. If
            there is one, the sizes cover the plan before the graph break, and the unpacked
            constants of the suffix.
    """

    weights_bytes: int
    plan_bytes: int
    arena_bytes: int
    staging_bytes: int
    graph_break: str = ""

    @property
    def device_bytes(self) -> int:
        """Bytes on the device, to which a memory limit applies: weights, plan and arena."""
        return self.weights_bytes + self.plan_bytes + self.arena_bytes

    @property
    def total_bytes(self) -> int:
        """Device bytes plus staging bytes."""
        return self.device_bytes + self.staging_bytes

    def to_dict(self) -> dict[str, int | str]:
        """Returns a dict for JSON: the attributes by name, `device_bytes` and `total_bytes`."""
        sums = {"device_bytes": self.device_bytes, "total_bytes": self.total_bytes}
        return {**asdict(self), **sums}

    def __str__(self) -> str:
        text = (
            f"{format_bytes(self.total_bytes)}: weights {format_bytes(self.weights_bytes)}, "
            f"constants of the plan {format_bytes(self.plan_bytes)}, "
            f"arena {format_bytes(self.arena_bytes)}, "
            f"inputs and outputs {format_bytes(self.staging_bytes)}"
        )
        return (
            f"{text}; as far as {self.graph_break}, whose shape depends on data"
            if self.graph_break
            else text
        )


def memory_of(
    plan: Plan, graph_break: GraphBreak | None, model_constants: Collection[Value]
) -> Memory:
    """Computes the memory use of a plan.

    Args:
        plan: The plan.
        graph_break: The graph break at the end of the plan; None if there is none.
        model_constants: Constants of the model, which all its plans share. All other constants
            count as constants of the plan.
    """
    sizes = dict(plan.uploads)
    if graph_break is not None:
        uploaded = {value for value, _ in sizes}
        inner = (g for n in graph_break.host_driven for g in n.op.graphs)
        graphs = (g for outer in (graph_break.suffix, *inner) for g in all_graphs(outer))
        later_constants = {v for g in graphs for v in g.constants() if v.has_numbers} - uploaded
        sizes.update({(v, ""): v.nbytes for v in later_constants if not v.type.on_host})
    weights = sum(n for (value, _), n in sizes.items() if value in model_constants)
    inputs = [v for v in plan.graph.inputs if v in plan.allocations]
    outputs = dict(zip(plan.graph.output_names, plan.graph.outputs, strict=True))
    carried = [
        v for n, v in outputs.items() if graph_break is not None and n not in graph_break.reads
    ]
    slabs = plan.arena.slab_bytes
    return Memory(
        weights,
        sum(sizes.values()) - weights + 8 * plan.status_count,
        sum(max(n, MIN_BUFFER_BYTES) for n in (*slabs, *(v.nbytes for v in carried))),
        sum(v.nbytes for v in (*inputs, *outputs.values()) if v not in carried),
        "" if graph_break is None else graph_break.title,
    )


Shapes = Mapping[str, tuple[int, ...]]


def batch_symbols(inputs: Sequence[Value], bindings: Mapping[str, int]) -> list[str]:
    """Returns the symbols that stand for the batch; empty if axis 0 of no input is a symbol.

    The batch is the symbol at axis 0 of the first input that has a symbol there. A symbol at axis 0
    of another input counts as the batch, too, if it has the same size in `bindings`.

    Args:
        inputs: Inputs of the graph, with symbolic shapes.
        bindings: Size of each symbol.
    """
    first = [str(v.shape[0]) for v in inputs if v.shape and is_symbol(v.shape[0])]
    return [s for s in first if bindings[s] == bindings[first[0]]]


def batch_resizer(
    inputs: Sequence[Value], bindings: Mapping[str, int], shapes: Shapes
) -> Callable[[int], Shapes]:
    """Returns a function from a batch size to the shapes of all inputs at that batch.

    Args:
        inputs: Inputs of the graph, with symbolic shapes.
        bindings: Size of each symbol at `shapes`; `batch_symbols` says which are the batch.
        shapes: Input shapes by name, on which the result is based.

    Raises:
        InputError: Axis 0 of no input is a symbol.
    """
    symbols = batch_symbols(inputs, bindings)
    if not symbols:
        raise InputError(
            "The model has no free batch axis: axis 0 of each input is a number. Export it with a "
            "dynamic first axis."
        )

    def resized(batch: int) -> Shapes:
        bound = {**bindings, **dict.fromkeys(symbols, batch)}
        changed = dict(shapes)
        for value in inputs:
            if value.shape is not None:
                dims = (substitute(d, bound) for d in value.shape)
                changed[value.name] = tuple(int(d) for d in dims)
        return changed

    return resized


def largest_batch(needed: Callable[[int], int], limit: int) -> int:
    """Returns the largest batch that fits in `limit` bytes, by bisection; 0 if not even 1 does.

    Args:
        needed: Returns the device bytes needed at a batch size. Raises OutOfMemoryError if one
            buffer exceeds the device's maximum allocation, ShapeError if the model does not support
            the batch; both count as not fitting.
    """

    def fits(batch: int) -> bool:
        try:
            return needed(batch) <= limit
        except (OutOfMemoryError, ShapeError):
            return False

    too_large = next(n for n in (1 << k for k in count()) if not fits(n))
    fitting = too_large // 2
    while too_large - fitting > 1:
        middle = (fitting + too_large) // 2
        if fits(middle):
            fitting = middle
        else:
            too_large = middle
    return fitting


def out_of_memory(
    what: str, memory: Memory, available: int, of: str, fitting: int | None
) -> OutOfMemoryError:
    """Returns the error for input shapes that need more memory than is available.

    Args:
        what: Description of the input shapes for the message.
        memory: Memory needed at these shapes.
        available: Available bytes.
        of: Text in front of the available bytes in the message, such as "memory_limit is".
        fitting: Largest batch that would fit; 0 if none does, None if unknown.
    """
    remedy = _remedy(fitting) or "Use smaller inputs, or close models that are not needed."
    return OutOfMemoryError(
        f"Running {what} needs {format_bytes(memory.device_bytes)} on the device (weights "
        f"{format_bytes(memory.weights_bytes)}, constants of the plan "
        f"{format_bytes(memory.plan_bytes)}, arena {format_bytes(memory.arena_bytes)}), and {of} "
        f"{format_bytes(available)}. {remedy}",
        memory.device_bytes,
        available,
        fitting or None,
    )


def with_batch(error: OutOfMemoryError, fitting: int | None) -> OutOfMemoryError:
    """Returns an out-of-memory error whose message also names the batch that would fit.

    Args:
        error: The original error.
        fitting: Largest batch that would fit; 0 if none does, None if unknown.
    """
    text = f"{error} {_remedy(fitting)}".rstrip()
    return OutOfMemoryError(text, error.needed_bytes, error.available_bytes, fitting or None)


def _remedy(fitting: int | None) -> str:
    if fitting is None:
        return ""
    return f"A batch of {fitting} would fit." if fitting else "Not even a batch of 1 fits."
