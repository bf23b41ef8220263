"""Search, pairs and groups in collections of vectors, as sentence-transformers' `util` has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.text.similarity import Vectors, cos_sim, normalize_vectors
from clrt.text.sparse_vectors import SparseVectors
from clrt.text.torch_interop import as_array, rows_of

Array = NDArray[Any]
Score = Callable[[Any, Any], Any]


def semantic_search(
    query_embeddings: Vectors,
    corpus_embeddings: Vectors,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500000,
    top_k: int = 10,
    score_function: Score = cos_sim,
) -> list[list[dict[str, int | float]]]:
    """The most similar vectors of a corpus to each query.

    Args:
        query_embeddings: Vectors [queries, size], or one.
        corpus_embeddings: Vectors [texts, size].
        query_chunk_size: How many queries are compared at once.
        corpus_chunk_size: With how many vectors of the corpus.
        top_k: How many are found at most.
        score_function: Of two sets of vectors; larger is more similar.

    Returns:
        For each query a list of {"corpus_id", "score"}, the best first.
    """
    queries, corpus = _rows(query_embeddings), _rows(corpus_embeddings)
    found: list[list[dict[str, int | float]]] = []
    for first in range(0, len(queries), query_chunk_size):
        chunk = queries[first : first + query_chunk_size]
        best, places = _best(chunk, corpus, corpus_chunk_size, top_k, score_function)
        found += [
            [{"corpus_id": int(i), "score": float(s)} for s, i in zip(*row, strict=True)]
            for row in zip(best, places, strict=True)
        ]
    return found


def paraphrase_mining(
    model: Any,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: Score = cos_sim,
    **options: Any,
) -> list[list[float | int]]:
    """The most similar pairs among sentences.

    What is not listed here is as in `SentenceEncoder.encode`, which takes `options`, too, or as in
    `paraphrase_mining_embeddings`.

    Args:
        model: A `SentenceEncoder`.
        sentences: The texts.

    Returns:
        [score, i, j] with i < j for each pair, the best first.
    """
    options = {"show_progress_bar": show_progress_bar, "batch_size": batch_size, **options}
    vectors = model.encode(list(sentences), **options)
    chunks = query_chunk_size, corpus_chunk_size
    return paraphrase_mining_embeddings(vectors, *chunks, max_pairs, top_k, score_function)


def paraphrase_mining_embeddings(
    embeddings: Vectors,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100000,
    max_pairs: int = 500000,
    top_k: int = 100,
    score_function: Score = cos_sim,
) -> list[list[float | int]]:
    """The most similar pairs among vectors.

    Args:
        embeddings: Vectors [n, size].
        query_chunk_size, corpus_chunk_size: How many vectors are compared at once.
        max_pairs: How many pairs are found at most.
        top_k: How many neighbours of a vector are looked at.
        score_function: Of two sets of vectors, symmetric.

    Returns:
        [score, i, j] with i < j for each pair, the best first.
    """
    vectors = _rows(embeddings)
    pairs: dict[tuple[int, int], float] = {}
    for first in range(0, len(vectors), query_chunk_size):
        chunk = vectors[first : first + query_chunk_size]
        best, places = _best(chunk, vectors, corpus_chunk_size, top_k + 1, score_function)
        for i, (scores, others) in enumerate(zip(best, places, strict=True), start=first):
            near = [(int(j), float(s)) for j, s in zip(others, scores, strict=True) if j != i]
            for j, score in near[:top_k]:
                pairs.setdefault((min(i, j), max(i, j)), score)
    ranked = sorted(pairs.items(), key=lambda item: -item[1])[:max_pairs]
    return [[score, i, j] for (i, j), score in ranked]


def community_detection(
    embeddings: Vectors,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Groups of vectors whose cosine with a central one is at least the threshold.

    Args:
        embeddings: Vectors [n, size].
        threshold: The least cosine.
        min_community_size: Smaller groups are left out.
        batch_size: How many vectors are compared at once.
        show_progress_bar: For callers of sentence-transformers; there is none.

    Returns:
        For each group the places of its vectors: the centre, then by falling cosine; the largest
        group first. No vector is in two groups.
    """
    vectors = as_array(normalize_vectors(embeddings)) if len(embeddings) else np.zeros((0, 1))
    groups: list[tuple[int, Array]] = []
    for first in range(0, len(vectors), batch_size):
        cosines = vectors[first : first + batch_size] @ vectors.T
        near = cosines >= np.float32(threshold)
        for row in np.flatnonzero(near.sum(axis=1) >= min_community_size):
            order = np.argsort(-cosines[row], kind="stable")
            groups.append((first + int(row), order[near[row][order]]))
    groups.sort(key=lambda group: -len(group[1]))
    used = np.zeros(len(vectors), bool)
    found: list[list[int]] = []
    for centre, members in groups:
        free = members[~used[members]]
        if used[centre] or len(free) < min_community_size:
            continue
        found.append([centre, *free[free != centre].tolist()])
        used[found[-1]] = True
    return sorted(found, key=len, reverse=True)


def _rows(vectors: Vectors) -> Any:
    if isinstance(vectors, SparseVectors):
        return vectors.rows
    if isinstance(vectors, (list, tuple)) and vectors and isinstance(vectors[0], SparseVectors):
        return SparseVectors.stack(vectors, vectors[0].shape[-1])
    return rows_of(as_array(vectors))


def _best(
    queries: Any, corpus: Any, chunk_size: int, top_k: int, score_function: Score
) -> tuple[Array, Array]:
    """The best scores of each query and their places in the corpus, [queries, top_k], sorted."""
    best: Array = np.zeros((len(queries), 0), np.float32)
    places: Array = np.zeros((len(queries), 0), np.int64)
    for first in range(0, len(corpus), chunk_size):
        scores = as_array(score_function(queries, corpus[first : first + chunk_size]))
        here = np.broadcast_to(np.arange(first, first + scores.shape[1]), scores.shape)
        best = np.concatenate((best, scores), axis=1)
        places = np.concatenate((places, here), axis=1)
        kept = min(top_k, best.shape[1])
        top = np.argpartition(-best, kept - 1, axis=1)[:, :kept]
        best, places = (np.take_along_axis(x, top, axis=1) for x in (best, places))
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(places, order, axis=1)
