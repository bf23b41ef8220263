"""Inference of any model in Ray's `Dataset.map_batches`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.ray.embed import Batch, column_of
from clrt.ray.resources import device_for_actor
from clrt.runtime.model.model import load


class Predict:
    """Callable class for `Dataset.map_batches` that adds the outputs of a model.

    Each actor loads the model once. The first dim of inputs and outputs is the batch dim; if the
    model fixes its size, batches are split into chunks of that size and the last chunk is padded.

    Args:
        source: Path of the model, as in `clrt.load`; each machine must have the file.
        inputs: Model input -> name of the column to read. None reads columns named like the inputs.
        outputs: Model output -> name of the added column. None adds all outputs under their names.
        device: As in `clrt.load`. None uses CLRT_DEVICE if it is set, else the GPU that Ray
            assigned to the actor by `num_gpus` of `map_batches`, else the CPU.
        options: Keyword arguments passed to `clrt.load`.

    Raises:
        ClrtError: The model cannot be loaded, as in `clrt.load`.
        InputError: The model lacks an input of `inputs` or an output of `outputs`.
    """

    def __init__(
        self,
        source: str | Path | bytes,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | None = None,
        device: str | int | None = None,
        **options: Any,
    ) -> None:
        self._model = load(source, device=device_for_actor(device), **options)
        specs = {s.name: s for s in self._model.inputs}
        results = [s.name for s in self._model.outputs]
        self._columns = dict(inputs or {name: name for name in specs})
        self._outputs = dict(outputs or {name: name for name in results})
        for kind, named, there in (
            ("input", self._columns, list(specs)),
            ("output", self._outputs, results),
        ):
            for name in named:
                if name not in there:
                    raise InputError(
                        f"The model has no {kind} {name!r}; it has {', '.join(map(repr, there))}."
                    )
        self._dtypes = {name: np.dtype(specs[name].dtype.numpy) for name in self._columns}
        self._rows = _fixed_rows(specs[name].shape for name in self._columns)

    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Returns the batch with the output columns added; an empty batch gets none.

        Args:
            batch: Column name -> array, the default batch format of `map_batches`.

        Raises:
            InputError: A column is missing or does not fit its input, or the first dim of an output
                is not the batch size.
        """
        feeds = {
            name: _array(batch, column, self._dtypes[name])
            for name, column in self._columns.items()
        }
        count = len(next(iter(feeds.values())))
        step = self._rows or max(count, 1)
        chunks = [self._run(feeds, start, step) for start in range(0, count, step)]
        columns = {
            column: np.concatenate([c[name] for c in chunks])[:count]
            for name, column in self._outputs.items()
            if chunks
        }
        return {**batch, **columns}

    def _run(
        self, feeds: Mapping[str, NDArray[Any]], start: int, step: int
    ) -> dict[str, NDArray[Any]]:
        """Runs `step` rows of a block from row `start` on; missing rows repeat the last one."""
        rows = {name: array[start : start + step] for name, array in feeds.items()}
        missing = step - len(next(iter(rows.values())))
        if missing:
            rows = {n: np.concatenate([a, a[-1:].repeat(missing, 0)]) for n, a in rows.items()}
        results = self._model.run(rows, outputs=list(self._outputs))
        for name, array in results.items():
            if np.ndim(array) == 0 or len(array) != step:
                raise InputError(
                    f"Output {name!r} has shape {list(np.shape(array))} for {step} rows; leave it "
                    "out by outputs=, since its first dim is not the number of rows."
                )
        return results


def _fixed_rows(shapes: Iterable[Sequence[object] | None]) -> int | None:
    """Returns the batch size that the model fixes; None if it is dynamic.

    Args:
        shapes: Shapes of the model's inputs; None for unknown rank.

    Raises:
        InputError: Inputs fix different batch sizes.
    """
    fixed = {shape[0] for shape in shapes if shape and isinstance(shape[0], int)}
    if len(fixed) > 1:
        raise InputError(
            f"The inputs' first dims are {', '.join(map(str, sorted(fixed)))}; they must be "
            "equal, since each is the number of rows."
        )
    return next(iter(fixed), None)


def _array(batch: Batch, column: str, wanted: np.dtype[Any]) -> NDArray[Any]:
    """Returns a column of a batch, cast to the dtype of a model input.

    The cast is needed since Ray stores 64-bit integers and floats. A column that cannot be cast
    safely is returned unchanged; `Model.run` then raises an error.

    Args:
        batch: Column name -> array.
        column: Name of the column.
        wanted: dtype of the input.

    Raises:
        InputError: The column is missing, or its rows have no common shape.
    """
    values = column_of(batch, column)
    if wanted.kind in "OTU":  # Strings.
        return values
    if values.dtype == object:
        try:
            values = np.stack([np.asarray(v) for v in values])
        except (TypeError, ValueError) as error:
            raise InputError(
                f"The rows of column {column!r} have no common shape ({error}); pad them."
            ) from error
    if values.dtype == wanted or not np.can_cast(values.dtype, wanted, "same_kind"):
        return values
    return values.astype(wanted)
