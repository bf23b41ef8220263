"""Runs tokens of several sequences through a decoder on a device, and holds their cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clrt.container.safetensors import Header
from clrt.errors import InputError, OutOfMemoryError
from clrt.generation.page_pool import NOTHING, PagePool
from clrt.generation.sampler import TokenSampler, sampler_inputs
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.kernels.spec import ceil_div
from clrt.model import Model, load
from clrt.ops.attention.pages import PAGE, SLABS
from clrt.runs.state import State
from clrt.runtime.devices import DeviceInfo
from clrt.runtime.rows import read_rows, write_rows
from clrt.runtime.tensors import DeviceTensor
from clrt.signature import TensorSpec

# Tokens of a prompt that are run at once, at most; the rest waits for the next step.
CHUNK = 512
# Steps of more tokens than this have a multiple of it: each number of tokens has a plan.
_ROUNDED = 16
# A cache begins with room for a context divided by this, but for so many pages at least and at
# most, and grows as often as it has slabs.
_FIRST_PART, _LEAST_PAGES, _MOST_PAGES = 8, 8, 64
# Columns that a table has at first, at most: it grows with the longest sequence.
_COLUMNS = 4096
# Beside twice its weights a model needs no more than this for a step: the rest is the cache's.
_STEP_BYTES = 64 << 20


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
        samplers: Choose the tokens behind so many of the last ones; there is a row of outputs for
            each.
    """

    sequence: CachedSequence
    count: int
    samplers: Sequence[TokenSampler] = ()


class Engine:
    """A decoder on a device, with its cache.

    It is for one thread at a time. After a run that failed the cache begins anew, and sequences run
    their tokens again.

    Attributes:
        computed: Tokens that were run so far, of all sequences.

    Args:
        graph: As `clrt.importer.language.graph` builds it, or the header of a compiled
            file of it.
        context: The most tokens of a sequence.
        sequences: For how many sequences at a time there is room at first.
        device, cache_dir, memory_limit: As in `clrt.load`.
    """

    def __init__(
        self,
        graph: Graph | Header,
        context: int,
        *,
        sequences: int = 16,
        device: str | int | DeviceInfo | None = None,
        cache_dir: str | Path | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.context = context
        self.model: Model = load(
            graph, device=device, cache_dir=cache_dir, memory_limit=memory_limit
        )
        slab = next(spec for spec in self.model.inputs if spec.name == "slab0")
        logits = next(spec for spec in self.model.outputs if spec.name == "logits")
        self._dtype = slab.dtype
        self._pitch, self._vocabulary = _width(slab), _width(logits)
        self._session = self.model._session
        self._context_pages = ceil_div(context, PAGE)
        self._table = np.full((sequences, min(self._context_pages, _COLUMNS)), -1, np.int32)
        self._rows = list(range(sequences))
        self._model_bytes: int | None = None
        self._open: list[CachedSequence] = []
        self.computed = 0
        self.reset()

    def reset(self) -> None:
        """Begins with an empty cache: what sequences have run they run again."""
        self.pool = PagePool(self._grow)
        self._slabs = [self._tensor((0, self._pitch)) for _ in range(SLABS)]
        self._grown = 0
        self._table_there: DeviceTensor | None = None
        self._sampling: tuple[tuple[TokenSampler, ...], Mapping[str, Any]] = ((), {})
        for sequence in self._open:
            sequence.pages, sequence.content, sequence.done = [], NOTHING, 0

    def open(self, tokens: Sequence[int], anew: bool = False) -> CachedSequence:
        """A sequence of these tokens; what the cache holds of their beginning counts as run.

        Args:
            anew: Whether all of them are run in any case.

        Raises:
            InputError: They are more than the context.
        """
        check_length(tokens, self.context)
        if not self._rows:
            more = len(self._table)
            self._table = np.concatenate([self._table, np.full_like(self._table, -1)])
            self._rows = list(range(more, 2 * more))
            self._table_there = None
        made = CachedSequence(list(tokens), self._rows.pop())
        self._open.append(made)
        if not anew:
            # The last token is run anyway: its logits are wanted.
            made.pages, made.content = self.pool.beginning(made.tokens[:-1])
            made.done = len(made.pages) * PAGE
            self._write_row(made)
        return made

    def close(self, sequence: CachedSequence) -> None:
        """Ends a sequence; its full pages serve others until their room is needed."""
        self.pool.release(sequence.pages)
        sequence.pages = []
        self._open.remove(sequence)
        self._rows.append(sequence.row)

    def step(
        self, parts: Sequence[StepPart], outputs: Sequence[str] = ("token", "logprob")
    ) -> dict[str, Array]:
        """Runs the next tokens of sequences.

        Args:
            outputs: Of the graph: which are wanted.

        Returns:
            By name, a row for each sampler of the parts in their order.

        Raises:
            OutOfMemoryError: The cache cannot grow; nothing was run.
            ClrtError: The run failed, and the cache is empty.
        """
        for part in parts:
            self._make_room(part.sequence, part.sequence.done + part.count)
        step, wanted = _step(parts)
        samplers = tuple(sampler for part in parts for sampler in part.samplers)
        feeds = {"step": step, "rows": wanted, "table": self._device_table()}
        feeds |= self._sampler_inputs(samplers, parts)
        try:
            found = self.model.run(feeds, list(outputs) if samplers else [], state=self._state())
        except BaseException as error:
            # The memory of an arena is taken before anything is run.
            if not isinstance(error, OutOfMemoryError) or any(s.lease is None for s in self._slabs):
                self.reset()
            raise
        for part in parts:
            self._advance(part.sequence, part.count)
        return found

    def read_pages(self, pages: Sequence[int]) -> Array:
        """What pages hold, `[pages, elements]`.

        Raises:
            DeviceError: The driver fails.
        """
        made = np.empty((len(pages), self._pitch), self._dtype.numpy)
        for row, page in zip(made, pages, strict=True):
            row[:] = read_rows(*self._place(page), 1)[0]
        return made

    def restore(self, tokens: Sequence[int], pages: Array) -> None:
        """Takes in pages of a beginning, which then serve sequences until their room is needed.

        Args:
            tokens: PAGE for each page.
            pages: As `read_pages` gives them.

        Raises:
            OutOfMemoryError: The cache has no room for all.
        """
        held, content = self.pool.beginning(tokens)
        try:
            for index in range(len(held), len(pages)):
                held.append(self.pool.take())
                write_rows(*self._place(held[-1]), pages[index : index + 1])
                part = tokens[index * PAGE : (index + 1) * PAGE]
                content = self.pool.fill(held[-1], content, part)
        finally:
            self.pool.release(held)

    def _place(self, page: int) -> tuple[DeviceTensor, int]:
        """The slab of a page, and its row there."""
        for slab in self._slabs:
            if page < slab.shape[0]:
                return slab, page
            page -= slab.shape[0]
        raise IndexError(page)

    def close_model(self) -> None:
        """Frees the device's memory; nothing can be run afterwards."""
        for slab in self._slabs:
            slab.release()
        self._table_there, self._sampling = None, ((), {})
        self.model.close()

    def _state(self) -> State:
        """The slabs, which a run writes to."""
        names = [(f"slab{s}", f"kept{s}") for s in range(SLABS)]
        held = {name: slab for (name, _), slab in zip(names, self._slabs, strict=True)}
        return _CacheState(dict(names), held, self._slabs)

    def _advance(self, sequence: CachedSequence, count: int) -> None:
        self.computed += count
        full = sequence.done // PAGE
        sequence.done += count
        for index in range(full, sequence.done // PAGE):
            tokens = sequence.tokens[index * PAGE : (index + 1) * PAGE]
            sequence.content = self.pool.fill(sequence.pages[index], sequence.content, tokens)

    def _make_room(self, sequence: CachedSequence, places: int) -> None:
        needed = ceil_div(places, PAGE)
        if needed <= len(sequence.pages):
            return
        while len(sequence.pages) < needed:
            sequence.pages.append(self.pool.take())
        self._write_row(sequence)

    def _write_row(self, sequence: CachedSequence) -> None:
        while len(sequence.pages) > self._table.shape[1]:
            self._table = np.hstack([self._table, np.full_like(self._table, -1)])
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
        texts = [part.sequence.tokens for part in parts for _ in part.samplers]
        inputs = sampler_inputs(samplers, texts, self._vocabulary)
        there = {n: self._session.tensor_of(a, DType.of(a.dtype)) for n, a in inputs.items()}
        self._sampling = samplers, there
        return there

    def _tensor(self, shape: tuple[int, ...]) -> DeviceTensor:
        return self._session.tensor(shape, self._dtype)

    def _grow(self) -> int:
        """A further slab: so large that the last one would have room for all sequences, or as large
        as memory allows.
        """
        if self._grown == SLABS:
            return 0
        most = self._context_pages * len(self._table)
        largest = max(self.model.device.caps.max_alloc_bytes // self._page_bytes, 1)
        pages = max(self._context_pages // _FIRST_PART, _LEAST_PAGES)
        pages = min(pages, _MOST_PAGES, most, largest)
        if self._grown or not self._surely_fits(pages):
            held, room = sum(slab.shape[0] for slab in self._slabs), self._room // self._page_bytes
            # Each slab makes the cache so many times larger.
            ratio = max((min(most, held + room) / pages) ** (1 / (SLABS - 1)), 2.0)
            pages = min(round(pages * ratio**self._grown) - held, room, largest)
        while pages > 0:
            try:
                self._slabs[self._grown] = self._tensor((pages, self._pitch))
            except OutOfMemoryError:
                pages //= 2
                continue
            self._grown += 1
            return pages
        return 0

    def _surely_fits(self, pages: int) -> bool:
        """Whether there is room for a first slab; to tell how much there is takes a plan."""
        planner = self.model._runner.planner
        known = 2 * sum(value.nbytes for value in planner.constants) + _STEP_BYTES
        return known + pages * self._page_bytes <= planner.limit

    @property
    def _page_bytes(self) -> int:
        return int(self._pitch * self._dtype.itemsize)

    @property
    def _room(self) -> int:
        """Bytes that the cache may still take beside weights and the arena of a long step."""
        if self._model_bytes is None:
            shapes = {
                spec.name: [d if isinstance(d, int) else 1 for d in spec.shape or ()]
                for spec in self.model.inputs
            }
            shapes |= {"step": [CHUNK, 3], "table": list(self._table.shape)}
            self._model_bytes = self.model.memory(shapes).device_bytes
        used = sum(slab.nbytes for slab in self._slabs)
        return max(self.model._runner.planner.limit - self._model_bytes - used, 0)


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


def check_length(tokens: Sequence[int], context: int) -> None:
    """Whether a prompt is short enough.

    Raises:
        InputError: It is not.
    """
    if len(tokens) > context:
        raise InputError(
            f"The prompt has {len(tokens)} tokens, and the context {context}; shorten it, or "
            "choose a larger context."
        )


def _width(matrix: TensorSpec) -> int:
    assert matrix.shape is not None and isinstance(matrix.shape[1], int)
    return matrix.shape[1]


def _step(parts: Sequence[StepPart]) -> tuple[Array, Array]:
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
        wanted += range(at - len(part.samplers), at)
    return step, np.array(wanted, np.int32)
