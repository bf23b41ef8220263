"""Runs tokens of several sequences through a decoder on a device, and holds their cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clrt.errors import InputError, OutOfMemoryError
from clrt.formats.safetensors import SafetensorsHeader
from clrt.generation.encoder_inputs import (
    NOWHERE,
    EncoderInput,
    Given,
    batches_of,
    encoder_inputs,
    source_of,
)
from clrt.generation.engine_memory import CHUNK as CHUNK
from clrt.generation.engine_memory import EngineMemory
from clrt.generation.kv_cache import KvCache
from clrt.generation.options import Sampling
from clrt.generation.page_pool import NOTHING
from clrt.generation.page_table import PageTable
from clrt.generation.sampler import TokenSampler, sampler_inputs
from clrt.generation.sequences import (
    KvSequence,
    ScheduledSequence,
    filled,
    long_input,
    step_inputs,
    texts_of,
)
from clrt.generation.speculation_policy import bucket_size
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.ops.attention.page_layout import PAGE_TOKENS
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.math import ceil_div

_IDLE = TokenSampler(Sampling(), 0, seed=0)


class DecoderEngine(EngineMemory):
    """A decoder on a device, with its cache; perhaps with an encoder.

    A model with an encoder reads a source: `read` gives it a place in the cache, `open` begins
    texts that see it, and it is encoded before the first of them runs, or by `encode`. It is kept
    until `release`, and for each text until `close`:

        source = engine.read(frames)
        text = engine.open(tokens, source=source)
        step = [ScheduledSequence(text, len(tokens), [sampler])]
        logits = engine.step(step, ["logits"])["logits"]
        engine.close(text)
        engine.release(source)

    It is for one thread at a time. After a run that failed the cache begins anew, and sequences run
    their tokens again.

    Attributes:
        cache: Keys and values of all sequences, and of sources.
        computed: Tokens that were run so far, of all sequences, and places of sources.

    Args:
        graph: As `clrt.models.decoders.graph` builds it, or the header of its file.
        context: The most tokens of a sequence.
        encoder: What the graph has besides the decoder.
        long_beyond: Maximum number of tokens of a text that uses the rotary frequencies of short
            texts; 0 if all texts use the same. Longer ones have all their tokens run anew.
        sequences: For how many sequences at a time there is room at first.
        device, cache_dir, memory_limit: As in `clrt.load`.
    """

    def __init__(
        self,
        graph: Graph | SafetensorsHeader,
        context: int,
        *,
        encoder: DecoderConfig | None = None,
        long_beyond: int = 0,
        sequences: int = 16,
        device: str | int | DeviceInfo | None = None,
        cache_dir: str | Path | None = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.context, self.encoder = context, encoder
        where: dict[str, Any] = dict(device=device, cache_dir=cache_dir, memory_limit=memory_limit)
        self.model: Model = load(graph, **where)
        slab = next(spec for spec in self.model.inputs if spec.name == "slab0")
        logits = next(spec for spec in self.model.outputs if spec.name == "logits")
        self._vocabulary = _width(logits)
        self._has_long = any(spec.name == "long" for spec in self.model.inputs)
        self._long_beyond = long_beyond if self._has_long else 0
        self._session = self.model._session
        rows, places = sequences, context
        if encoder is not None:
            rows, places = 2 * sequences, max(context, encoder.context)
        pages = ceil_div(places, PAGE_TOKENS)
        self._table = PageTable(self._session, rows, pages)
        self.cache = KvCache(
            *(self._session, slab.dtype, _width(slab), pages),
            rows=lambda: self._table.shape[0],
            room=lambda: self._room,
            fits=self._surely_fits,
        )
        self._open: list[KvSequence] = []
        self._sources: dict[bytes, EncoderInput] = {}
        self._sampling: tuple[tuple[TokenSampler, ...], Mapping[str, Any]] = ((), {})
        self.computed = 0

    @property
    def sequences(self) -> tuple[KvSequence, ...]:
        """The open sequences."""
        return tuple(self._open)

    def begin_anew(self, kept: Sequence[KvSequence] = ()) -> None:
        """Begins as at first, but for some open sequences, which run their tokens again.

        That is whole after an exception at any place; sequences that are not kept are closed.
        """
        self._open = list(kept)
        sources = dict.fromkeys(s.source for s in kept if s.source is not None)
        for source in sources:
            source.users = sum(s.source is source for s in kept)
        self._sources = {source.key: source for source in sources}
        self._table.keep({s.row for s in kept} | {s.row for s in sources})
        self.reset()

    def reset(self) -> None:
        """Begins with an empty cache: what sequences have run they run again."""
        self.cache.reset()
        self._sampling = (), {}
        for sequence in self._open:
            self._empty(sequence)
        for source in self._sources.values():
            source.forget()

    def read(self, given: Given) -> EncoderInput:
        """A source for texts; what the cache holds of it counts as encoded.

        Args:
            given: Tokens, or frames float32 `[frames, features]`.

        Raises:
            InputError: The encoder does not read that, or not so much, or there is none.
        """
        array, places, key = source_of(given, self.encoder)
        source = self._sources.get(key)
        if source is None:
            source = EncoderInput(array, places, key, self._table.take_row())
            self._sources[key] = source
            source.pages, source.content = self.cache.pool.held(source.parts)
            source.done = len(source.pages) == len(source.parts)
            self._table.write(source.row, source.pages)
        source.users += 1
        return source

    def release(self, source: EncoderInput) -> None:
        """Ends a use of a source; its pages serve others until their room is needed."""
        if self._sources.get(source.key) is not source:  # the engine has begun anew
            return
        source.users -= 1
        if not source.users:
            del self._sources[source.key]
            self.cache.pool.release(source.pages)
            self._table.give_back(source.row)

    def encode(self, sources: Sequence[EncoderInput]) -> None:
        """Encodes those of the sources that are not yet, of about one length together.

        Raises:
            OutOfMemoryError: The cache cannot grow; what was encoded before stays.
            ClrtError: The run failed, and the cache is empty.
        """
        for batch in batches_of([s for s in dict.fromkeys(sources) if not s.done]):
            for source in batch:
                self._make_room(source, source.places)
            self._run(self._feeds((), (), batch), [])
            for source in batch:
                self._keep(source)

    def states(self, given: Sequence[Given]) -> list[Array]:
        """The states that the encoder makes of sources; the cache has nothing of them.

        Args:
            given: As `read`.

        Returns:
            float32 `[places, hidden]` of each.

        Raises:
            InputError: As `read`.
            ClrtError: The run failed, and the cache is empty.
        """
        sources = [EncoderInput(*source_of(one, self.encoder), NOWHERE) for one in given]
        found: dict[EncoderInput, Array] = {}
        for batch in batches_of(sources):
            made = self._run(self._feeds((), (), batch), ["states"])["states"]
            found |= {source: made[k, : source.places] for k, source in enumerate(batch)}
        return [found[source] for source in sources]

    def open(
        self,
        tokens: Sequence[int],
        anew: bool = False,
        source: EncoderInput | None = None,
        length: int | None = None,
    ) -> KvSequence:
        """A sequence of these tokens; what the cache holds of their beginning counts as run.

        Args:
            anew: Whether all of them are run in any case.
            source: What it sees, of a model with an encoder.
            length: Tokens of the text that they begin; None if they are all of it.

        Raises:
            InputError: They are more than the context.
        """
        check_length(tokens, self.context)
        made = KvSequence(list(tokens), self._table.take_row(), source)
        made.long_beyond = self._long_beyond
        made.long = 0 < self._long_beyond < max(len(tokens), length or 0)
        made.content = made.start if source is None else NOTHING
        self._open.append(made)
        if source is not None:
            source.users += 1
        # Of a source that is not encoded there can be no texts.
        if not anew and (source is None or source.done):
            # The last token is run anyway: its logits are wanted.
            made.pages, made.content = self.cache.pool.match_prefix(made.tokens[:-1], made.start)
            made.declared = len(made.pages)
            made.done = made.declared * PAGE_TOKENS
            self._table.write(made.row, made.pages)
        return made

    def close(self, sequence: KvSequence) -> None:
        """Ends a sequence; its full pages serve others until their room is needed."""
        if sequence not in self._open:  # the engine has begun anew
            return
        self.cache.pool.release(sequence.pages)
        sequence.pages = []
        self._open.remove(sequence)
        self._table.give_back(sequence.row)
        if sequence.source is not None:
            self.release(sequence.source)

    def step(
        self, parts: Sequence[ScheduledSequence], outputs: Sequence[str] = ("token", "logprob")
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
            if part.sequence.is_outgrown:
                self._renew(part.sequence)
        sources = [s for p in parts if (s := p.sequence.source) is not None and not s.done]
        if sources:
            self.encode(sources)
        for part in parts:
            self._make_room(part.sequence, part.sequence.done + part.count)
        samplers = tuple(sampler for part in parts for sampler in part.samplers)
        found = self._run(self._feeds(parts, samplers), list(outputs) if samplers else [])
        for part in parts:
            self.computed += part.count
            part.sequence.done += part.count
            self._declare(part.sequence)
        return {name: rows[: len(samplers)] for name, rows in found.items()}

    def settle(self, sequence: KvSequence, tokens: Sequence[int]) -> int:
        """Puts tokens in the place of the guesses. Where they begin alike they need no other run.

        Returns:
            How many guesses were right.
        """
        right = sequence.commit(tokens)
        self._declare(sequence)
        return right

    def _feeds(
        self,
        parts: Sequence[ScheduledSequence],
        samplers: tuple[TokenSampler, ...],
        batch: Sequence[EncoderInput] = (),
    ) -> dict[str, Any]:
        """The inputs of a run, but for the slabs."""
        step, cross, wanted = step_inputs(parts)
        feeds = {"step": step, "rows": filled(wanted), "table": self._table.on_device()}
        if self.encoder is not None:
            feeds |= {"cross": cross, **encoder_inputs(batch, self.encoder)}
        if self._has_long:
            feeds |= {"long": long_input(parts, len(step))}
        return {**feeds, **self._sampler_inputs(samplers, parts)}

    def _run(self, feeds: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Array]:
        try:
            return self.model.run(feeds, outputs, state=self.cache.state())
        except BaseException as error:
            # The memory of an arena is taken before anything is run.
            if not isinstance(error, OutOfMemoryError) or self.cache.lost:
                self.reset()
            raise

    def close_model(self) -> None:
        """Frees the device's memory; nothing can be run afterwards."""
        self.cache.release()
        self._table.release()
        self._sampling = (), {}
        self.model.close()

    def _sampler_inputs(
        self, samplers: tuple[TokenSampler, ...], parts: Sequence[ScheduledSequence]
    ) -> Mapping[str, Any]:
        """What the op SampleTokens is told; it stays on the device while it is the same."""
        if samplers and samplers == self._sampling[0] and not any(s.changes for s in samplers):
            return self._sampling[1]
        texts = [text for part in parts for text in texts_of(part)]
        # Rows that nobody asked for make their number a round one, too.
        more = bucket_size(len(samplers)) - len(samplers)
        inputs = sampler_inputs(
            [*samplers, *[_IDLE] * more], [*texts, *[()] * more], self._vocabulary
        )
        there = {n: self._session.tensor_of(a, DType.of(a.dtype)) for n, a in inputs.items()}
        self._sampling = samplers, there
        return there


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
