"""Page allocation of a decoder engine, and the memory left for its cache."""

from __future__ import annotations

from collections.abc import Sequence

from clrt.generation.encoder_inputs import EncoderInput, longest_shapes
from clrt.generation.kv_cache import KvCache
from clrt.generation.page_pool import NOTHING
from clrt.generation.page_table import PageTable
from clrt.generation.sequences import KvSequence
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.models.decoders.decoder import DecoderConfig
from clrt.runtime.model.model import Model
from clrt.runtime.opencl.ledger import BUDGET
from clrt.util.math import ceil_div

# Maximum number of tokens per step; the rest of a prompt waits for the next step.
CHUNK = 512
# Upper bound, in bytes, of the memory of a step beyond twice the weights; used by
# `_certainly_fits`.
_STEP_BYTES = 64 << 20


class EngineMemory:
    """Base class of `DecoderEngine` that manages KV pages and device memory.

    Attributes:
        model: Decoder on a device.
        encoder: Configuration of the encoder in the graph; None for a decoder-only model.
        cache: Keys and values of all sequences and encoder inputs.
        computed: Number of tokens and encoder positions computed so far.
    """

    model: Model
    encoder: DecoderConfig | None
    cache: KvCache
    computed: int
    _table: PageTable
    _has_long: bool
    _model_bytes: int | None = None

    def _register_pages(self, sequence: KvSequence) -> None:
        """Registers a sequence's full pages of verified tokens in the page pool, for reuse."""
        if not sequence.declared and sequence.source is not None:
            sequence.content = sequence.source.content
        for index in range(sequence.declared, min(sequence.done, sequence.known) // PAGE_TOKENS):
            tokens = sequence.tokens[index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]
            sequence.content = self.cache.pool.register(
                sequence.pages[index], sequence.content, tokens
            )
            sequence.declared = index + 1

    def _restart_as_long(self, sequence: KvSequence) -> None:
        """Drops the pages of a sequence that grew beyond `long_beyond` tokens.

        All its tokens run again, with LongRoPE's rotary frequencies for long sequences.
        """
        self.cache.pool.release(sequence.pages)
        sequence.long = True
        self._drop_pages(sequence)
        self._table.write(sequence.row, sequence.pages)

    def _drop_pages(self, sequence: KvSequence) -> None:
        """Forgets a sequence's pages without releasing these; all its tokens then run again."""
        sequence.pages = []
        sequence.content = NOTHING if sequence.source is not None else sequence.start
        sequence.done = sequence.declared = 0

    def _register_input(self, source: EncoderInput) -> None:
        """Marks an encoder input as encoded and registers its pages in the page pool for reuse."""
        self.computed += source.places
        source.content, source.done = NOTHING, True
        for page, part in zip(source.pages, source.parts, strict=True):
            source.content = self.cache.pool.register(page, source.content, part)

    def _allocate_pages(self, owner: KvSequence | EncoderInput, places: int) -> None:
        needed = ceil_div(places, PAGE_TOKENS)
        if needed <= len(owner.pages):
            return
        try:
            while len(owner.pages) < needed:
                owner.pages.append(self.cache.pool.allocate())
        finally:
            self._table.write(owner.row, owner.pages)

    def _certainly_fits(self, nbytes: int) -> bool:
        """Whether `nbytes` more certainly fit into device memory; faster than `_free_bytes`."""
        known = 2 * self.model.weight_bytes + _STEP_BYTES
        return known + nbytes <= min(self.model.max_device_bytes, BUDGET.left)

    @property
    def _free_bytes(self) -> int:
        """Bytes by which the KV cache can grow, with weights and the largest step's arena kept."""
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
        room = self.model.max_device_bytes - self._model_bytes - self.cache.nbytes
        if BUDGET.limit is not None:
            missing = max(self._model_bytes - self.model.allocated_bytes, 0)
            room = min(room, int(BUDGET.left) - missing)
        return max(room, 0)
