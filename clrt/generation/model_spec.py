"""A language model before it is on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model before it is on a device.

    Attributes:
        name: What messages call it.
        graph: As `clrt.models.decoders.graph` builds it, or the header of a compiled file of it.
        decoder: What the graph was built from.
        fingerprint: Tells models apart whose caches differ.
        context: The most tokens of a sequence.
        vocabulary: How many tokens the logits are for.
        ends: Tokens that end a text.
        sampling: What the model's files propose.
        template: Makes its chat template; None without one.
        start: With an encoder, which reads the prompt: the tokens that a text begins with.
        refusal: Why texts cannot be generated as the model's files ask; "" if they can.
    """

    name: str
    graph: Graph | SafetensorsHeader
    decoder: DecoderConfig
    fingerprint: str
    context: int
    vocabulary: int
    tokenizer: Tokenizer
    ends: frozenset[int]
    sampling: Sampling
    template: Callable[[], ChatTemplate] | None = None
    start: tuple[int, ...] = ()
    refusal: str = ""

    def begin(self, tokens: Sequence[int]) -> tuple[Sequence[int], Array | None]:
        """What the decoder begins with for a prompt, and the source that the encoder reads.

        Raises:
            InputError: The prompt is too long.
        """
        if self.decoder.encoder is None:
            check_length(tokens, self.context)
            return tokens, None
        return self.start, source_of(tokens, self.decoder.encoder).given

    def check_decoder(self, what: str) -> None:
        """Checks that there is no encoder.

        Args:
            what: Needs that.

        Raises:
            UnsupportedError: There is one.
        """
        if self.decoder.encoder is not None:
            raise UnsupportedError(
                f"{what} is for models that continue a text; '{self.name}' has an encoder, which "
                "reads the prompt."
            )

    @cached_property
    def chat_template(self) -> ChatTemplate:
        """Its chat template.

        Raises:
            InputError: It has none.
            ModelError: The template is none.
            UnsupportedError: Jinja is not installed.
        """
        if self.template is None:
            raise InputError(
                f"The model '{self.name}' has no chat template; give the prompt as text."
            )
        return self.template()

    @cached_property
    def call_format(self) -> CallFormat | None:
        """How it writes calls of tools; None where that is not known.

        Raises:
            ModelError, UnsupportedError: As `chat_template`.
        """
        return None if self.template is None else find_format(self.chat_template)
