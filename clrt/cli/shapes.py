"""Input shapes as commands take them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeAlias

import typer

from clrt.errors import InputError
from clrt.model import Model
from clrt.signature import TensorSpec

Shapes: TypeAlias = "dict[str, tuple[int, ...]]"

_ROWS = ((1, 16), (1, 128), (8, 128))
_PIXELS = 64  # most networks take multiples of 32

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
        help="Input shapes, as input_ids=8x128,mask=8x128; one left out repeats the last."
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
    """Input shapes from `input_ids=8x128,attention_mask=8x128`.

    An input that is left out takes the dims of its symbols from the others, else the last shape.

    Raises:
        InputError: A name or a number is not valid, an input has two shapes, or nothing tells the
            shape of one that is left out.
    """
    shapes: Shapes = {}
    for part in text.split(","):
        name, equals, dims = part.partition("=")
        sizes = [d.strip() for d in dims.split("x")] if dims.strip() else []
        if not equals or not all(d.isdecimal() for d in sizes):
            raise InputError(f"'{part}' is no shape; write it as input_ids=8x128.")
        if name.strip() in shapes:
            raise InputError(f"--shape gives '{name.strip()}' two shapes; an input has one.")
        shapes[name.strip()] = tuple(int(d) for d in sizes)
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
    known = _sizes(model, shapes)
    last = next(reversed(shapes.values()))
    return {
        s.name: shapes[s.name] if s.name in shapes else _rest(s, known, last) for s in model.inputs
    }


def _sizes(model: Model, shapes: Shapes) -> dict[str, int]:
    """The number of each symbol, from the shapes given."""
    sizes: dict[str, int] = {}
    for spec in model.inputs:
        for dim, size in zip(spec.shape or (), shapes.get(spec.name, ()), strict=False):
            sizes.setdefault(str(dim), size)
    return sizes


def _rest(spec: TensorSpec, sizes: dict[str, int], last: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an input that was left out."""
    dims = [d if isinstance(d, int) else sizes.get(d) for d in spec.shape or ()]
    known = [d for d in dims if d is not None]
    if spec.shape is not None and len(known) == len(dims):
        return tuple(known)
    if spec.shape is None or len(spec.shape) == len(last):
        return last
    raise InputError(f"The shape of input {spec} is open; add {spec.name}=… to --shape.")


def default_shapes(model: Model) -> list[Shapes]:
    """A small, a medium and a large shape. A free first axis is the batch, other free axes lengths.

    A symbol has one size everywhere. Images are large enough for networks that shrink them.

    Raises:
        InputError: An input has no known rank.
    """
    sets: list[Shapes] = []
    for batch, length in _ROWS:
        sizes: dict[str, int] = {}
        for axis, dim, rank in sorted(_free_dims(model), key=lambda free: free[0] > 0):
            sizes.setdefault(dim, batch if axis == 0 else max(length, _PIXELS if rank == 4 else 0))
        shapes = {
            spec.name: tuple(d if isinstance(d, int) else sizes[d] for d in spec.shape or ())
            for spec in model.inputs
        }
        if shapes not in sets:
            sets.append(shapes)
    return sets


def _free_dims(model: Model) -> Iterator[tuple[int, str, int]]:
    """(axis, text, rank of its input) of each symbolic dim of the inputs."""
    for spec in model.inputs:
        if spec.kind != "tensor":
            continue  # it has no shape
        if spec.shape is None:
            raise InputError(f"Input '{spec.name}' has no known rank; give --shape.")
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str):
                yield axis, dim, len(spec.shape)


def one_shape(text: str | None, model: Model) -> Shapes:
    """The shapes asked for, else the medium ones.

    Raises:
        InputError: A name or a number is not valid, or an input has no known rank.
    """
    if text is not None:
        return parse_shapes(text, model)
    sets = default_shapes(model)
    return sets[min(1, len(sets) - 1)]
