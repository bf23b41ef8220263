"""Runs tokens of several sequences through a decoder on a device, and holds their cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clrt.errors import InputError, OutOfMemoryError
from clrt.generation.page_pool import NOTHING, PagePool
from clrt.generation.sampler import TokenSampler, sampler_inputs
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.kernels.spec import ceil_div
from clrt.model import Model, load
from clrt.ops.attention.pages import PAGE, SLABS
from clrt.runs.state import State
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.tensors import DeviceTensor

# Tokens of a prompt that are run at once, at most; the rest waits for the next step.
CHUNK = 512
# Steps of more tokens than this have a multiple of it: each number of tokens has a plan.
_ROUNDED = 16
# A cache begins with room for a context divided by this, and can double as often as it has slabs.
_FIRST_PART = 8


@dataclass(eq=False)
class CachedSequence:
    """Tokens, and the pages that hold the keys and values of those that were run.

    Attributes:
        tokens: All that are known.
        done: How many of them were run.
        pages: Their pages.
        content: What the last full page holds (`PagePool.fill`).
        row: Of the table.
    """

    tokens: list[int]
    row: int
    done: int = 0
    pages: list[int] = field(default_factory=list)
    content: int = NOTHING

    @property
    def left(self) -> int:
        """How many tokens were not run."""
        return len(self.tokens) - self.done


@dataclass(frozen=True)
class StepPart:
    """What a step does for a sequence.

    Attributes:
        count: How many of its tokens it runs.
        sampler: Chooses the token behind them; None where it is not wanted.
    """

    sequence: CachedSequence
    count: int
    sampler: TokenSampler | None = None


@dataclass(frozen=True)
class StepResult:
    """The tokens that were chosen, for parts with a sampler in their order.

    Attributes:
        logprobs: Of the tokens, by the logits as they are.
        logits: float32 `[parts, vocabulary]` where they were asked for.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    logits: np.ndarray[Any, np.dtype[np.float32]] | None = None


class Engine:
    """A decoder on a device, with its cache.

    It is for one thread at a time.

    Args:
        graph: As `clrt.importer.language.graph` builds it.
        context: The most tokens of a sequence.
        vocabulary: How many tokens the logits are for.
        sequences: The most sequences at a time.
        device, cache_dir, memory_limit: As in `clrt.load`.
    """

    def __init__(
        self,
        graph: Graph,
        context: int,
        vocabulary: int,
        *,
        sequences: int = 16,
        device: str | int | DeviceInfo | None = None,
        cache_dir: str | Path | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.model: Model = load(
            graph, device=device, cache_dir=cache_dir, memory_limit=memory_limit
        )
        self.context, self._vocabulary = context, vocabulary
        self.pool = PagePool(self._grow)
        slab = next(v for v in graph.inputs if v.name == "slab0")
        assert slab.shape is not None and isinstance(slab.shape[1], int)
        self._pitch, self._dtype = slab.shape[1], slab.dtype
        self._session = self.model._session
        self._slabs = [self._tensor((0, self._pitch)) for _ in range(SLABS)]
        self._grown = 0
        self._table = np.full((sequences, ceil_div(context, PAGE)), -1, np.int32)
        self._table_there: DeviceTensor | None = None
        self._rows = list(range(sequences))
        self._sampling: tuple[tuple[TokenSampler, ...], Mapping[str, Any]] = ((), {})

    @property
    def free_rows(self) -> int:
        """How many sequences more there can be."""
        return len(self._rows)

    def open(self, tokens: Sequence[int]) -> CachedSequence:
        """A sequence of these tokens; what the cache holds of their beginning counts as run.

        Raises:
            InputError: They are more than the context.
        """
        if len(tokens) > self.context:
            raise InputError(
                f"The prompt has {len(tokens)} tokens, and the context {self.context}; shorten it, "
                "or choose a larger context."
            )
        made = CachedSequence(list(tokens), self._rows.pop())
        # The last token is run anyway: its logits are wanted.
        made.pages, made.content = self.pool.beginning(made.tokens[:-1])
        made.done = len(made.pages) * PAGE
        self._write_row(made)
        return made

    def close(self, sequence: CachedSequence) -> None:
        """Ends a sequence; its full pages serve others until their room is needed."""
        self.pool.release(sequence.pages)
        sequence.pages = []
        self._rows.append(sequence.row)

    def step(self, parts: Sequence[StepPart], logits: bool = False) -> StepResult:
        """Runs the next tokens of sequences.

        Args:
            logits: Whether logits come back.

        Raises:
            OutOfMemoryError: The cache cannot grow; nothing was run.
        """
        for part in parts:
            self._make_room(part.sequence, part.sequence.done + part.count)
        step, wanted = _step(parts)
        samplers = tuple(p.sampler for p in parts if p.sampler is not None)
        feeds = {"step": step, "rows": wanted, "table": self._device_table()}
        feeds |= self._sampler_inputs(samplers, parts)
        outputs = ["token", "logprob", *(["logits"] if logits else [])] if samplers else []
        found = self.model.run(feeds, outputs, state=self._state())
        for part in parts:
            self._advance(part.sequence, part.count)
        if not samplers:
            return StepResult((), ())
        return StepResult(found["token"].tolist(), found["logprob"].tolist(), found.get("logits"))

    def close_model(self) -> None:
        """Frees the device's memory."""
        self.model.close()

    def _state(self) -> State:
        """The slabs, which a run writes to."""
        names = [(f"slab{s}", f"kept{s}") for s in range(SLABS)]
        held = {name: slab for (name, _), slab in zip(names, self._slabs, strict=True)}
        return _CacheState(dict(names), held, self._slabs)

    def _advance(self, sequence: CachedSequence, count: int) -> None:
        full = sequence.done // PAGE
        sequence.done += count
        for index in range(full, sequence.done // PAGE):
            tokens = sequence.tokens[index * PAGE : (index + 1) * PAGE]
            sequence.content = self.pool.fill(sequence.pages[index], sequence.content, tokens)

    def _make_room(self, sequence: CachedSequence, places: int) -> None:
        missing = ceil_div(places, PAGE) - len(sequence.pages)
        if missing <= 0:
            return
        sequence.pages += [self.pool.take() for _ in range(missing)]
        self._write_row(sequence)

    def _write_row(self, sequence: CachedSequence) -> None:
        self._table[sequence.row, : len(sequence.pages)] = sequence.pages
        self._table_there = None

    def _device_table(self) -> DeviceTensor:
        if self._table_there is None:
            self._table_there = self._session.tensor_of(self._table, DType.INT32)
        return self._table_there

    def _sampler_inputs(
        self, samplers: tuple[TokenSampler, ...], parts: Sequence[StepPart]
    ) -> Mapping[str, Any]:
        """What the op SampleTokens is told; it stays on the device while it is the same."""
        if samplers and samplers == self._sampling[0] and not any(s.changes for s in samplers):
            return self._sampling[1]
        texts = [p.sequence.tokens for p in parts if p.sampler is not None]
        inputs = sampler_inputs(samplers, texts, self._vocabulary)
        there = {n: self._session.tensor_of(a, DType.of(a.dtype)) for n, a in inputs.items()}
        self._sampling = samplers, there
        return there

    def _tensor(self, shape: tuple[int, ...]) -> DeviceTensor:
        return self._session.tensor(shape, self._dtype)

    def _grow(self) -> int:
        """A further slab: pages of the first one, then as many as there are."""
        if self._grown == SLABS:
            return 0
        first = max(self._table.shape[1] // _FIRST_PART, 1)
        pages = first if not self._grown else first << (self._grown - 1)
        try:
            self._slabs[self._grown] = self._tensor((pages, self._pitch))
        except OutOfMemoryError:
            return 0
        self._grown += 1
        return pages


class _CacheState(State):
    """A state whose tensors are an engine's."""

    def __init__(
        self,
        pairs: Mapping[str, str],
        tensors: Mapping[str, DeviceTensor],
        slabs: list[DeviceTensor],
    ) -> None:
        super().__init__(pairs, tensors)
        self._slabs = slabs

    def update(self, results: Mapping[str, Any]) -> None:
        super().update(results)
        self._slabs[:] = list(self.values())


def _step(parts: Sequence[StepPart]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The inputs `step` and `rows`: tokens of no sequence make their number a round one."""
    total = sum(part.count for part in parts)
    rounded = total if total <= _ROUNDED else ceil_div(total, _ROUNDED) * _ROUNDED
    step = np.zeros((rounded, 3), np.int32)
    step[total:, 1] = -1
    wanted: list[int] = []
    at = 0
    for part in parts:
        sequence, end = part.sequence, at + part.count
        step[at:end, 0] = sequence.tokens[sequence.done : sequence.done + part.count]
        step[at:end, 1] = sequence.row
        step[at:end, 2] = np.arange(sequence.done, sequence.done + part.count)
        at = end
        if part.sampler is not None:
            wanted.append(at - 1)
    return step, np.array(wanted, np.int32)
