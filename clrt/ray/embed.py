"""Texts to vectors in `Dataset.map_batches`."""

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
    """Adds the vectors of a column of texts to batches.

    For `Dataset.map_batches`: each actor loads the model once and keeps it. A row whose text is
    null or no string gets a vector of NaN, and what is wrong with it in a column of its own.

    Args:
        model: As in `clrt.SentenceEncoder`; each machine must have it.
        column: The column of texts.
        output: The column for vectors, float32 [rows, dimension].
        error: The column for what is wrong with a row, "" where nothing is. None makes such a row
            an error of the job.
        device: As in `clrt.load`. None takes what Ray gives the actor: a GPU, or a share of one, if
            `map_batches` has `num_gpus`, else the CPU.
        pooling: As in `clrt.SentenceEncoder`, like `max_length`.
        batch_size: As in `clrt.SentenceEncoder.encode`, like all that follow.

    Raises:
        ClrtError: As `clrt.SentenceEncoder`.
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
        """A batch with the column of vectors.

        Args:
            batch: Arrays by column, as `map_batches` gives them by default.

        Raises:
            InputError: There is no column of texts, or a row has none and no column is to say so.
        """
        values = column_of(batch, self._column)
        problems = [text_problem(v) for v in values]
        good = [i for i, problem in enumerate(problems) if not problem]
        if self._error is None and len(good) < len(values):
            row = next(i for i, problem in enumerate(problems) if problem)
            raise InputError(
                f"{self._column!r} {problems[row]} in row {row} of a batch; filter such rows out, "
                "or name a column by error= for what is wrong with them."
            )
        found = self._options.encode(self._encoder, [str(values[i]) for i in good])
        vectors = found
        if len(good) < len(values):
            vectors = np.full((len(values), found.shape[1]), np.nan, found.dtype)
            vectors[good] = found
        result = {**batch, self._output: vectors}
        if self._error is not None:
            said = [f"{self._column!r} {p}" if p else "" for p in problems]
            result[self._error] = np.array(said, object)
        return result


def column_of(batch: object, name: str) -> NDArray[Any]:
    """A column of a batch.

    Raises:
        InputError: There is none, or the batch is no dict of arrays.
    """
    if not isinstance(batch, Mapping):
        raise InputError(
            f"A batch is a {type(batch).__name__}, not a dict of arrays; leave batch_format out."
        )
    if name not in batch:
        there = ", ".join(map(repr, batch))
        raise InputError(f"There is no column {name!r}; there are: {there}.")
    return np.asarray(batch[name])
