"""Input shapes: command-line options, parsing and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias

import typer

from clrt.errors import InputError
from clrt.ir.dims import Dim, Expr, is_symbol, match_symbols, substitute
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model
from clrt.util.env_vars import whole_number

Shapes: TypeAlias = "dict[str, tuple[int, ...]]"

_ROWS = ((1, 16), (1, 128), (8, 128))  # (batch, length) of the default shapes.
_PIXELS = 64  # Minimum height and width of images; most networks need multiples of 32.

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="ONNX file, Hugging Face folder, compiled model, or name in a cache.",
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        help="Input shapes, as input_ids=8x128,mask=8x128; an omitted one repeats the last."
    ),
]
ShapesOption = Annotated[
    list[str] | None,
    typer.Option(help="Input shapes, as input_ids=8x128,mask=8x128; may be repeated."),
]
DeviceOption = Annotated[
    str | None, typer.Option(help="auto, cpu, gpu, part of a device name, or an index.")
]


def parse_shapes(text: str, model: Model) -> Shapes:
    """Parses input shapes such as `input_ids=8x128,attention_mask=8x128`.

    An omitted input gets its dims from symbols that it shares with listed inputs. If these symbols
    do not determine its shape, the input gets the last listed shape.

    Args:
        text: Shapes, separated by commas.
        model: Model with the inputs.

    Returns:
        Shape of each input of the model, by name.

    Raises:
        InputError: A name or a number is not valid, an input has two shapes, or the shape of an
            omitted input cannot be inferred.
    """
    shapes: Shapes = {}
    for part in text.split(","):
        name, equals, dims = part.partition("=")
        sizes = [whole_number(d.strip()) for d in dims.split("x")] if dims.strip() else []
        known = tuple(d for d in sizes if d is not None)
        if not equals or len(known) != len(sizes):
            raise InputError(f"'{part}' is not a shape; write it as input_ids=8x128.")
        if name.strip() in shapes:
            raise InputError(f"--shape gives '{name.strip()}' two shapes; an input has one.")
        shapes[name.strip()] = known
    names = [s.name for s in model.inputs]
    for name in shapes:
        if name not in names:
            raise InputError(f"The model has no input '{name}'; it has {', '.join(names)}.")
    for spec in model.inputs:
        given = shapes.get(spec.name)
        if given is not None and spec.shape is not None and len(given) != len(spec.shape):
            raise InputError(
                f"--shape gives input {spec} rank {len(given)}; it has rank {len(spec.shape)}."
            )
    symbols = _sizes(model, shapes)
    last = next(reversed(shapes.values()))
    return {
        s.name: shapes[s.name] if s.name in shapes else _rest(model, s, symbols, last)
        for s in model.inputs
    }


def _sizes(model: Model, shapes: Shapes) -> dict[str, int]:
    """Returns the sizes, by symbol, that input shapes determine.

    Args:
        model: Model whose input dims have the symbols.
        shapes: Shape by input name; inputs may be omitted.
    """
    sizes: dict[str, int] = {}
    for name, dims in _dims(model).items():
        sizes = match_symbols(dims or (), shapes.get(name, ())) | sizes
    return sizes


def _rest(
    model: Model, spec: TensorSpec, sizes: Mapping[str, int], last: tuple[int, ...]
) -> tuple[int, ...]:
    """Returns the shape of an input that the user omitted.

    Args:
        model: The model.
        spec: The omitted input.
        sizes: Size by symbol, used if the sizes determine all dims of the input.
        last: Shape of the last listed input, used otherwise if the rank fits.

    Raises:
        InputError: Neither `sizes` nor `last` determines the shape.
    """
    known = [substitute(d, sizes) for d in _dims(model)[spec.name] or ()]
    if spec.shape is not None and all(isinstance(d, int) for d in known):
        return tuple(map(int, known))
    if spec.shape is None or len(spec.shape) == len(last):
        return last
    raise InputError(f"The shape of input {spec} is not fixed; add {spec.name}=… to --shape.")


def default_shapes(model: Model) -> list[Shapes]:
    """Returns up to three sets of input shapes: small, medium and large.

    A dynamic first axis counts as the batch, other dynamic axes as lengths. Lengths of 4-D inputs
    are at least `_PIXELS`, for networks that downsample. A symbol has the same size in all inputs.

    Raises:
        InputError: An input has no known rank.
    """
    dims = _dims(model)
    for spec in model.inputs:
        if spec.kind == "tensor" and spec.shape is None:
            raise InputError(f"Input '{spec.name}' has no known rank; give --shape.")
    known = [of for of in dims.values() if of is not None]
    free = [(axis, d, len(of)) for of in known for axis, d in enumerate(of)]
    # Plain symbols precede sums of symbols, and first axes other axes: the first symbol is the
    # batch.
    free.sort(key=lambda one: (not is_symbol(one[1]), one[0] > 0))
    sets: list[Shapes] = []
    for batch, length in _ROWS:
        sizes: dict[str, int] = {}
        for axis, dim, rank in free:
            size = batch if axis == 0 else max(length, _PIXELS if rank == 4 else 0)
            for symbol in dim.symbols if isinstance(dim, Expr) else ():
                sizes.setdefault(symbol, size)
        shapes = {n: tuple(int(substitute(d, sizes)) for d in of or ()) for n, of in dims.items()}
        if shapes not in sets:
            sets.append(shapes)
    return sets


def _dims(model: Model) -> dict[str, tuple[Dim, ...] | None]:
    """Returns the dims of each input by name; () if it is no tensor, None for unknown rank."""
    kinds = {spec.name: spec.kind for spec in model.inputs}
    return {v.name: v.shape if kinds[v.name] == "tensor" else () for v in model.graph.inputs}


def one_shape(text: str | None, model: Model) -> Shapes:
    """Parses input shapes, or returns the medium default shapes.

    Args:
        text: Shapes such as `input_ids=8x128`; None for the default.
        model: The model.

    Raises:
        InputError: A name or a number is not valid, or an input has no known rank.
    """
    if text is not None:
        return parse_shapes(text, model)
    sets = default_shapes(model)
    return sets[min(1, len(sets) - 1)]
