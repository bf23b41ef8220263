"""Third-party programs on sentence-transformers: KeyBERT and semantic-chunking.

    python tests/integrations/programs.py MODEL

prints their results as JSON, with the package that the name `sentence_transformers` imports.
"""

from __future__ import annotations

import json
import sys
from typing import Any

DOCUMENTS = [
    "Supervised learning is the machine learning task of learning a function that maps an input "
    "to an output based on example input-output pairs. It infers a function from labelled data.",
    "OpenCL kernels run on graphics cards of every vendor, and on processors, too. A driver "
    "compiles each kernel when the program starts, and keeps the result for the next time.",
    "The cat sleeps on the windowsill all day. At night it hunts mice in the barn behind the "
    "house.",
]
TEXT = (
    "Bread needs flour, water, salt and time. The dough rests for a night in a cool place. "
    "In the morning it goes into a hot oven. Trains run on rails of steel. "
    "A signal tells the driver when to stop. Freight trains are slower than those for people. "
    "Cats sleep for most of the day. Kittens sleep even longer."
)


def answers(model: str) -> dict[str, Any]:
    """What the programs answer with a model."""
    from keybert import KeyBERT
    from semantic_chunking import SemanticChunker

    keywords = KeyBERT(model=model)
    options: list[dict[str, Any]] = [
        {"keyphrase_ngram_range": (1, 2), "top_n": 4},
        {"use_mmr": True, "diversity": 0.7, "top_n": 3},
        {"use_maxsum": True, "nr_candidates": 8, "top_n": 3},
    ]
    chunks = [
        SemanticChunker(model, size, threshold).semantic_chunk(TEXT)
        for size, threshold in ((265, 0.2), (12, 0.3))
    ]
    found = [keywords.extract_keywords(DOCUMENTS, **some) for some in options]
    return {"keywords": found, "chunks": chunks}


if __name__ == "__main__":
    print(json.dumps(answers(sys.argv[1]), indent=1))
