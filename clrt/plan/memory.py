"""What a plan will take of a device's memory, computed before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count

from clrt.errors import InputError, OutOfMemoryError, ShapeError
from clrt.ir.dims import is_symbol, substitute
from clrt.ir.graph import Value
from clrt.ops.base import Op, all_graphs
from clrt.plan.plan import LEAST_BUFFER_BYTES, Plan
from clrt.plan.specialise import GraphBreak
from clrt.util.formatting import format_bytes


@dataclass(frozen=True)
class Memory:
    """The memory of a run at one set of input shapes, in bytes.

    Attributes:
        weights_bytes: The model's constants in the forms that its kernels read, shared by all
            plans.
        plan_bytes: Constants that planning made (positions, masks) and the status words.
        arena_bytes: Activations: the largest arena of all plans, since they share it, and what
            a plan leaves on the device for the one after a graph break.
        staging_bytes: What the inputs and outputs take beside the arena, each a copy.
        graph_break: The nodes whose output shape depends on computed data, where there are such.
            Figures then reach no further, but for the constants after it, which count as they lie.
    """

    weights_bytes: int
    plan_bytes: int
    arena_bytes: int
    staging_bytes: int
    graph_break: str = ""

    @property
    def device_bytes(self) -> int:
        """What clrt allocates on the device, and what a memory limit is about."""
        return self.weights_bytes + self.plan_bytes + self.arena_bytes

    @property
    def total_bytes(self) -> int:
        return self.device_bytes + self.staging_bytes

    def to_dict(self) -> dict[str, int | str]:
        """The figures for JSON."""
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
    """The memory that a plan needs.

    Args:
        graph_break: Where the graph goes on after the plan.
        model_constants: The constants that all plans of the model share.
    """
    sizes = dict(plan.uploads)
    if graph_break is not None:
        known = {value for value, _ in sizes}
        inner = (g for n in graph_break.host_driven if isinstance(n.op, Op) for g in n.op.graphs)
        graphs = (g for outer in (graph_break.suffix, *inner) for g in all_graphs(outer))
        later = {v for g in graphs for v in g.constants() if v.has_numbers} - known
        sizes.update({(v, ""): v.nbytes for v in later if not v.type.on_host})
    weights = sum(n for (value, _), n in sizes.items() if value in model_constants)
    inputs = [v for v in plan.graph.inputs if v in plan.places]
    outputs = dict(zip(plan.graph.output_names, plan.graph.outputs, strict=True))
    left = [v for n, v in outputs.items() if graph_break is not None and n not in graph_break.reads]
    slabs = plan.arena.slab_bytes
    return Memory(
        weights,
        sum(sizes.values()) - weights + 8 * plan.status_count,
        sum(max(n, LEAST_BUFFER_BYTES) for n in (*slabs, *(v.nbytes for v in left))),
        sum(v.nbytes for v in (*inputs, *outputs.values()) if v not in left),
        "" if graph_break is None else graph_break.title,
    )


Shapes = Mapping[str, tuple[int, ...]]


def at_batch(
    inputs: Sequence[Value], bindings: Mapping[str, int], shapes: Shapes
) -> Callable[[int], Shapes]:
    """The input shapes at another batch.

    The batch is the symbol of axis 0 of the first input that has one there; a symbol of axis 0 of
    another input that has the same size is taken for the batch too.

    Args:
        bindings: The number of each symbol at `shapes`.

    Raises:
        InputError: No input has a symbol there.
    """
    first = [str(v.shape[0]) for v in inputs if v.shape and is_symbol(v.shape[0])]
    if not first:
        raise InputError(
            "The model has no free batch axis: axis 0 of each input is a number. Export it with a "
            "dynamic first axis."
        )
    symbols = [s for s in first if bindings[s] == bindings[first[0]]]

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
    """The largest batch that fits in `limit` bytes, by bisection; 0 where not even 1 does.

    Args:
        needed: Bytes of the device at a batch; raises OutOfMemoryError where one buffer is already
            larger than the device can allocate, ShapeError where something in the model bounds the
            batch.
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
    """The error for shapes that need more than there is.

    Args:
        what: The shapes, as text.
        of: What gives `available`, "memory_limit" say.
        fitting: The batch that would fit; 0 where none does, None where that is not known.
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
    """The error with the batch that would fit; 0 where none does, None where that is not known."""
    text = f"{error} {_remedy(fitting)}".rstrip()
    return OutOfMemoryError(text, error.needed_bytes, error.available_bytes, fitting or None)


def _remedy(fitting: int | None) -> str:
    if fitting is None:
        return ""
    return f"A batch of {fitting} would fit." if fitting else "Not even a batch of 1 fits."
