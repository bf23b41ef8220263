"""What a source of a language model has: its graph, its tokenizer, and how it likes to be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clrt.errors import InputError, ModelError, needing
from clrt.generation.options import Sampling, eos_tokens
from clrt.importer.language.graph import decoder_graph
from clrt.importer.language.huggingface import read_folder
from clrt.ir.dtypes import DType
from clrt.ir.graph import Graph
from clrt.ops.blaming import Blaming

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CACHES = {"float32": DType.FLOAT32, "float16": DType.FLOAT16}
"""How a cache may hold its numbers."""


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model before it is on a device.

    Attributes:
        graph: As `clrt.importer.language.graph` builds it.
        context: The most tokens of a sequence.
        vocabulary: How many tokens the logits are for.
        ends: Tokens that end a text.
        sampling: What the model's files propose.
    """

    graph: Graph
    context: int
    vocabulary: int
    tokenizer: Tokenizer
    ends: frozenset[int]
    sampling: Sampling


def read_language_model(source: Path, context: int | None, cache: str) -> LanguageModel:
    """Reads a model folder.

    Args:
        context: The most tokens of a sequence; None for what the model has.
        cache: Of `CACHES`.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The model is of a family that clrt does not know.
        InputError: An option has no valid value.
    """
    if cache not in CACHES:
        raise InputError(f"cache is {cache!r}; it is one of {', '.join(CACHES)}.")
    with Blaming(f"'{source}'"):
        decoder, weights = read_folder(source, context)
        graph = decoder_graph(decoder, weights, CACHES[cache])
    most = decoder.context if context is None else context
    if not 1 <= most <= decoder.context:
        raise InputError(f"context is {context}; the model has places for 1 to {decoder.context}.")
    tokenizer = read_tokenizer(source / "tokenizer.json")
    ends = frozenset(eos_tokens(source))
    sampling = Sampling.from_folder(source)
    return LanguageModel(graph, most, decoder.vocabulary, tokenizer, ends, sampling)


def read_tokenizer(file: Path) -> Tokenizer:
    """A tokenizer from its file, without truncation and padding.

    Raises:
        ModelError: The file is missing or damaged.
    """
    with needing("Text generation"):
        from tokenizers import Tokenizer
    if not file.is_file():
        raise ModelError(f"{file} is missing; download the model's tokenizer.json into its folder.")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise ModelError(f"{file} is no tokenizer ({error}); download it again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
