"""Similarity functions of vectors, as sentence-transformers defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.text.sparse_vectors import SparseVectors
from clrt.text.torch_interop import (
    SimilarityArray,
    accepts_torch,
    as_array,
    rows_of,
    similarity_array,
)

Array = NDArray[Any]
Vectors = Any
"""An array [n, size] or [size], a list of vectors, a torch tensor, or `SparseVectors`."""

# Lower bound of the norm that vectors are divided by; torch's `normalize`.
_MIN_NORM = 1e-12
# Differences of vector pairs computed at once, in elements.
_CHUNK_ELEMS = 1 << 24


@accepts_torch
def cos_sim(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the cosine of each vector of `a` with each of `b`, [len(a), len(b)]."""
    return _products(normalize_vectors(a), normalize_vectors(b))


@accepts_torch
def dot_score(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the dot product of each vector of `a` with each of `b`, [len(a), len(b)]."""
    return _products(_vectors(a), _vectors(b))


@accepts_torch
def euclidean_sim(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the negative L2 distance of each vector of `a` to each of `b`, [len(a), len(b)]."""
    left, right = _vectors(a), _vectors(b)
    if isinstance(left, SparseVectors) or isinstance(right, SparseVectors):
        left, right = _sparse(left), _sparse(right)
        squares = left.squared_lengths()[:, None] + right.squared_lengths()
        return similarity_array(-np.sqrt(np.maximum(squares - 2 * left.dot(right), 0)))
    return _distances(left, right, lambda gap: np.sqrt((gap**2).sum(axis=-1)))


@accepts_torch
def manhattan_sim(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the negative L1 distance of each vector of `a` to each of `b`, [len(a), len(b)]."""
    left, right = _dense(_vectors(a)), _dense(_vectors(b))
    return _distances(left, right, lambda gap: np.abs(gap).sum(axis=-1))


@accepts_torch
def pairwise_cos_sim(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the cosine of a[i] and b[i] for each i, [len(a)]."""
    left, right = _dense(normalize_vectors(a)), _dense(normalize_vectors(b))
    return similarity_array((left * right).sum(axis=-1))


@accepts_torch
def pairwise_dot_score(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the dot product of a[i] and b[i] for each i, [len(a)]."""
    return similarity_array((_dense(a) * _dense(b)).sum(axis=-1))


@accepts_torch
def pairwise_euclidean_sim(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the negative Euclidean distance of a[i] and b[i] for each i, [len(a)]."""
    return similarity_array(-np.linalg.norm(_dense(a) - _dense(b), axis=-1))


@accepts_torch
def pairwise_manhattan_sim(a: Vectors, b: Vectors) -> SimilarityArray:
    """Returns the negative L1 distance of a[i] and b[i] for each i, [len(a)]."""
    return similarity_array(-np.abs(_dense(a) - _dense(b)).sum(axis=-1))


Similarity = Callable[[Vectors, Vectors], SimilarityArray]

SIMILARITIES: Mapping[str, tuple[Similarity, Similarity]] = {
    "cosine": (cos_sim, pairwise_cos_sim),
    "dot": (dot_score, pairwise_dot_score),
    "euclidean": (euclidean_sim, pairwise_euclidean_sim),
    "manhattan": (manhattan_sim, pairwise_manhattan_sim),
}
"""Similarity name -> (function of all pairs, function of vectors at equal indices)."""


def similarity_name(name: object) -> str:
    """Returns a similarity function's name, one of `SIMILARITIES`.

    Args:
        name: The name, or an enum member with that value.

    Raises:
        InputError: There is no such similarity function.
    """
    text = str(getattr(name, "value", name))
    if text not in SIMILARITIES:
        raise InputError(
            f"similarity_fn_name={text!r} is not one of {', '.join(SIMILARITIES)}.",
        )
    return text


def normalize_vectors(vectors: Vectors) -> Array | SparseVectors:
    """Scales vectors to unit length; zero vectors stay zero.

    Returns:
        [n, size]; one vector [size] becomes a matrix of one row.
    """
    rows = _vectors(vectors)
    if isinstance(rows, SparseVectors):
        return rows.scaled(1 / np.maximum(np.sqrt(rows.squared_lengths()), _MIN_NORM))
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, _MIN_NORM))


@accepts_torch
def normalize_embeddings(embeddings: Vectors) -> Any:
    """Scales vectors to unit length, in the shape of the input; zero vectors stay zero."""
    if isinstance(embeddings, SparseVectors):
        unit = normalize_vectors(embeddings)
        return unit if embeddings.ndim == 2 else unit[0]
    return np.asarray(normalize_vectors(embeddings)).reshape(as_array(embeddings).shape)


def truncate_embeddings(embeddings: Any, truncate_dim: int | None) -> Any:
    """Returns the first `truncate_dim` elements of each vector; None keeps all."""
    return embeddings[..., :truncate_dim]


def _vectors(given: Vectors) -> Array | SparseVectors:
    """Returns vectors as a matrix of rows, dense or sparse."""
    if isinstance(given, SparseVectors):
        return given.rows
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], SparseVectors):
        return SparseVectors.stack(given, given[0].shape[-1])
    rows = rows_of(as_array(given))
    if rows.ndim != 2:
        raise InputError(
            f"Vectors must be one vector or a matrix of rows, not of shape {rows.shape}."
        )
    return rows


def _dense(vectors: Vectors) -> Array:
    if isinstance(vectors, SparseVectors):
        return vectors.to_dense()
    if isinstance(vectors, (list, tuple)) and vectors and isinstance(vectors[0], SparseVectors):
        return np.stack([v.to_dense() for v in vectors])
    return as_array(vectors)


def _sparse(vectors: Array | SparseVectors) -> SparseVectors:
    return vectors if isinstance(vectors, SparseVectors) else SparseVectors.of(vectors)


def _products(left: Array | SparseVectors, right: Array | SparseVectors) -> SimilarityArray:
    if isinstance(left, SparseVectors) or isinstance(right, SparseVectors):
        return similarity_array(_sparse(left).dot(_sparse(right)))
    _check_widths(left, right)
    return similarity_array(left @ right.T)


def _distances(left: Array, right: Array, length: Callable[[Array], Array]) -> SimilarityArray:
    """Returns the negative distance of each vector of `left` to each of `right`.

    Rows of `left` are processed in chunks, because the differences of all pairs need much memory.

    Args:
        left: Vectors, [n, size].
        right: Vectors, [m, size].
        length: Norm of vectors along the last axis.

    Returns:
        [len(left), len(right)].
    """
    _check_widths(left, right)
    step = max(_CHUNK_ELEMS // max(right.size, 1), 1)
    result = np.empty((len(left), len(right)), np.result_type(left, right))
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        result[rows] = -length(left[rows, None] - right)
    return similarity_array(result)


def _check_widths(left: Array, right: Array) -> None:
    if left.shape[1] != right.shape[1]:
        raise InputError(f"Vectors of {left.shape[1]} and {right.shape[1]} numbers differ.")
