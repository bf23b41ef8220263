"""Vector functions of `sentence_transformers.util`."""

from clrt.text.search import (
    community_detection,
    paraphrase_mining,
    paraphrase_mining_embeddings,
    semantic_search,
)
from clrt.text.similarity import (
    cos_sim,
    dot_score,
    euclidean_sim,
    manhattan_sim,
    normalize_embeddings,
    pairwise_cos_sim,
    pairwise_dot_score,
    pairwise_euclidean_sim,
    pairwise_manhattan_sim,
    truncate_embeddings,
)

pytorch_cos_sim = cos_sim

__all__ = [
    "community_detection",
    "cos_sim",
    "dot_score",
    "euclidean_sim",
    "manhattan_sim",
    "normalize_embeddings",
    "pairwise_cos_sim",
    "pairwise_dot_score",
    "pairwise_euclidean_sim",
    "pairwise_manhattan_sim",
    "paraphrase_mining",
    "paraphrase_mining_embeddings",
    "pytorch_cos_sim",
    "semantic_search",
    "truncate_embeddings",
]
