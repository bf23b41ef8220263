"""Pages that an engine's sequences and sources have, and the room for more."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.generation.encoder_inputs import EncoderInput, longest_shapes
from clrt.generation.kv_cache import KvCache
from clrt.generation.page_pool import NOTHING
from clrt.generation.page_table import PageTable
from clrt.generation.sequences import KvSequence
from clrt.models.decoders.decoder import DecoderConfig
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.runtime.model.model import Model
from clrt.runtime.opencl.ledger import BUDGET
from clrt.util.math import ceil_div

# Tokens of a prompt that are run at once, at most; the rest waits for the next step.
CHUNK = 512
# Beside twice its weights a model needs no more than this for a step: the rest is the cache's.
_STEP_BYTES = 64 << 20


class EngineMemory:
    """The part of an engine that keeps pages.

    Attributes:
        model: The decoder on a device.
        encoder: What the graph has besides the decoder.
        cache: Keys and values of all sequences, and of sources.
        computed: Tokens that were run so far.
    """

    model: Model
    encoder: DecoderConfig | None
    cache: KvCache
    computed: int
    _table: PageTable
    _has_long: bool
    _model_bytes: int | None = None

    def _declare(self, sequence: KvSequence) -> None:
        """Tells the pool of pages that are full of tokens that will stay."""
        if not sequence.declared and sequence.source is not None:
            sequence.content = sequence.source.content
        for index in range(sequence.declared, min(sequence.done, sequence.known) // PAGE_TOKENS):
            tokens = sequence.tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]
            sequence.content = self.cache.pool.register(
                sequence.pages[index], sequence.content, tokens
            )
            sequence.declared = index + 1

    def _renew(self, sequence: KvSequence) -> None:
        """Drops the cached keys of a text that has become a long one; all its tokens run again."""
        self.cache.pool.release(sequence.pages)
        sequence.long = True
        self._empty(sequence)
        self._table.write(sequence.row, sequence.pages)

    def _empty(self, sequence: KvSequence) -> None:
        """Forgets the pages of a sequence, which then runs all its tokens again."""
        sequence.pages = []
        sequence.content = NOTHING if sequence.source is not None else sequence.start
        sequence.done = sequence.declared = 0

    def _keep(self, source: EncoderInput) -> None:
        """A source that was encoded is there for others."""
        self.computed += source.places
        source.content, source.done = NOTHING, True
        for page, part in zip(source.pages, source.parts, strict=True):
            source.content = self.cache.pool.register(page, source.content, part)

    def _make_room(self, owner: KvSequence | EncoderInput, places: int) -> None:
        needed = ceil_div(places, PAGE_TOKENS)
        if needed <= len(owner.pages):
            return
        try:
            while len(owner.pages) < needed:
                owner.pages.append(self.cache.pool.take())
        finally:
            self._table.write(owner.row, owner.pages)

    def _surely_fits(self, nbytes: int) -> bool:
        """Whether there is room for a first slab; to tell how much there is takes a plan."""
        planner = self.model._runner.planner
        known = 2 * sum(value.nbytes for value in planner.constants) + _STEP_BYTES
        return known + nbytes <= min(planner.limit, BUDGET.left)

    @property
    def _room(self) -> int:
        """Bytes that the cache may still take beside weights and the arena of a long step."""
        if self._model_bytes is None:
            shapes: dict[str, Sequence[int]] = {
                spec.name: [d if isinstance(d, int) else 1 for d in spec.shape or ()]
                for spec in self.model.inputs
            }
            shapes |= {"step": [CHUNK, 3], "table": list(self._table.shape)}
            if self._has_long:
                shapes |= {"long": [CHUNK]}
            if self.encoder is not None:
                shapes |= {"cross": [CHUNK, 3], **longest_shapes(self.encoder)}
            self._model_bytes = self.model.memory(shapes).device_bytes
        limit = self.model._runner.planner.limit
        room = limit - self._model_bytes - self.cache.nbytes
        if BUDGET.limit is not None:
            missing = max(self._model_bytes - self.model._runner.room.account.nbytes, 0)
            room = min(room, int(BUDGET.left) - missing)
        return max(room, 0)
