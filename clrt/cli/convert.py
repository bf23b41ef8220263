"""`clrt-convert`: compiled models from ONNX files and Hugging Face folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clrt.cli.adapters import LoraOption
from clrt.cli.command import Command
from clrt.cli.console import EXIT_DIFFERS, HELP_OPTIONS, VersionOption, clear_errors
from clrt.cli.conversion import Conversion, Precision, Quantize, Request, Target
from clrt.cli.convert_language import convert_language_model, is_language_model
from clrt.cli.shapes import DeviceOption, ModelArgument
from clrt.errors import InputError
from clrt.util.files import expanded

_EPILOG = (
    "Exit codes: 0 success; 1 error in the model, a file or an option's value; 2 unknown option "
    "or choice; "
    f"{EXIT_DIFFERS} --verify found a larger difference than --tolerance."
)

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The file to write; SOURCE's name by default."),
]
TargetOption = Annotated[
    Target,
    typer.Option(help="clrt: a compiled model; onnx: the optimised graph as standard ONNX."),
]
PlannedShapesOption = Annotated[
    list[str] | None,
    typer.Option(help="Input shapes to plan for, as input_ids=8x128; may be repeated."),
]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Fix a symbolic dim, as batch=8, or by input and axis, as input_ids:0=8; repeatable."
    ),
]
KeepOutputsOption = Annotated[
    str | None, typer.Option(help="Outputs to keep, as a,b; others and their nodes are removed.")
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(help="Storage of weights; sums are float32. auto: float16 unless it overflows."),
]
QuantizeOption = Annotated[
    Quantize | None,
    typer.Option(help="Quantize the weights of matrix products and lookups by block."),
]
OptimizeOption = Annotated[
    int, typer.Option(min=0, max=2, help="Graph passes: 0 none, 1 cleanup, 2 also fusion.")
]
VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify",
        help="Compare the result's outputs with the source's, computed by ONNX Runtime, or by "
        "the NumPy references if it is not installed or rejects the model.",
    ),
]
InputsOption = Annotated[
    Path | None,
    typer.Option(
        help="An .npz with an array per input, for --verify and for the rounding of int4. "
        "By default random numbers, or text if the model has a tokenizer."
    ),
]
ToleranceOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, help="Largest difference allowed, over the largest element of an output."
    ),
]
DumpOption = Annotated[
    Path | None, typer.Option(help="Write the optimised graph as text; - prints it.")
]
ReportOption = Annotated[
    Path | None,
    typer.Option(help="Profile the result and write an HTML page here."),
]
PrecompileOption = Annotated[
    Path | None,
    typer.Option(
        help="Compile the programs of --shape into this folder, for cache_dir of clrt.load."
    ),
]
AllDevicesOption = Annotated[
    bool, typer.Option("--all-devices-here", help="Precompile for every device but simulators.")
]

app = typer.Typer(name="clrt-convert", pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command(cls=Command, epilog=_EPILOG, context_settings=HELP_OPTIONS)
@clear_errors
def convert_model(
    source: ModelArgument,
    output: OutputOption = None,
    to: TargetOption = Target.clrt,
    shape: PlannedShapesOption = None,
    dim: DimOption = None,
    keep_outputs: KeepOutputsOption = None,
    precision: PrecisionOption = Precision.float32,
    quantize: QuantizeOption = None,
    optimize: OptimizeOption = 2,
    verify: VerifyOption = False,
    inputs: InputsOption = None,
    tolerance: ToleranceOption = None,
    dump_ir: DumpOption = None,
    report: ReportOption = None,
    precompile: PrecompileOption = None,
    lora: LoraOption = None,
    device: DeviceOption = None,
    all_devices_here: AllDevicesOption = False,
    version: VersionOption = False,
) -> None:
    """Optimise a model ahead of time and write it as one file that loads fast.

    Example: clrt-convert all-MiniLM-L6-v2 -o minilm.clrt --precision float16 --verify
    """
    if is_language_model(expanded(source)):
        others: dict[str, object] = {
            "shape": shape,
            "dim": dim,
            "keep-outputs": keep_outputs,
            "quantize": quantize,
        }
        others |= {"verify": verify, "inputs": inputs, "dump-ir": dump_ir, "report": report}
        others |= {"precompile": precompile, "to": to is not Target.clrt}
        others["precision"] = precision is not Precision.float32
        convert_language_model(source, output, others, lora)
        return
    if lora:
        raise InputError(
            "--lora is for language models: a folder with config.json, or a GGUF file."
        )
    request = Request(
        source=source,
        output=output,
        to=to,
        shapes=shape or (),
        dims=dim or (),
        keep_outputs=keep_outputs,
        precision=precision,
        quantize=quantize,
        optimize_level=optimize,
        verify=verify,
        inputs=inputs,
        tolerance=tolerance,
        dump_ir=dump_ir,
        report=report,
        precompile=precompile,
        device=device,
        all_devices_here=all_devices_here,
    )
    Conversion(request).run()
