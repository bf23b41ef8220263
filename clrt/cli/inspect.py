"""The command `clrt inspect`: shows a model's inputs, ops, memory and placement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from math import prod
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from clrt.cli.console import echo_json, say_error, stdout
from clrt.cli.shapes import (
    DeviceOption,
    ModelArgument,
    ShapesOption,
    default_shapes,
    parse_shapes,
)
from clrt.errors import ClrtError, InputError, UnsupportedError, counted
from clrt.ir.graph import Graph, all_graphs
from clrt.models.locate import find_model
from clrt.models.onnx.info import FileInfo, Parameters, op_name, read_info
from clrt.models.sources import is_compiled, onnx_file, read_graph
from clrt.runtime.execution.signature import symbol_places
from clrt.runtime.inspection.explain import Explanation
from clrt.runtime.model.model import Model, load
from clrt.util.fast_dataclass import dataclass
from clrt.util.formatting import format_bytes, format_flops, format_shapes
from clrt.util.table_text import PlainText

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class AtShape:
    """Placement, launches and memory of a run at one set of input shapes.

    Attributes:
        shapes: Input shapes by name.
        explanation: Placement, launches and memory; None if planning failed.
        error: Why planning failed; "" if it succeeded.
    """

    shapes: Shapes
    explanation: Explanation | None = None
    error: str = ""

    def to_dict(self) -> dict[str, object]:
        """Returns launches, memory and placement as JSON values; or why planning failed."""
        plan = self.explanation
        if plan is None:
            return {"shapes": dict(self.shapes), "error": self.error}
        return {
            "shapes": dict(self.shapes),
            "flops": plan.flops,
            "launches": plan.launches,
            "memory": plan.memory.to_dict(),
            "where": dict(Counter(r.where for r in plan.rows)),
            "host": {f"{r.op} '{r.name}'": r.why for r in plan.rows if r.where == "host"},
            "graph_break": None if plan.graph_break is None else asdict(plan.graph_break),
        }


@dataclass(frozen=True)
class Inspection:
    """Properties of a model, collected without running it.

    Attributes:
        model: Path of the model.
        file: Metadata of the ONNX file; None if the source is not ONNX.
        inputs: Name and type of each input, as text.
        outputs: Name and type of each output, as text.
        dims: By symbol, the input axes whose dim is the symbol.
        ops: By op, (number of nodes in the file, number after optimisation); the second number is
            -1 if unknown.
        parameters: Number and size of the constants of each dtype.
        device: Name of the device.
        at: Placement, launches and memory of a run, for each set of input shapes.
        unsupported: Nodes or features of the model that clrt does not support. If there are any,
            all other fields describe the file alone.
    """

    model: str
    file: FileInfo | None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dims: dict[str, list[str]] = field(default_factory=dict)
    ops: dict[str, tuple[int, int]] = field(default_factory=dict)
    parameters: tuple[Parameters, ...] = ()
    device: str = ""
    at: tuple[AtShape, ...] = ()
    unsupported: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Returns all fields as JSON values."""
        ops = {
            name: {"file": before, "optimised": None if after < 0 else after}
            for name, (before, after) in self.ops.items()
        }
        return {**asdict(replace(self, at=())), "ops": ops, "at": [a.to_dict() for a in self.at]}


def inspect(
    model: ModelArgument,
    shape: ShapesOption = None,
    device: DeviceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show a model's inputs, ops, memory and placement, without running it.

    Exits with code 1 if clrt does not support the model; the missing features are listed.
    """
    inspection = look_into(find_model(model), shape or [], device)
    if as_json:
        echo_json(inspection.to_dict(), indent=1)
    else:
        _print(inspection, stdout())
    if inspection.unsupported:
        things = counted(len(inspection.unsupported), "thing")
        say_error(f"'{model}' needs {things} that clrt does not support.")
        raise typer.Exit(1)


def look_into(path: Path, shapes: list[str], device: str | None) -> Inspection:
    """Inspects a model, without running it.

    Args:
        path: File or folder of the model.
        shapes: Sets of input shapes, as on the command line; empty for default shapes.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.

    Raises:
        ModelError: The file is missing, damaged or not a model.
        InputError: A shape is not valid.
        DeviceError: The requested device is absent.
    """
    found = Inspection(str(path), None) if is_compiled(path) else _of_file(path)
    before = {name: n for name, (n, _) in found.ops.items()}
    try:
        with load(path, device=device) as model:
            graph = model.graph
            sets = [parse_shapes(s, model) for s in shapes] or _usual_shapes(model)
            after = _op_counts(graph)
            return replace(
                found,
                inputs=tuple(map(str, model.inputs)),
                outputs=tuple(map(str, model.outputs)),
                dims=symbol_places(graph),
                ops={n: (before.get(n, 0), after[n]) for n in {**before, **after}},
                parameters=found.parameters or _parameters(graph),
                device=str(model.device),
                at=tuple(_at(model, s) for s in sets),
            )
    except UnsupportedError as error:
        return replace(found, unsupported=error.nodes or (str(error),))


def _of_file(path: Path) -> Inspection:
    """Inspects a model file without a device: ops, constants and, for ONNX, inputs and outputs.

    Args:
        path: ONNX file or its folder, or a checkpoint.
    """
    source = onnx_file(path)
    if source is None:
        graph = read_graph(path)
        ops = {name: (n, -1) for name, n in _op_counts(graph).items()}
        return Inspection(str(path), None, ops=ops, parameters=_parameters(graph))
    file = read_info(source)
    ops = {name: (n, -1) for name, n in file.ops.items()}
    return Inspection(
        str(path), file, file.inputs, file.outputs, ops=ops, parameters=file.parameters
    )


def _op_counts(graph: Graph) -> Counter[str]:
    """Counts the nodes of a graph and of its subgraphs, by op."""
    return Counter(op_name(n.op.domain, n.op.name) for g in all_graphs(graph) for n in g.nodes)


def _parameters(graph: Graph) -> tuple[Parameters, ...]:
    """Returns number and size of a graph's constants by dtype, the largest total size first."""
    by_dtype: dict[str, Parameters] = {}
    for value in {v: None for g in all_graphs(graph) for v in g.constants() if v.has_numbers}:
        name, count = str(value.dtype), prod(value.dims)
        old = by_dtype.get(name, Parameters(name, 0, 0))
        nbytes = old.nbytes + count * value.dtype.itemsize
        by_dtype[name] = Parameters(name, old.elements + count, nbytes)
    return tuple(sorted(by_dtype.values(), key=lambda p: -p.nbytes))


def _usual_shapes(model: Model) -> list[dict[str, tuple[int, ...]]]:
    """Returns the default sets of input shapes; [] if an input has no known rank."""
    try:
        return default_shapes(model)
    except InputError:
        return []


def _at(model: Model, shapes: Shapes) -> AtShape:
    """Plans a model at one set of input shapes; returns the explanation, or why planning failed."""
    try:
        return AtShape(shapes, model.explain(shapes))
    except ClrtError as error:
        return AtShape(shapes, error=str(error))


def _print(found: Inspection, console: Console) -> None:
    """Prints an inspection of a model as text and tables."""
    for line in _head(found):
        console.print(PlainText(line), soft_wrap=True)
    console.print(_op_table(found))
    console.print(_parameter_table(found.parameters))
    if found.at:
        if any(at.explanation is not None for at in found.at):
            console.print(_shape_table(found))
        for at in found.at:
            if at.error:
                text = f"{format_shapes(at.shapes)} cannot be planned: {at.error}"
                console.print(PlainText(text, style="yellow"), soft_wrap=True)
        planned = [at.explanation for at in found.at if at.explanation is not None]
        for line in _places(planned[-1]) if planned else ():
            console.print(PlainText(line), soft_wrap=True)
    elif not found.unsupported:
        console.print(
            PlainText("by shape: an input has no known rank; give --shape.", style="yellow")
        )
    for note in found.unsupported:
        console.print(PlainText(f"not supported: {note}", style="red"), soft_wrap=True)


def _head(found: Inspection) -> Iterator[str]:
    """Yields lines on the model: name, producer, inputs, outputs and dims."""
    yield found.model
    if found.file is not None:
        opsets = ", ".join(f"{d} {v}" for d, v in found.file.opsets.items())
        functions = f", {counted(found.file.functions, 'function')}" if found.file.functions else ""
        producer = found.file.producer or "an unnamed program"
        yield f"made by {producer}: IR {found.file.ir_version}, opset {opsets}{functions}"
    yield from (f"input   {text}" for text in found.inputs)
    yield from (f"output  {text}" for text in found.outputs)
    yield from (f"dim     {name}: {', '.join(where)}" for name, where in found.dims.items())


def _op_table(found: Inspection) -> Table:
    table = Table(title="ops")
    table.add_column("op", overflow="fold")
    table.add_column("in the file", justify="right", no_wrap=True)
    table.add_column("optimised", justify="right", no_wrap=True)
    if found.unsupported:
        table.add_column("", overflow="fold")
    for name, (before, after) in sorted(found.ops.items(), key=lambda item: -item[1][0]):
        count = sum(_is_about(note, name) for note in found.unsupported)
        note = f"{count} not supported" if count else ""
        cells = (name, str(before or ""), "?" if after < 0 else str(after or ""), note)
        table.add_row(*map(PlainText, cells[: len(table.columns)]), style="red" if count else "")
    befores, afters = zip(*found.ops.values(), strict=True) if found.ops else ((), ())
    total = "?" if min(afters, default=0) < 0 else str(sum(afters))
    table.add_row("all", str(sum(befores)), total, style="bold")
    return table


def _is_about(note: str, name: str) -> bool:
    """Returns whether a note about a node that clrt lacks is about an op.

    Args:
        note: Note such as "Foo 'n1' (ai.onnx opset 17): reason".
        name: Name of the op, such as "Foo", or "domain.Foo" for a domain other than ai.onnx.
    """
    domain, _, op = name.rpartition(".")
    return note.startswith(f"{op} '") and f"({domain or 'ai.onnx'} opset " in note


def _parameter_table(parameters: tuple[Parameters, ...]) -> Table:
    table = Table(title="parameters")
    table.add_column("dtype")
    for column in ("elements", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    for p in parameters:
        table.add_row(p.dtype, f"{p.elements:,}", format_bytes(p.nbytes))
    elements, nbytes = (sum(p.elements for p in parameters), sum(p.nbytes for p in parameters))
    table.add_row("all", f"{elements:,}", format_bytes(nbytes), style="bold")
    return table


def _shape_table(found: Inspection) -> Table:
    table = Table(title=f"by shape, on {found.device}", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("inputs", overflow="fold")
    for column in ("compute", "kernels", "host", "weights", "arena", "in, out", "in all"):
        table.add_column(column, justify="right", no_wrap=True)
    for at in found.at:
        explained = at.explanation
        if explained is None:
            continue
        alike = len(set(at.shapes.values())) == 1
        text = format_shapes(at.shapes)
        shapes = text.rpartition("=")[2] if alike else text.replace(",", "\n")
        memory = explained.memory
        weights = memory.weights_bytes + memory.plan_bytes
        sizes = (weights, memory.arena_bytes, memory.staging_bytes, memory.total_bytes)
        on_host = sum(r.where == "host" for r in explained.rows)
        table.add_row(
            PlainText.stacked(*shapes.split("\n")),
            format_flops(explained.flops),
            str(explained.launches),
            str(on_host),
            *map(format_bytes, sizes),
        )
    return table


def _places(found: Explanation) -> Iterator[str]:
    """Yields lines that describe how many nodes of a plan run on device or host, or are views."""
    counts = Counter(r.where for r in found.rows)
    kernels = Counter(k.entry for r in found.rows for k in r.kernels)
    listing = ", ".join(f"{n} x {entry}" for entry, n in kernels.most_common())
    yield f"at {format_shapes(found.shapes)}"
    yield f"on the device: {counted(counts['device'], 'node')} ({listing or 'no kernel'})"
    yield f"views, which cost nothing: {counted(counts['view'], 'node')}"
    yield f"on the host: {counted(counts['host'], 'node')}"
    for row in found.rows:
        if row.where == "host":
            yield f"  {row.op} '{row.name}': {row.why}"
    if found.graph_break is not None:
        cut = found.graph_break
        after = ", ".join(f"{n} {op}" for op, n in cut.ops_after.items()) or "nothing"
        yield f"planned only once data are there, from {cut.node} on ({cut.why}): {after}"
