"""Runs decoder steps of several sequences on a device and holds their KV cache."""

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
from clrt.ir.kv_cache_sizes import PAGE_TOKENS
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model, load
from clrt.runtime.opencl.devices import DeviceInfo
from clrt.util.math import ceil_div

_PADDING_SAMPLER = TokenSampler(Sampling(), 0, seed=0)


class DecoderEngine(EngineMemory):
    """A decoder on a device with its KV cache, and its encoder if it has one.

    With an encoder, `read` registers an encoder input and `open` creates sequences that attend to
    the input. The input is encoded by `encode`, or else before the first step of its sequences. It
    stays referenced until `release` was called and its sequences are closed:

        source = engine.read(frames)
        text = engine.open(tokens, source=source)
        step = [ScheduledSequence(text, len(tokens), [sampler])]
        logits = engine.step(step, ["logits"])["logits"]
        engine.close(text)
        engine.release(source)

    Not thread-safe. A failed run empties the cache; open sequences then recompute all tokens.

    Attributes:
        cache: Keys and values of all sequences and encoder inputs.
        computed: Number of tokens and encoder positions computed so far, over all sequences.

    Args:
        graph: Decoder graph of `clrt.models.decoders.graph`, or the header of its file.
        context: Maximum number of tokens of a sequence.
        encoder: Configuration of the encoder in `graph`; None for a decoder-only model.
        long_beyond: Maximum number of tokens of a sequence that uses LongRoPE's rotary frequencies
            for short sequences. A longer sequence is recomputed with the frequencies for long
            sequences. 0 if all sequences use the same frequencies.
        sequences: Number of sequences to allocate for at first; more can be opened later.
        device: "auto", "cpu", "gpu", part of a device name, or an index; None reads CLRT_DEVICE.
        cache_dir: Folder for compiled programs; None for the default.
        memory_limit: Maximum device memory, in bytes or as a string such as "2GiB"; None for the
            device's memory.
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
        self._session = self.model.session
        rows, places = sequences, context
        if encoder is not None:
            rows, places = 2 * sequences, max(context, encoder.context)
        pages = ceil_div(places, PAGE_TOKENS)
        self._table = PageTable(self._session, rows, pages)
        self.cache = KvCache(
            *(self._session, slab.dtype, _width(slab), pages),
            rows=lambda: self._table.shape[0],
            room=lambda: self._free_bytes,
            fits=self._certainly_fits,
        )
        self._open: list[KvSequence] = []
        self._sources: dict[bytes, EncoderInput] = {}
        self._sampling: tuple[tuple[TokenSampler, ...], Mapping[str, Any]] = ((), {})
        self.computed = 0

    @property
    def sequences(self) -> tuple[KvSequence, ...]:
        """All sequences that are open: created by `open` and not yet closed."""
        return tuple(self._open)

    def begin_anew(self, kept: Sequence[KvSequence] = ()) -> None:
        """Resets the engine to its initial state, except for the open sequences `kept`.

        Kept sequences recompute all tokens; all other sequences are closed. Works after an
        exception at any point.
        """
        self._open = list(kept)
        sources = dict.fromkeys(s.source for s in kept if s.source is not None)
        for source in sources:
            source.users = sum(s.source is source for s in kept)
        self._sources = {source.key: source for source in sources}
        self._table.keep({s.row for s in kept} | {s.row for s in sources})
        self.reset()

    def reset(self) -> None:
        """Empties the cache; open sequences stay open and recompute all tokens."""
        self.cache.reset()
        self._sampling = (), {}
        for sequence in self._open:
            self._drop_pages(sequence)
        for source in self._sources.values():
            source.forget()

    def read(self, given: Given) -> EncoderInput:
        """Registers an encoder input and adds a reference to it.

        The input counts as encoded if its keys and values are in the cache.

        Args:
            given: Encoder input: tokens, or frames float32 `[frames, features]`.

        Raises:
            InputError: The model has no encoder, or the input has a wrong form or is too long.
        """
        array, places, key = source_of(given, self.encoder)
        source = self._sources.get(key)
        if source is None:
            source = EncoderInput(array, places, key, self._table.take_row())
            self._sources[key] = source
            source.pages, source.content = self.cache.pool.match_contents(source.parts)
            source.done = len(source.pages) == len(source.parts)
            self._table.write(source.row, source.pages)
        source.users += 1
        return source

    def release(self, source: EncoderInput) -> None:
        """Drops one reference to an encoder input; its pages stay cached until evicted."""
        if self._sources.get(source.key) is not source:  # the engine was reset
            return
        source.users -= 1
        if not source.users:
            del self._sources[source.key]
            self.cache.pool.release(source.pages)
            self._table.give_back(source.row)

    def encode(self, sources: Sequence[EncoderInput]) -> None:
        """Encodes the encoder inputs that are not yet encoded, in batches of similar length.

        Raises:
            OutOfMemoryError: The cache cannot grow; earlier batches stay encoded.
            ClrtError: The run failed, and the cache is empty.
        """
        for batch in batches_of([s for s in dict.fromkeys(sources) if not s.done]):
            for source in batch:
                self._allocate_pages(source, source.places)
            self._run(self._feeds((), (), batch), [])
            for source in batch:
                self._register_input(source)

    def states(self, given: Sequence[Given]) -> list[Array]:
        """Computes the encoder's hidden states of inputs, without caching keys and values.

        Args:
            given: Encoder inputs: tokens, or frames float32 `[frames, features]`.

        Returns:
            float32 `[positions, hidden]` of each input.

        Raises:
            InputError: The model has no encoder, or an input has a wrong form or is too long.
            ClrtError: The run failed, and the cache is empty.
        """
        sources = [EncoderInput(*source_of(one, self.encoder), NOWHERE) for one in given]
        states_of: dict[EncoderInput, Array] = {}
        for batch in batches_of(sources):
            states = self._run(self._feeds((), (), batch), ["states"])["states"]
            states_of |= {source: states[k, : source.places] for k, source in enumerate(batch)}
        return [states_of[source] for source in sources]

    def open(
        self,
        tokens: Sequence[int],
        anew: bool = False,
        source: EncoderInput | None = None,
        length: int | None = None,
    ) -> KvSequence:
        """Creates a sequence of `tokens`; a prefix found in the cache counts as computed.

        Args:
            tokens: Tokens of the sequence so far.
            anew: Whether to recompute all tokens, ignoring cached pages.
            source: Encoder input that the sequence attends to; None for a decoder-only model.
            length: Expected final number of tokens, which selects the rotary frequencies; None for
                the number of `tokens`.

        Raises:
            InputError: There are more tokens than the context.
        """
        check_length(tokens, self.context)
        sequence = KvSequence(list(tokens), self._table.take_row(), source)
        sequence.long_beyond = self._long_beyond
        sequence.long = 0 < self._long_beyond < max(len(tokens), length or 0)
        sequence.content = sequence.start if source is None else NOTHING
        self._open.append(sequence)
        if source is not None:
            source.users += 1
        # No prefix is cached for an encoder input that has not been encoded yet.
        if not anew and (source is None or source.done):
            # The last token is always run, as its logits are needed.
            sequence.pages, sequence.content = self.cache.pool.match_prefix(
                sequence.tokens[:-1], sequence.start
            )
            sequence.declared = len(sequence.pages)
            sequence.done = sequence.declared * PAGE_TOKENS
            self._table.write(sequence.row, sequence.pages)
        return sequence

    def close(self, sequence: KvSequence) -> None:
        """Ends a sequence; its full pages stay cached until evicted. Ignores closed sequences."""
        if sequence not in self._open:  # the engine was reset
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
            parts: Sequences to run, with the number of tokens and the samplers of each.
            outputs: Names of the graph outputs to return.

        Returns:
            Each output by name, with one row per sampler of `parts`, in order; {} if there is no
            sampler.

        Raises:
            OutOfMemoryError: The cache cannot grow; nothing was run.
            ClrtError: The run failed, and the cache is empty.
        """
        for part in parts:
            if part.sequence.is_outgrown:
                self._restart_as_long(part.sequence)
        sources = [s for p in parts if (s := p.sequence.source) is not None and not s.done]
        if sources:
            self.encode(sources)
        for part in parts:
            self._allocate_pages(part.sequence, part.sequence.done + part.count)
        samplers = tuple(sampler for part in parts for sampler in part.samplers)
        results = self._run(self._feeds(parts, samplers), list(outputs) if samplers else [])
        for part in parts:
            self.computed += part.count
            part.sequence.done += part.count
            self._register_pages(part.sequence)
        return {name: rows[: len(samplers)] for name, rows in results.items()}

    def commit_drafts(self, sequence: KvSequence, tokens: Sequence[int]) -> int:
        """Replaces the draft tokens of a sequence by the verified `tokens`.

        Keys and values of the accepted draft tokens are kept.

        Returns:
            Number of draft tokens accepted: leading draft tokens that equal the first `tokens`.
        """
        accepted = sequence.commit(tokens)
        self._register_pages(sequence)
        return accepted

    def _feeds(
        self,
        parts: Sequence[ScheduledSequence],
        samplers: tuple[TokenSampler, ...],
        batch: Sequence[EncoderInput] = (),
    ) -> dict[str, Any]:
        """Returns the graph inputs of a run by name, except the cache slabs.

        Args:
            parts: Sequences to run; empty if only encoder inputs run.
            samplers: Samplers of all parts, in order.
            batch: Encoder inputs to encode.
        """
        step, cross, wanted = step_inputs(parts)
        feeds = {"step": step, "rows": filled(wanted), "table": self._table.on_device()}
        if self.encoder is not None:
            feeds |= {"cross": cross, **encoder_inputs(batch, self.encoder)}
        if self._has_long:
            feeds |= {"long": long_input(parts, len(step))}
        return {**feeds, **self._sampler_inputs(samplers, parts)}

    def _run(self, feeds: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Array]:
        """Runs the model on the cache; resets the engine if an error may have damaged the cache."""
        try:
            return self.model.run(feeds, outputs, state=self.cache.state())
        except BaseException as error:
            # Running out of arena memory happens before any launch, so the cache stays valid.
            if not isinstance(error, OutOfMemoryError) or self.cache.lost:
                self.reset()
            raise

    def close_model(self) -> None:
        """Frees the device memory of model and cache; the engine cannot be used afterwards."""
        self.cache.release()
        self._table.release()
        self._sampling = (), {}
        self.model.close()

    def _sampler_inputs(
        self, samplers: tuple[TokenSampler, ...], parts: Sequence[ScheduledSequence]
    ) -> Mapping[str, Any]:
        """Returns the inputs of the op SampleTokens (chooses next tokens) on the device, by name.

        Reuses the tensors of the last step if the samplers are equal and do not change by step.

        Args:
            samplers: Samplers of all parts, in order.
            parts: Sequences of the step.
        """
        if samplers and samplers == self._sampling[0] and not any(s.changes for s in samplers):
            return self._sampling[1]
        texts = [text for part in parts for text in texts_of(part)]
        # Pads the rows to the bucket size.
        padding = bucket_size(len(samplers)) - len(samplers)
        inputs = sampler_inputs(
            [*samplers, *[_PADDING_SAMPLER] * padding], [*texts, *[()] * padding], self._vocabulary
        )
        tensors = {n: self._session.tensor_of(a, DType.of(a.dtype)) for n, a in inputs.items()}
        self._sampling = samplers, tensors
        return tensors


def check_length(tokens: Sequence[int], context: int) -> None:
    """Checks that a prompt fits into the context.

    Raises:
        InputError: The prompt has more than `context` tokens.
    """
    if len(tokens) > context:
        raise InputError(
            f"The prompt has {len(tokens)} tokens, and the context {context}; shorten it, or "
            "choose a larger context."
        )


def _width(matrix: TensorSpec) -> int:
    """Returns the number of columns of a matrix."""
    assert matrix.shape is not None and isinstance(matrix.shape[1], int)
    return matrix.shape[1]
