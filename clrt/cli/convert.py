"""`clrt-convert`: compiled models from ONNX files and Hugging Face folders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from clrt.cli.console import (
    EXIT_DIFFERS,
    STDOUT,
    VersionOption,
    clear_errors,
    say_error,
    stderr,
    stdout,
)
from clrt.cli.samples import made_up_inputs, read_feeds, sample_inputs
from clrt.cli.shapes import DeviceOption, ModelArgument, Shapes, default_shapes, parse_shapes
from clrt.container.compiled import SUFFIX, read_extras
from clrt.converter import (
    Calibration,
    Converted,
    Difference,
    Options,
    compare,
    convert,
    read_encoder,
    write,
)
from clrt.errors import InputError, counted
from clrt.exporter.onnx_exporter import save_model
from clrt.files import check_targets, replacing
from clrt.inspection.units import format_bytes, format_shapes
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ir.text import print_graph
from clrt.model import Model, load
from clrt.passes.shrink_weights import MIN_ELEMS, Shrunk
from clrt.plan.specialise import MAX_ELEMS
from clrt.runtime.devices import devices
from clrt.signature import listed_symbols, symbol_places
from clrt.sources import is_compiled, model_files
from clrt.text import SentenceEncoder
from clrt.text.feeds import calibration_feeds, unseen_feeds
from clrt.text.locate import find_model

_EPILOG = (
    "Exit codes: 0 done; 1 the model, a file or what an option asks of them is at fault; 2 there "
    "is no such option, or no such choice of one; "
    f"{EXIT_DIFFERS} --verify found a larger difference than --tolerance."
)
_SHOWN_WEIGHTS = 8


class Precision(str, Enum):
    """What weights are stored in; arithmetic is float32 in any case."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    auto = "auto"


class Quantize(str, Enum):
    """Weight-only integers by block."""

    int8 = "int8"
    int4 = "int4"


class Target(str, Enum):
    """The format of the result."""

    clrt = "clrt"
    onnx = "onnx"


# Relative to the largest element of an output: what storage alone accounts for, and some room.
_TOLERANCES = {None: 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "int8": 1e-1, "int4": 5e-1}

app = typer.Typer(name="clrt-convert", pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command(epilog=_EPILOG)
@clear_errors
def convert_model(
    source: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; SOURCE's name by default."),
    ] = None,
    to: Annotated[
        Target,
        typer.Option(help="clrt: a compiled model; onnx: the optimised graph as standard ONNX."),
    ] = Target.clrt,
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Input shapes to plan for, as input_ids=8x128; may be repeated."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            help="Fix a symbolic dim, as batch=8 or by its place, as input_ids:0=8; "
            "may be repeated."
        ),
    ] = None,
    keep_outputs: Annotated[
        str | None, typer.Option(help="Outputs to keep, as a,b; the others and their nodes go.")
    ] = None,
    precision: Annotated[
        Precision,
        typer.Option(
            help="Storage of weights; sums are float32. auto: float16 but where it overflows."
        ),
    ] = Precision.float32,
    quantize: Annotated[
        Quantize | None,
        typer.Option(help="Weights of products and lookups as integers by block."),
    ] = None,
    optimize: Annotated[
        int, typer.Option(min=0, max=2, help="0 no graph pass, 1 clean up, 2 fuse.")
    ] = 2,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare the result's outputs with the source's, which ONNX Runtime computes, or "
            "the NumPy references where it is not installed or does not take the model.",
        ),
    ] = False,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="An .npz with an array per input, for --verify and for the rounding of int4. "
            "Else numbers are made up, and a model with a tokenizer gets some text."
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Largest difference allowed, over the largest element of an output."
        ),
    ] = None,
    dump_ir: Annotated[
        Path | None, typer.Option(help="Write the optimised graph as text; - prints it.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Profile the result and write a page for any browser here (HTML)."),
    ] = None,
    precompile: Annotated[
        Path | None,
        typer.Option(
            help="Compile the programs of --shape into this folder, for load(…, cache_dir=)."
        ),
    ] = None,
    device: DeviceOption = None,
    all_devices_here: Annotated[
        bool, typer.Option("--all-devices-here", help="Precompile for every device but simulators.")
    ] = False,
    version: VersionOption = False,
) -> None:
    """Optimise a model once and write it as one file that loads at once.

    Example: clrt-convert all-MiniLM-L6-v2 -o minilm.clrt --precision float16 --verify
    """
    _check_options(quantize, precision, precompile, all_devices_here)
    found = find_model(source)
    target = _target(source, found, output, to)
    check_targets(
        {
            "--output": target,
            "--report": report,
            "--dump-ir": None if dump_ir == STDOUT else dump_ir,
        },
        [*model_files(found), *([inputs] if inputs else [])],
    )
    given = None if inputs is None else read_feeds(inputs)
    weights = quantize.value if quantize is not None else _STORAGES[precision]
    encoder, trouble = read_encoder(found)

    options = Options(
        _parse_dims(dim or ()),
        tuple(n.strip() for n in keep_outputs.split(",")) if keep_outputs else (),
        optimize,
        None if weights is None else DType(weights),
        _calibration(found, given, encoder is not None),
        device,
        precision is Precision.auto,
        keep_quantized=to is Target.onnx,
    )
    with _progress() as bar:
        task = bar.add_task(f"reading and optimising {found.name}", total=None)
        converted = convert(found, options)
        if dump_ir is not None:
            _dump(dump_ir, converted)
        with load(converted.graph, device=device, optimize_level=0) as model:
            runs = verify or report is not None or precompile is not None
            shapes = [parse_shapes(s, model) for s in shape or ()] or _default(model, given, runs)
        bar.update(task, description=f"writing {target.name}", total=1)
        if to is Target.onnx:
            save_model(converted.graph, target)
        else:
            write(
                converted,
                target,
                shapes,
                encoder,
                device,
                lambda done, total: bar.update(task, completed=done, total=max(total, 1)),
            )
        if precompile is not None:
            for which in _real_devices() if all_devices_here else [device]:
                where = "auto" if which is None else which
                bar.update(task, description=f"compiling for device {where}", total=None)
                _precompile(target, shapes, which, precompile)
        if report is not None:
            bar.update(task, description="profiling", total=None)
            _profile(target, given, shapes[0], device, report)
    _say_what_was_done(target, converted, encoder is not None)
    if weights is not None and not converted.shrunk and not converted.kept:
        _warn(
            f"No weight became {weights}: no product, lookup or convolution has one in float32 of "
            f"{MIN_ELEMS} or more elements."
        )
    if to is Target.clrt and trouble is not None:
        _warn(f"It holds no sentence encoder: {trouble}")
    if quantize is Quantize.int4 and options.calibration is None:
        _warn("Each weight was rounded for itself; --inputs of your own make int4 closer.")
    if verify:
        allowed = _TOLERANCES[weights] if tolerance is None else tolerance
        if given is not None:
            _verify(found, target, given, str(inputs), allowed, device)
        else:
            made = _feeds(found, target, shapes[0], bool(shape), encoder is not None)
            _verify(found, target, *made, allowed, device)


def _check_options(
    quantize: Quantize | None, precision: Precision, precompile: Path | None, all_devices_here: bool
) -> None:
    """Refuses options that contradict each other.

    Raises:
        InputError: They do.
    """
    if quantize is not None and precision is not Precision.float32:
        raise InputError("--quantize and --precision both say what weights are; give one of them.")
    if all_devices_here and precompile is None:
        raise InputError("--all-devices-here says for what to --precompile; name its folder.")
    if precompile is not None and precompile.exists() and not precompile.is_dir():
        raise InputError(f"'{precompile}' is a file; --precompile writes into a folder.")


def _target(source: str, found: Path, output: Path | None, to: Target) -> Path:
    """The file to write.

    Raises:
        InputError: Its name is that of the other format.
    """
    name = found.stem if found.is_file() else Path(source).resolve().name
    target = output or Path(name + (SUFFIX if to is Target.clrt else "_optimized.onnx"))
    if target != STDOUT and (target.suffix == SUFFIX) != (to is Target.clrt):
        raise InputError(
            f"'{target}' is loaded as what its name says: a compiled model ends in {SUFFIX}, ONNX "
            "(--to onnx) does not."
        )
    return target


def _real_devices() -> list[int]:
    """The devices that programs are worth compiling for: a simulator is there to find faults."""
    return [d.index for d in devices() if d.usable and not d.caps.simulator]


def _say_what_was_done(target: Path, converted: Converted, encodes: bool) -> None:
    stdout().print(_summary(target, converted, encodes))
    if places := symbol_places(converted.graph):
        stdout().print(Text(f"Free dims: {listed_symbols(places)}; --dim fixes one."))
    if converted.shrunk:
        stdout().print(_weight_table(converted.shrunk))
    if converted.kept:
        _warn(f"Left in float32, since float16 overflows: {', '.join(converted.kept)}")


def _warn(text: str) -> None:
    stderr().print(Text(text, style="yellow"))


_STORAGES = {
    Precision.float32: None,
    Precision.float16: "float16",
    Precision.bfloat16: "bfloat16",
    Precision.auto: "float16",
}


def _calibration(
    source: Path, given: dict[str, Array] | None, has_tokenizer: bool
) -> Calibration | None:
    """What integer weights are tried on: the inputs given, else text where there is a tokenizer."""
    if given is not None:
        return lambda specs: [given]
    return (lambda specs: calibration_feeds(source, specs)) if has_tokenizer else None


def _profile(
    target: Path, given: dict[str, Array] | None, shapes: Shapes, device: str | None, page: Path
) -> None:
    with load(target, device=device) as model, made_up_inputs():
        feeds = sample_inputs(model, shapes) if given is None else _read_by(model, given)
        model.profile(feeds).save_html(page)


def _precompile(target: Path, shapes: Sequence[Shapes], device: str | int | None, to: Path) -> None:
    if is_compiled(target) and read_extras(target).get("encoder"):
        with SentenceEncoder(target, device=device, cache_dir=to) as encoder:
            encoder.encode("The pooling needs programs too.")
    with load(target, device=device, cache_dir=to) as model:
        model.warmup(shapes)
        model.save_programs()


def _default(model: Model, given: dict[str, Array] | None, runs: bool) -> list[Shapes]:
    """Where only the user can know them there are none, unless the model is to run."""
    if given is not None:
        return [{n: tuple(a.shape) for n, a in _read_by(model, given).items()}]
    try:
        return default_shapes(model)[:1]
    except InputError:
        if runs:
            raise
        return []


def _read_by(model: Model, given: dict[str, Array]) -> dict[str, Array]:
    """Those of the inputs of the original that the result still has."""
    return {s.name: given[s.name] for s in model.inputs if s.name in given}


def _verify(
    source: Path,
    target: Path,
    feeds: dict[str, Array],
    what: str,
    tolerance: float,
    device: str | None,
) -> None:
    with made_up_inputs():
        differences, how = compare(source, target, feeds, device)
    stdout().print(_difference_table(differences, tolerance))
    stdout().print(Text(f"Compared on {what}: {how}."))
    worst = max(differences, key=lambda d: d.relative)
    if not worst.relative <= tolerance:
        say_error(
            f"'{worst.name}' departs by {worst.relative:.2g} of its largest element, more than the "
            f"{tolerance:.2g} allowed; raise --tolerance, or keep more precision."
        )
        raise typer.Exit(EXIT_DIFFERS)


def _feeds(
    source: Path, target: Path, shapes: Shapes, is_asked: bool, has_tokenizer: bool
) -> tuple[dict[str, Array], str]:
    """Inputs to compare source and result on where none are given, and what they are.

    Text, where there is a tokenizer for it: ids that no text has say little of what is lost.

    Args:
        shapes: Of the inputs of the result.
        is_asked: Whether the user gave them; text keeps to them, then.
    """
    with (
        load(source, optimize_level=0) as original,
        load(target, optimize_level=0) as result,
    ):
        # The original may have inputs that nothing which was kept reads.
        is_whole = all(s.name in shapes for s in original.inputs)
        if has_tokenizer and is_whole:
            specs = [replace(s, shape=shapes[s.name]) if is_asked else s for s in result.inputs]
            with suppress(InputError):  # it takes more than a tokenizer makes
                found = unseen_feeds(source, specs)
                return found, f"text, {format_shapes({n: a.shape for n, a in found.items()})}"
        every = shapes if is_whole else {**default_shapes(original)[0], **shapes}
        return sample_inputs(original, every), f"made-up inputs, {format_shapes(every)}"


def _parse_dims(texts: Sequence[str]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if not number.isdecimal() or not name or int(number) < 1:
            raise InputError(
                f"'{text}' is no dim; write it as batch=8, with a number of 1 or more, or by its "
                "place as input_ids:0=8."
            )
        if int(number) > MAX_ELEMS:
            raise InputError(f"--dim {text} is larger than a tensor may be ({MAX_ELEMS} elements).")
        if dims.setdefault(name.strip(), int(number)) != int(number):
            raise InputError(f"--dim gives '{name.strip()}' two numbers; a dim has one.")
    return dims


def _dump(path: Path, converted: Converted) -> None:
    text = print_graph(converted.graph)
    if path == STDOUT:
        typer.echo(text)
        return
    with replacing(path) as stream:
        stream.write(text.encode())


def _summary(target: Path, converted: Converted, encodes: bool) -> Text:
    encoder = ", with its tokenizer" if encodes else ""
    size, millions = format_bytes(target.stat().st_size), converted.parameters / 1e6
    nodes = f"{counted(converted.nodes_before, 'node')} -> {len(converted.graph.nodes)}"
    return Text(f"{target}: {size}, {millions:.1f} M parameters, {nodes}{encoder}")


def _weight_table(shrunk: Sequence[Shrunk]) -> Table:
    before, after = (sum(getattr(s, a) for s in shrunk) for a in ("nbytes_before", "nbytes"))
    kinds = Counter(s.dtype for s in shrunk).most_common()
    listing = ", ".join(f"{counted(count, 'weight')} as {kind}" for kind, count in kinds)
    table = Table(
        title=f"{listing}: {format_bytes(before)} -> {format_bytes(after)}",
        caption="error: root mean square of the change over that of the weight; the worst first",
    )
    table.add_column("weight", overflow="fold")
    for column in ("shape", "error", "largest"):
        table.add_column(column, justify="right")
    for s in sorted(shrunk, key=lambda s: -s.error)[:_SHOWN_WEIGHTS]:
        shape = "x".join(map(str, s.shape))
        table.add_row(Text(s.name), shape, f"{s.error:.2%}", f"{s.largest:.2%}")
    return table


def _difference_table(differences: Sequence[Difference], tolerance: float) -> Table:
    table = Table(title=f"original and result (allowed: {tolerance:.2g} of the largest element)")
    table.add_column("output", overflow="fold")
    for column in ("shape", "largest difference", "of the largest element", "cosine"):
        table.add_column(column, justify="right")
    for d in differences:
        style = "" if d.relative <= tolerance else "red"
        shape = "x".join(map(str, d.shape))
        numbers = (f"{d.largest:.3g}", f"{d.relative:.3g}", f"{d.cosine:.7f}")
        table.add_row(Text(d.name), shape, *numbers, style=style)
    return table


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = stderr()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield bar
