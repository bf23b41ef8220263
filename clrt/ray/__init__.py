"""Inference in Ray: classes for `Dataset.map_batches`, and embedding jobs on a cluster.

ds.map_batches(clrt.ray.Embed, fn_constructor_args=("all-MiniLM-L6-v2",), concurrency=4)
"""

from clrt.ray.embed import Embed
from clrt.ray.predict import Predict

__all__ = ["Embed", "Predict"]
