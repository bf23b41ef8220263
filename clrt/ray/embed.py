"""Text embeddings in Ray's `Dataset.map_batches`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.ray.resources import device_for_actor
from clrt.text.jobs.options import EmbedOptions, text_problem

Batch = Mapping[str, NDArray[Any]]


class Embed:
    """Callable class for `Dataset.map_batches` that adds the vectors of a text column.

    Each actor loads the model once. A row whose text is null or not a string gets a vector of NaN
    and an error message.

    Args:
        model: Path or name of a sentence encoder, which each machine must have.
        column: Name of the text column.
        output: Name of the added vector column, float32 [rows, dimension].
        error: Name of the added column of error messages; the message of a valid row is "". None
            adds no column and raises InputError for an invalid row.
        device: As in `clrt.load`. None uses CLRT_DEVICE if it is set, else the GPU that Ray
            assigned to the actor by `num_gpus` of `map_batches`, else the CPU.
        pooling: As in `clrt.SentenceEncoder`.
        max_length: As in `clrt.SentenceEncoder`.
        batch_size: As in `clrt.SentenceEncoder.encode`.
        normalize_embeddings: As in `clrt.SentenceEncoder.encode`.
        truncate_dim: As in `clrt.SentenceEncoder.encode`.
        prompt: As in `clrt.SentenceEncoder.encode`.

    Raises:
        ClrtError: The model cannot be loaded, as in `clrt.SentenceEncoder`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        column: str = "text",
        output: str = "vector",
        error: str | None = "error",
        device: str | int | None = None,
        pooling: str | None = None,
        max_length: int | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        prompt: str | None = None,
    ) -> None:
        self._options = EmbedOptions(
            str(model),
            device_for_actor(device),
            pooling,
            max_length,
            batch_size,
            truncate_dim,
            prompt,
            normalize_embeddings,
        )
        self._column, self._output, self._error = column, output, error
        self._encoder = self._options.make_encoder()

    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Returns the batch with the vector and error columns added.

        Args:
            batch: Column name -> array, the default batch format of `map_batches`.

        Raises:
            InputError: The text column is missing, or a row is invalid and `error` is None.
        """
        values = column_of(batch, self._column)
        problems = [text_problem(v) for v in values]
        good = [i for i, problem in enumerate(problems) if not problem]
        if self._error is None and len(good) < len(values):
            row = next(i for i, problem in enumerate(problems) if problem)
            raise InputError(
                f"{self._column!r} {problems[row]} in row {row} of a batch; filter such rows out, "
                "or pass error= to write the errors to a column."
            )
        encoded = self._options.encode(self._encoder, [str(values[i]) for i in good])
        vectors = encoded
        if len(good) < len(values):
            vectors = np.full((len(values), encoded.shape[1]), np.nan, encoded.dtype)
            vectors[good] = encoded
        result = {**batch, self._output: vectors}
        if self._error is not None:
            messages = [f"{self._column!r} {p}" if p else "" for p in problems]
            result[self._error] = np.array(messages, object)
        return result


def column_of(batch: object, name: str) -> NDArray[Any]:
    """Returns a column of a batch of `Dataset.map_batches`.

    Args:
        batch: Column name -> array.
        name: Name of the column.

    Raises:
        InputError: The column is missing, or the batch is not a dict of arrays.
    """
    if not isinstance(batch, Mapping):
        raise InputError(
            f"A batch is a {type(batch).__name__}, not a dict of arrays; leave batch_format out."
        )
    if name not in batch:
        there = ", ".join(map(repr, batch))
        raise InputError(f"There is no column {name!r}; the columns are: {there}.")
    return np.asarray(batch[name])
