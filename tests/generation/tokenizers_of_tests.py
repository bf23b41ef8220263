"""Small tokenizers of each kind, trained on a few sentences."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

TEXTS = [
    "The quick brown fox doesn't jump over the lazy dog.",
    "Größe, naïve café; 日本語の文章です。 Здравствуй, мир!",
    "def f(x):\n    return {'a': x ** 2}  # 🎉👩‍🚀🇩🇪",
    "An answer: do not panic , it 's fine ! She 's here .",
    '{"name": "Ada", "age": 36, "tags": ["x", "y"]}',
]
SPECIAL = ["<s>", "</s>", "<|im_end|>"]


@cache
def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_tokens([AddedToken("<tool call>"), AddedToken("größer→")])
    return made


@cache
def byte_fallback(strips: bool = True) -> Tokenizer:
    """As Llama 2 and Mistral; without stripping as Gemma."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁")] * strips + spaces)
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(chain + [decoders.Strip(" ", 1, 0)] * strips)
    trainer = trainers.BpeTrainer(
        vocab_size=160, special_tokens=["<unk>", *SPECIAL], show_progress=False
    )
    made.train_from_iterator(TEXTS[:1] + TEXTS[3:], trainer)
    state = json.loads(made.to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary |= {f"<0x{b:02X}>": len(vocabulary) + b for b in range(256)}
    return Tokenizer.from_str(json.dumps(state))


@cache
def metaspace() -> Tokenizer:
    """As T5."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


@cache
def word_piece() -> Tokenizer:
    """As BERT."""
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]", *SPECIAL], show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


@cache
def word_ends() -> Tokenizer:
    """As OpenAI's first GPT."""
    made = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200,
        special_tokens=["<unk>", *SPECIAL],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


@cache
def bare() -> Tokenizer:
    """Without a decoder."""
    made = Tokenizer.from_str(word_piece().to_str())
    made.decoder = None  # type: ignore[assignment]
    return made


KINDS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "gemma": lambda: byte_fallback(False),
    "metaspace": metaspace,
    "word_piece": word_piece,
    "word_ends": word_ends,
    "bare": bare,
}
