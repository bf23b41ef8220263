"""A language model as read from its files, before it is loaded on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from clrt.errors import InputError, UnsupportedError
from clrt.formats.safetensors import SafetensorsHeader
from clrt.generation.call_formats import find_format
from clrt.generation.chat_template import ChatTemplate
from clrt.generation.encoder_inputs import source_of
from clrt.generation.engine import check_length
from clrt.generation.options import Sampling
from clrt.generation.tool_calls import CallFormat
from clrt.ir.graph import Graph
from clrt.ir.op import Array
from clrt.models.decoders.decoder import DecoderConfig
from clrt.util.fast_dataclass import dataclass

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model as read from its files, before it is loaded on a device.

    Attributes:
        name: Name of the model in messages.
        graph: Graph built by `clrt.models.decoders.graph`, the recipe of one, or the header of its
            compiled file.
        decoder: Configuration that the graph was built from.
        fingerprint: Hash that differs between models whose KV caches differ.
        context: Maximum number of tokens of a sequence.
        vocabulary: Number of logits.
        load_tokenizer: Returns the tokenizer, without truncation and padding.
        ends: Token ids that end a text.
        sampling: Sampling options proposed by the model's files.
        template: Creates the chat template; None if the model has none.
        start: Tokens that the decoder starts with if the model has an encoder, whose input is then
            the prompt; () for a decoder-only model.
        refusal: Why clrt does not support the sampling options of the model's files, and the
            remedy; "" if clrt supports them.
    """

    name: str
    graph: Graph | SafetensorsHeader
    decoder: DecoderConfig
    fingerprint: str
    context: int
    vocabulary: int
    load_tokenizer: Callable[[], Tokenizer]
    ends: frozenset[int]
    sampling: Sampling
    template: Callable[[], ChatTemplate] | None = None
    start: tuple[int, ...] = ()
    refusal: str = ""

    def begin(self, tokens: Sequence[int]) -> tuple[Sequence[int], Array | None]:
        """Splits a prompt into decoder and encoder input.

        Returns:
            (tokens that the decoder begins with, encoder input). A decoder-only model has
            (`tokens`, None). A model with an encoder has (`start`, `tokens` as an int32 array).

        Raises:
            InputError: The prompt is too long.
        """
        if self.decoder.encoder is None:
            check_length(tokens, self.context)
            return tokens, None
        return self.start, source_of(tokens, self.decoder.encoder).given

    def check_decoder(self, what: str) -> None:
        """Checks that the model is decoder-only.

        Args:
            what: Name of the method that needs a decoder-only model, for the error message.

        Raises:
            UnsupportedError: The model has an encoder.
        """
        if self.decoder.encoder is not None:
            raise UnsupportedError(
                f"{what} works only for models without an encoder; '{self.name}' has one."
            )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer, without truncation and padding."""
        return self.load_tokenizer()

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Chat template of the model.

        Raises:
            InputError: The model has no chat template.
            ModelError: The template is invalid.
            UnsupportedError: Jinja is not installed.
        """
        if self.template is None:
            raise InputError(
                f"The model '{self.name}' has no chat template; give the prompt as text."
            )
        return self.template()

    @cached_property
    def call_format(self) -> CallFormat | None:
        """Format in which the model writes tool calls; None if unknown or without chat template.

        Raises:
            ModelError: The chat template is invalid.
            UnsupportedError: Jinja is not installed.
        """
        return None if self.template is None else find_format(self.chat_template)
