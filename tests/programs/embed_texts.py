"""Vectors by sentence-transformers' ONNX backend and by fastembed; the folder is argument 1."""

import json
import sys
from pathlib import Path

from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType
from sentence_transformers import SentenceTransformer

TEXTS = ["the cat sleeps", "a kitten naps on the sill", "the dog barks by the window", "unknown"]
root = Path(sys.argv[1])

model = SentenceTransformer(str(root / "sentences" / "model"), backend="onnx", device="cpu")
found = list(model.encode(TEXTS, batch_size=3))
TextEmbedding.add_custom_model(
    model="local/small",
    pooling=PoolingType.MEAN,
    normalization=True,
    sources=ModelSource(hf="local/small"),
    dim=32,
    model_file="model.onnx",
)
small = TextEmbedding("local/small", specific_model_path=str(root / "bert"))
found += list(small.embed(TEXTS))
json.dump([[float(x) for x in v] for v in found], sys.stdout)
