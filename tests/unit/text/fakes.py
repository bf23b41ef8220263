"""Models without a device: graphs run by NumPy references, and a one-table transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph, Value
from clrt.ops.base import Op
from clrt.runtime.execution.signature import TensorSpec
from tests.unit.text import tiny

Array = NDArray[Any]
HIDDEN = 3
TABLE = np.random.default_rng(0).standard_normal((len(tiny.WORDS), HIDDEN)).astype(np.float32)
INPUTS = ("input_ids", "attention_mask")


def evaluate(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Computes a graph's outputs node by node with the ops' references."""
    arrays: dict[Value, Array] = {v: feeds[v.name] for v in graph.inputs}

    def find(value: Value) -> Array:
        if value.is_constant:
            assert value.numbers is not None
            return value.numbers
        return arrays[value]

    for node in graph.nodes:
        assert isinstance(node.op, Op)
        results = node.op.reference(*(None if v is None else find(v) for v in node.inputs))
        arrays.update(zip(node.outputs, results, strict=True))
    return {n: find(v) for n, v in zip(graph.output_names, graph.outputs, strict=True)}


class FakeModel:
    """Implements the part of Model that `SentenceEncoder` uses."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.device = SimpleNamespace(
            index=0, name="fake", platform="none", kind="cpu", caps=SimpleNamespace(is_cpu=True)
        )
        self.feeds: list[dict[str, Array]] = []
        self.closed = False

    def run(
        self,
        feeds: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        device_outputs: bool = False,
    ) -> dict[str, Array]:
        assert feeds.keys() == {s.name for s in self.inputs}
        for spec in self.inputs:
            assert feeds[spec.name].dtype == spec.dtype.numpy
        self.feeds.append(dict(feeds))
        found = self.compute(feeds)
        return {name: found[name] for name in outputs or found}

    def compute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


class FakeTransformer(FakeModel):
    """Token embeddings that depend on the token alone; padding gets huge numbers."""

    def __init__(
        self,
        inputs: Sequence[str] = INPUTS,
        output: str = "last_hidden_state",
        dtype: DType = DType.INT64,
        hidden: int | str = HIDDEN,
        dims: tuple[int | str, int | str] = ("batch", "sequence"),
    ) -> None:
        super().__init__(
            [TensorSpec(name, dtype, dims) for name in inputs],
            [TensorSpec(output, DType.FLOAT32, (*dims, hidden))],
        )

    def compute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        tokens = TABLE[feeds["input_ids"]]
        tokens = np.where(feeds["attention_mask"][..., None] == 0, np.float32(1e6), tokens)
        return {self.outputs[0].name: tokens}


class GraphModel(FakeModel):
    """Model that runs a graph by NumPy references."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(
            [TensorSpec(v.name, v.dtype, None) for v in graph.inputs],
            [TensorSpec(n, DType.FLOAT32, None) for n in graph.output_names],
        )
        self.graph = graph

    def compute(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        return evaluate(self.graph, feeds)


class Loader:
    """Replaces `clrt.load`; records created poolers."""

    def __init__(self, transformer: FakeModel) -> None:
        self.transformer = transformer
        self.poolers: list[GraphModel] = []

    def __call__(self, source: Path | Graph, **options: object) -> FakeModel:
        if isinstance(source, Graph):
            self.poolers.append(GraphModel(source.copy()))
            return self.poolers[-1]
        return self.transformer
