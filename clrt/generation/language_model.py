"""What a source of a language model has: its graph, its tokenizer, and how it likes to be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clrt.container.gguf import find_gguf, read_gguf
from clrt.errors import InputError, ModelError, needing
from clrt.generation.options import Sampling, eos_tokens
from clrt.importer.language.decoder import Decoder
from clrt.importer.language.gguf import read_gguf_decoder
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
        template: The chat template, where it came with the model's tokenizer.
    """

    graph: Graph
    context: int
    vocabulary: int
    tokenizer: Tokenizer
    ends: frozenset[int]
    sampling: Sampling
    template: str | None = None


def read_language_model(source: Path, context: int | None, cache: str) -> LanguageModel:
    """Reads a model.

    Args:
        source: A Hugging Face folder, a GGUF file, or a folder with one GGUF model.
        context: The most tokens of a sequence; None for what the model has.
        cache: Of `CACHES`.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The model is of a family that clrt does not know.
        InputError: An option has no valid value, or a folder holds several models.
    """
    if cache not in CACHES:
        raise InputError(f"cache is {cache!r}; it is one of {', '.join(CACHES)}.")
    if context is not None and context < 1:
        raise InputError(f"context is {context}; it is at least 1.")
    file = _gguf_file(source)
    if file is not None:
        return _read_gguf_model(file, context, CACHES[cache])
    with Blaming(f"'{source}'"):
        decoder, weights = read_folder(source, context)
        graph = decoder_graph(decoder, weights, CACHES[cache])
    most = _checked_context(decoder, context)
    tokenizer = read_tokenizer(source / "tokenizer.json")
    ends = frozenset(eos_tokens(source))
    sampling = Sampling.from_folder(source)
    return LanguageModel(graph, most, decoder.vocabulary, tokenizer, ends, sampling)


def _gguf_file(source: Path) -> Path | None:
    """The GGUF file that a source is or holds; None where it is a folder of another kind.

    Raises:
        InputError: It holds several models.
    """
    if not source.is_dir():
        return source if source.is_file() or source.suffix == ".gguf" else None
    found = [] if any(source.glob("*.safetensors")) else find_gguf(source)
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:8])
        raise InputError(f"'{source}' holds {len(found)} GGUF models ({names}); name one of them.")
    return found[0] if found else None


def _read_gguf_model(path: Path, context: int | None, cache: DType) -> LanguageModel:
    with needing("Text generation"):
        from clrt.text.gguf_tokenizer import read_tokenizer as read_gguf_tokenizer
    file = read_gguf(path)
    with Blaming(f"'{path}'"):
        decoder, weights = read_gguf_decoder(file, context)
        graph = decoder_graph(decoder, weights, cache)
        weights.check_all_read()
    most = _checked_context(decoder, context)
    found = read_gguf_tokenizer(file.metadata)
    if (tokens := found.library.get_vocab_size()) > decoder.vocabulary:
        raise ModelError(
            f"{path} has {tokens} tokens and embeddings of {decoder.vocabulary}; download it again."
        )
    sampling = Sampling.from_gguf(file.metadata)
    return LanguageModel(
        graph=graph,
        context=most,
        vocabulary=decoder.vocabulary,
        tokenizer=found.library,
        ends=found.end_ids,
        sampling=sampling,
        template=found.chat_template,
    )


def _checked_context(decoder: Decoder, context: int | None) -> int:
    """The most tokens of a sequence.

    Raises:
        InputError: More are asked for than the decoder has places.
    """
    most = decoder.context if context is None else context
    if most > decoder.context:
        raise InputError(f"context is {context}; the model has places for 1 to {decoder.context}.")
    return most


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
