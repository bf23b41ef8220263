"""Semantic search, paraphrase mining and clustering, as in sentence-transformers' `util`."""

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
    """Finds the corpus vectors most similar to each query.

    Args:
        query_embeddings: Vectors [queries, size], or one [size].
        corpus_embeddings: Vectors [texts, size].
        query_chunk_size: Number of queries scored at once.
        corpus_chunk_size: Number of corpus vectors scored at once.
        top_k: Maximum number of results per query.
        score_function: Scores two sets of vectors, [queries, texts]; larger is more similar.

    Returns:
        For each query a list of {"corpus_id", "score"}, best first.
    """
    queries, corpus = _rows(query_embeddings), _rows(corpus_embeddings)
    results: list[list[dict[str, int | float]]] = []
    for first in range(0, len(queries), query_chunk_size):
        chunk = queries[first : first + query_chunk_size]
        best, indices = _best(chunk, corpus, corpus_chunk_size, top_k, score_function)
        results += [
            [{"corpus_id": int(i), "score": float(s)} for s, i in zip(*row, strict=True)]
            for row in zip(best, indices, strict=True)
        ]
    return results


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
    """Finds the most similar pairs of sentences.

    Args:
        model: A `SentenceEncoder`.
        sentences: Texts to compare.
        show_progress_bar: As in `SentenceEncoder.encode`.
        batch_size: As in `SentenceEncoder.encode`.
        query_chunk_size: As in `paraphrase_mining_embeddings`.
        corpus_chunk_size: As in `paraphrase_mining_embeddings`.
        max_pairs: As in `paraphrase_mining_embeddings`.
        top_k: As in `paraphrase_mining_embeddings`.
        score_function: As in `paraphrase_mining_embeddings`.
        options: Keyword arguments passed to `SentenceEncoder.encode`.

    Returns:
        [score, i, j] with i < j for each pair, best first.
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
    """Finds the most similar pairs of vectors.

    Args:
        embeddings: Vectors [n, size].
        query_chunk_size: Rows of a block of scores that is computed at once.
        corpus_chunk_size: Columns of a block of scores that is computed at once.
        max_pairs: Maximum number of returned pairs.
        top_k: Number of nearest neighbours considered per vector.
        score_function: Symmetric score of two sets of vectors; larger is more similar.

    Returns:
        [score, i, j] with i < j for each pair, best first.
    """
    vectors = _rows(embeddings)
    pairs: dict[tuple[int, int], float] = {}
    for first in range(0, len(vectors), query_chunk_size):
        chunk = vectors[first : first + query_chunk_size]
        best, indices = _best(chunk, vectors, corpus_chunk_size, top_k + 1, score_function)
        for i, (scores, others) in enumerate(zip(best, indices, strict=True), start=first):
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
    """Groups vectors whose cosine with a central vector is at least the threshold.

    Args:
        embeddings: Vectors [n, size].
        threshold: Minimum cosine.
        min_community_size: Minimum vectors per group; smaller groups are dropped.
        batch_size: Number of vectors compared with all others at once.
        show_progress_bar: Ignored; accepted for compatibility with sentence-transformers.

    Returns:
        For each group the indices of its vectors: the centre, then by falling cosine. The
        largest group comes first; groups are disjoint.
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
    communities: list[list[int]] = []
    for centre, members in groups:
        free = members[~used[members]]
        if used[centre] or len(free) < min_community_size:
            continue
        communities.append([centre, *free[free != centre].tolist()])
        used[communities[-1]] = True
    return sorted(communities, key=len, reverse=True)


def _rows(vectors: Vectors) -> Any:
    if isinstance(vectors, SparseVectors):
        return vectors.rows
    if isinstance(vectors, (list, tuple)) and vectors and isinstance(vectors[0], SparseVectors):
        return SparseVectors.stack(vectors, vectors[0].shape[-1])
    return rows_of(as_array(vectors))


def _best(
    queries: Any, corpus: Any, chunk_size: int, top_k: int, score_function: Score
) -> tuple[Array, Array]:
    """Finds the corpus vectors with the highest score for each query.

    Args:
        queries: Vectors [queries, size].
        corpus: Vectors [texts, size].
        chunk_size: Number of corpus vectors scored at once.
        top_k: Maximum number of results per query.
        score_function: Scores two sets of vectors, [queries, texts].

    Returns:
        Scores, descending, and indices in `corpus`; both [queries, min(top_k, texts)].
    """
    best: Array = np.zeros((len(queries), 0), np.float32)
    indices: Array = np.zeros((len(queries), 0), np.int64)
    for first in range(0, len(corpus), chunk_size):
        scores = as_array(score_function(queries, corpus[first : first + chunk_size]))
        here = np.broadcast_to(np.arange(first, first + scores.shape[1]), scores.shape)
        best = np.concatenate((best, scores), axis=1)
        indices = np.concatenate((indices, here), axis=1)
        kept = min(top_k, best.shape[1])
        top = np.argpartition(-best, kept - 1, axis=1)[:, :kept]
        best, indices = (np.take_along_axis(x, top, axis=1) for x in (best, indices))
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(indices, order, axis=1)
