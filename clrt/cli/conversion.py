"""Implementation of `clrt-convert`: arguments, conversion, verification, reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from clrt.cli.compiling import optimize_first
from clrt.cli.console import EXIT_DIFFERS, PAGE_SUFFIXES, STDOUT, echo, say_error, stderr, stdout
from clrt.cli.convert_report import (
    Precompiled,
    difference_table,
    report_conversion,
    report_programs,
    warn,
)
from clrt.cli.random_inputs import note_sampled, read_feeds, sample_inputs
from clrt.cli.shapes import Shapes, default_shapes, parse_shapes
from clrt.errors import InputError
from clrt.ir.dtypes import DType
from clrt.ir.op import Array
from clrt.ir.text import print_graph
from clrt.kernels.index_range import MAX_ELEMS
from clrt.models.compiled_file import SUFFIX, read_extras
from clrt.models.locate import find_model
from clrt.models.onnx.export.exporter import save_model
from clrt.models.onnx.export.written_check import check_written
from clrt.models.sources import is_compiled, model_files
from clrt.passes.compress_weights import MIN_ELEMS
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import choose_device, devices
from clrt.runtime.opencl.session import session_for
from clrt.text.feeds import calibration_feeds, unseen_feeds
from clrt.text.warmup import run_once
from clrt.tools.convert import (
    Calibration,
    Converted,
    Options,
    compare,
    convert,
    read_encoder,
    write,
)
from clrt.util import env_vars
from clrt.util.env_vars import whole_number
from clrt.util.fast_dataclass import dataclass
from clrt.util.files import atomic_write, check_targets, expanded, staged
from clrt.util.formatting import format_shapes
from clrt.util.table_text import PlainText
from clrt.vision.companions import companions_for_compiled


class Precision(str, Enum):
    """Storage dtype of float weights; arithmetic is float32 in any case.

    "auto" means float16, except for weights that overflow float16, which stay float32.
    """

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    auto = "auto"


class Quantize(str, Enum):
    """Integer dtype of weights that are quantized by block."""

    int8 = "int8"
    int4 = "int4"


class Target(str, Enum):
    """File format that `clrt-convert` writes."""

    clrt = "clrt"
    onnx = "onnx"


# Default --tolerance by storage dtype of weights: difference relative to an output's largest
# element; the dtype's error with a margin.
_TOLERANCES = {None: 1e-5, "float16": 1e-2, "bfloat16": 5e-2, "int8": 1e-1, "int4": 5e-1}
_STORAGES = {
    Precision.float32: None,
    Precision.float16: "float16",
    Precision.bfloat16: "bfloat16",
    Precision.auto: "float16",
}


@dataclass(frozen=True)
class Request:
    """Arguments of `clrt-convert`.

    Attributes:
        source: Path or name of the model.
        output: File to write; None to name it after the source.
        to: File format to write.
        shapes: Sets of input shapes, as written on the command line.
        dims: Sizes of symbolic dims, as written on the command line.
        keep_outputs: Names of the outputs to keep, as written on the command line; None for all.
        precision: Storage dtype of float weights.
        quantize: Integer dtype of quantized weights; None to quantize none.
        optimize_level: Graph passes to run: 0 for none, 1 to clean up, 2 for all.
        verify: Whether to compare the outputs with those of the source model.
        inputs: .npz file with inputs to verify, calibrate and profile with; None for none.
        tolerance: Maximum relative difference for `verify`; None for the default.
        dump_ir: File for the text of the graph; `STDOUT` to print the text, None for neither.
        report: HTML file for a profile of the converted model; None for none.
        precompile: Folder for compiled programs; None to compile none.
        device: Device to pack and run on, as written on the command line; None for the default.
        all_devices_here: Whether to compile programs for all devices of this machine.
    """

    source: str
    output: Path | None
    to: Target
    shapes: Sequence[str]
    dims: Sequence[str]
    keep_outputs: str | None
    precision: Precision
    quantize: Quantize | None
    optimize_level: int
    verify: bool
    inputs: Path | None
    tolerance: float | None
    dump_ir: Path | None
    report: Path | None
    precompile: Path | None
    device: str | None
    all_devices_here: bool

    def check(self) -> None:
        """Checks that the arguments do not contradict each other.

        Raises:
            InputError: Two arguments contradict each other, or --precompile names a file.
        """
        if self.quantize is not None and self.precision is not Precision.float32:
            raise InputError(
                "--quantize and --precision both set the storage of weights; give one of them."
            )
        if self.all_devices_here and self.precompile is None:
            raise InputError("--all-devices-here needs --precompile with a folder; give both.")
        folder = self.precompile
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InputError(f"'{folder}' is a file; --precompile writes into a folder.")

    @property
    def runs(self) -> bool:
        """Whether the converted model must run: for --verify, --report or --precompile."""
        return self.verify or self.report is not None or self.precompile is not None

    @property
    def storage(self) -> str | None:
        """Name of the dtype in which to store weights; None to keep the weights' own dtypes."""
        return _STORAGES[self.precision] if self.quantize is None else self.quantize.value

    def target(self, source_path: Path) -> Path:
        """Returns the path of the file to write; without --output it is named after the source.

        Args:
            source_path: Path of the source model.

        Raises:
            InputError: The suffix does not fit the format to write, or an output file is also an
                input or cannot be written.
        """
        name = source_path.stem if source_path.is_file() else Path(self.source).resolve().name
        suffix = SUFFIX if self.to is Target.clrt else "_optimized.onnx"
        target = self.output or Path(name + suffix)
        if target != STDOUT and (target.suffix == SUFFIX) != (self.to is Target.clrt):
            raise InputError(
                f"'{target}' is loaded by its suffix: a compiled model ends in {SUFFIX}, "
                "ONNX (--to onnx) does not."
            )
        dump = None if self.dump_ir == STDOUT else self.dump_ir
        targets = {"--output": target, "--report": self.report, "--dump-ir": dump}
        read = [*model_files(source_path), *([self.inputs] if self.inputs else [])]
        suffixes: dict[str, Sequence[str]] = {"--report": PAGE_SUFFIXES}
        if self.to is Target.onnx:
            suffixes["--output"] = (".onnx",)
        check_targets(targets, read, suffixes)
        return target


class Conversion:
    """One run of `clrt-convert`.

    Attributes:
        request: The arguments.
        source: Path of the source model.
        target: Path of the file to write.
        given: Arrays of the file --inputs by name; None without --inputs.
        encoder: Text configuration to store in a compiled text model; None for other models.
        options: Options of the converter.

    Raises:
        InputError: The arguments contradict each other, or a file cannot be read.
    """

    def __init__(self, request: Request) -> None:
        request.check()
        self.request = request
        self.source = find_model(request.source)
        self.target = request.target(self.source)
        self.given = None if request.inputs is None else read_feeds(request.inputs)
        self.encoder, self._no_encoder = read_encoder(self.source)
        self.options = self._options()

    def _options(self) -> Options:
        """Returns the converter's options, from the arguments."""
        request, weights = self.request, self.request.storage
        outputs = request.keep_outputs
        return Options(
            _parse_dims(request.dims),
            tuple(n.strip() for n in outputs.split(",")) if outputs else (),
            request.optimize_level,
            None if weights is None else DType(weights),
            self._calibration(),
            request.device,
            request.precision is Precision.auto,
            keep_quantized=request.to is Target.onnx,
        )

    def run(self) -> None:
        """Converts, verifies, precompiles and profiles as requested; prints the results."""
        request, options = self.request, self.options
        with _progress() as bar:
            task = bar.add_task(f"reading and optimising {self.source.name}", total=None)
            converted = convert(self.source, options)
            if request.dump_ir is not None:
                _dump(request.dump_ir, converted)
            shapes = self._shapes(converted)
            bar.update(task, description=f"writing {self.target.name}", total=1)
            compared, precompiled = None, list[Precompiled]()
            with staged(self.target) as staged_file:
                self._write(
                    converted,
                    shapes,
                    staged_file,
                    lambda done, total: bar.update(task, completed=done, total=max(total, 1)),
                )
                if request.verify:
                    bar.update(task, description="verifying", total=None)
                    compared = self._compared(shapes, staged_file)
            if request.precompile is not None:
                for which in _real_devices() if request.all_devices_here else [request.device]:
                    where = "auto" if which is None else which
                    bar.update(task, description=f"compiling for device {where}", total=None)
                    programs = _precompile(self.target, shapes, which, request.precompile)
                    precompiled.append(programs)
            if request.report is not None:
                bar.update(task, description="profiling", total=None)
                self._profile(shapes[0], request.report)
        self._report(converted)
        if request.precompile is not None:
            report_programs(precompiled, request.precompile)
        if compared is not None:
            stdout().print(compared[0])
            stdout().print(PlainText(compared[1]))

    def _calibration(self) -> Calibration | None:
        """Returns the function that yields calibration inputs for quantization.

        It yields the arrays of --inputs, or else texts. None if there is neither --inputs nor a
        tokenizer.
        """
        given, source = self.given, self.source
        if given is not None:
            return lambda specs: [given]
        return None if self.encoder is None else lambda specs: calibration_feeds(source, specs)

    def _shapes(self, converted: Converted) -> list[Shapes]:
        """Returns the sets of input shapes to plan for, from --shape or --inputs, else a default.

        Returns [] if an input has no known rank, so that there is no default, and if the model
        need not run.

        Raises:
            InputError: A shape is not valid, or there is no default and the model must run.
        """
        with load(converted.graph, device=self.request.device, optimize_level=0) as model:
            if self.request.shapes:
                return [parse_shapes(s, model) for s in self.request.shapes]
            if self.given is not None:
                return [{n: tuple(a.shape) for n, a in _read_by(model, self.given).items()}]
            try:
                return default_shapes(model)[:1]
            except InputError:
                if self.request.runs:
                    raise
                return []

    def _write(
        self,
        converted: Converted,
        shapes: Sequence[Shapes],
        path: Path,
        progress: Callable[[int, int], None],
    ) -> None:
        """Writes the converted model; an ONNX file is read back and checked.

        Args:
            converted: The converted model.
            shapes: Sets of input shapes to plan for.
            path: File to write.
            progress: Called with the number of steps done and their total.

        Raises:
            UnsupportedError: ONNX cannot express the graph, or other runtimes reject the file.
            InputError: The file cannot be written.
        """
        if self.request.to is Target.onnx:
            save_model(converted.graph, path)
            if path.is_file():  # not a pipe
                check_written(path, self.target)
        else:
            device = self.request.device
            images = companions_for_compiled(self.source)
            write(converted, path, shapes, self.encoder, device, progress, images)

    def _profile(self, shapes: Shapes, page: Path) -> None:
        """Profiles the converted model and writes the HTML page to `page`."""
        given = self.given
        with (
            load(self.target, device=self.request.device) as model,
            note_sampled(given is None),
        ):
            feeds = sample_inputs(model, shapes) if given is None else _read_by(model, given)
            model.profile(feeds).save_html(page)

    def _report(self, converted: Converted) -> None:
        """Prints the result of the conversion, and warnings about weights and the text model."""
        request, weights = self.request, self.request.storage
        report_conversion(self.target, converted, self.encoder is not None)
        if weights is not None and not converted.shrunk and not converted.kept:
            warn(
                f"No weight became {weights}: no product, lookup or convolution has one in float32 "
                f"of {MIN_ELEMS} or more elements."
            )
        if request.to is Target.clrt and self._no_encoder is not None:
            warn(f"It holds no text model: {self._no_encoder}")
        if request.quantize is Quantize.int4 and self.options.calibration is None:
            warn("Each weight was rounded for itself; --inputs of your own make int4 closer.")

    def _compared(self, shapes: Sequence[Shapes], path: Path) -> tuple[Table, str]:
        """Compares the outputs of the converted model with the outputs of the source model.

        Args:
            shapes: Sets of input shapes; without --inputs, the first is used.
            path: File of the converted model.

        Returns:
            A table of differences, and a sentence about the inputs and the method.

        Raises:
            Exit: Outputs differ by more than the tolerance; an error is printed.
        """
        request, feeds, what = self.request, self.given, str(self.request.inputs)
        allowed = _TOLERANCES[request.storage] if request.tolerance is None else request.tolerance
        if feeds is None:
            feeds, what = self._feeds(shapes[0], path)
        with note_sampled(self.given is None):
            differences, how = compare(self.source, path, feeds, request.device)
        table, summary = difference_table(differences, allowed), f"Compared on {what}: {how}."
        worst = max(differences, key=lambda d: d.relative)
        if not worst.relative <= allowed:
            stdout().print(table)
            stdout().print(PlainText(summary))
            say_error(
                f"'{worst.name}' departs by {worst.relative:.2g} of its largest element, more than "
                f"the {allowed:.2g} allowed, so '{self.target}' is not written; raise --tolerance, "
                "or keep more precision."
            )
            raise typer.Exit(EXIT_DIFFERS)
        return table, summary

    def _feeds(self, shapes: Shapes, path: Path) -> tuple[dict[str, Array], str]:
        """Returns inputs for --verify without --inputs, and their description.

        Models with a tokenizer get text, since random ids say little about the error on text. All
        other models, and models with inputs that no tokenizer makes, get random inputs.

        Args:
            shapes: Input shapes of the converted model; ignored for text without --shape.
            path: File of the converted model.
        """
        with (
            load(self.source, optimize_level=0) as original,
            load(path, optimize_level=0) as result,
        ):
            # The original may have inputs that no kept output depends on.
            is_whole = all(s.name in shapes for s in original.inputs)
            if self.encoder is not None and is_whole:
                specs = list(result.inputs)
                if self.request.shapes:
                    specs = [replace(s, shape=shapes[s.name]) for s in specs]
                with suppress(InputError):  # The model has other inputs than a tokenizer's.
                    feeds = unseen_feeds(self.source, specs)
                    return feeds, f"text, {format_shapes({n: a.shape for n, a in feeds.items()})}"
            every = shapes if is_whole else {**default_shapes(original)[0], **shapes}
            return sample_inputs(original, every), f"sample inputs, {format_shapes(every)}"


def _real_devices() -> list[int]:
    """Returns the indices of usable devices that are not simulators."""
    return [d.index for d in devices() if d.usable and not d.caps.simulator]


def _precompile(
    target: Path, shapes: Sequence[Shapes], device: str | int | None, to: Path
) -> Precompiled:
    """Compiles the programs that a model needs on a device and on its twin, into a folder.

    Other shapes than `shapes` may need the one or the other.

    Args:
        target: The converted model.
        shapes: Sets of input shapes to plan for.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        to: Folder for the compiled programs.
    """
    start = time.perf_counter()
    optimize_first()
    info = choose_device(device)
    caches = session_for(info, expanded(to)).caches
    needed, built = sum(c.requests for c in caches), sum(c.builds for c in caches)
    chosen = env_vars.TWINS.get()
    for setting in ("off", "on") if info.twin is not None and chosen == "auto" else (chosen,):
        with (
            env_vars.TWINS.set(setting),
            load(target, device=device, cache_dir=to) as model,
        ):
            if is_compiled(target) and read_extras(target).get("encoder"):
                run_once(target, device=device, cache_dir=to)
            model.warmup(shapes)
            model.save_programs()
    needed = sum(c.requests for c in caches) - needed
    built = sum(c.builds for c in caches) - built
    return Precompiled(info, needed, built, time.perf_counter() - start)


def _read_by(model: Model, given: dict[str, Array]) -> dict[str, Array]:
    """Returns the arrays of `given` that are named like inputs of the model, by name."""
    return {s.name: given[s.name] for s in model.inputs if s.name in given}


def _parse_dims(texts: Sequence[str]) -> dict[str, int]:
    dims: dict[str, int] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        size = whole_number(number)
        if size is None and number.isascii() and number.isdecimal():
            size = MAX_ELEMS + 1
        if not size or not name:
            raise InputError(
                f"'{text}' is not a dim; write it as batch=8, with a number of 1 or more, or by "
                "input and axis as input_ids:0=8."
            )
        if size > MAX_ELEMS:
            raise InputError(f"--dim {text} is larger than a tensor may be ({MAX_ELEMS} elements).")
        if dims.setdefault(name.strip(), size) != size:
            raise InputError(f"--dim gives '{name.strip()}' two numbers; a dim has one.")
    return dims


def _dump(path: Path, converted: Converted) -> None:
    """Writes the converted graph as text to a file, or to standard output."""
    text = print_graph(converted.graph)
    if path == STDOUT:
        echo(text)
        return
    with atomic_write(path) as stream:
        stream.write(text.encode())


@contextmanager
def _progress() -> Iterator[Progress]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = stderr()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield bar
