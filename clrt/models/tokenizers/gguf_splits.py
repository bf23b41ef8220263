"""Pre-tokenization rules of byte-level BPE tokenizers in GGUF files.

A file only names its rule ("tokenizer.ggml.pre"). A rule is a list of regular expressions, applied
in order: each splits all pieces of the text so far, and each match becomes a piece of its own.

Source: the models' tokenizer.json files. Rule of each name: llama.cpp, src/llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clrt.util.fast_dataclass import dataclass


@dataclass(frozen=True)
class SplitRule:
    """A pre-tokenization rule, which splits text before BPE, and settings of models that use it.

    Attributes:
        patterns: Oniguruma regular expressions, applied in order.
        nfc: Whether text is normalized to NFC first.
        ignore_merges: Whether a piece that is a token stays whole.
        add_bos: Whether texts start with BOS if the file does not tell.
        byte_level: Whether tokens use the byte-level alphabet; if not, "▁" marks a space.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False
    byte_level: bool = True


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SYMBOL = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"


def _llama(digits: str) -> str:
    """Returns the regular expression of Llama 3 and its relatives.

    Args:
        digits: Regular expression of a piece of digits.
    """
    return "|".join((_CONTRACTIONS, _WORD, digits, _SYMBOLS, _SPACES))


def _cased(digits: str, suffix: str = "", upper: str = _UPPER, lower: str = _LOWER) -> str:
    """Returns a regular expression that splits words before a capital after a lowercase letter.

    Args:
        digits: Regular expression of a piece of digits.
        suffix: Regular expression that a word may end with.
        upper: Regular expression of an uppercase letter.
        lower: Regular expression of a lowercase letter.
    """
    start = r"[^\r\n\p{L}\p{N}]?"
    words = (f"{start}{upper}*{lower}+{suffix}", f"{start}{upper}+{lower}*{suffix}")
    return "|".join((*words, digits, _SYMBOLS_AND_SLASHES, _SPACES))


_LLAMA3 = SplitRule((_llama(r"\p{N}{1,3}"),))
_LLAMA3_WHOLE = replace(_LLAMA3, ignore_merges=True, add_bos=True)
_QWEN2 = SplitRule((_llama(r"\p{N}"),), nfc=True)
_ONE_DIGIT = replace(_QWEN2, nfc=False)
_GPT4O = SplitRule((_cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),))
_GPT_2 = SplitRule((_GPT2,))
_NEOX = replace(_GPT_2, nfc=True)
_STARCODER = SplitRule((r"\p{N}", _GPT2))
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
# Cased letters, except those that Unicode added after DeepSeek's pattern was written.
_DEEPSEEK_LETTERS = "[\\p{Lu}\\p{Ll}\\p{Lt}&&[^\u10d0-\u10ff\U0001d400-\U0001d7ff]]"
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_SYMBOLS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
_DEEPSEEK3 = SplitRule(
    (
        r"\p{N}{1,3}",
        _CJK,
        f"{_ASCII_SYMBOL}[A-Za-z]+|[^\\r\\n\\p{{L}}\\p{{P}}\\p{{S}}]?[\\p{{L}}\\p{{M}}]+"
        f"| ?[\\p{{P}}\\p{{S}}]+[\\r\\n]*|{_SPACES}",
    )
)
_HAN_FREE_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_HAN_FREE_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_MARKED_SPACES = SplitRule(("[^\n]+|\n+",), byte_level=False)

DEFAULT = SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))

# Rule -> its values of the metadata key "tokenizer.ggml.pre", separated by spaces.
_NAMES: Mapping[SplitRule, str] = {
    DEFAULT: "default",
    _LLAMA3: "dbrx smaug-bpe chatglm-bpe glm4",
    _LLAMA3_WHOLE: "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    _QWEN2: "qwen2 megrez kormo f2llmv2",
    _ONE_DIGIT: "stablelm2 deepseek-r1-qwen hunyuan solar-open grok-2",
    _GPT_2: (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe "
        "gigachat a.x-4.0 mellum jais trillion granite-docling exaone4"
    ),
    _NEOX: "olmo mpt modern-bert",
    _STARCODER: "starcoder refact smollm codeshell exaone minerva-7b mellum2",
    replace(_STARCODER, nfc=True): "command-r",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    replace(_GPT4O, ignore_merges=True): "granite-embed-multi-97m",
    SplitRule((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.patterns)): "tiny_aya cohere2moe",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    _MARKED_SPACES: "gemma4 granite-embed-multi-311m sarvam-moe",
    SplitRule((_cased(r"\p{N}"),), ignore_merges=True, add_bos=True): "tekken",
    SplitRule(
        (
            f"{_CONTRACTIONS}|[^\\r\\n\\p{{L}}\\p{{N}}]?[\\p{{L}}\\p{{M}}]+|\\p{{N}}"
            f"| ?[^\\s\\p{{L}}\\p{{M}}\\p{{N}}]+[\\r\\n]*|{_SPACES}",
        ),
        nfc=True,
    ): "qwen35",
    SplitRule(
        (
            "[\r\n]",
            f"\\s?{_DEEPSEEK_LETTERS}+",
            f"\\s?{_DEEPSEEK_SYMBOLS}+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        )
    ): "deepseek-llm",
    SplitRule(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}")): "deepseek-coder",
    SplitRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")): "falcon",
    SplitRule((_BLOOM,)): "bloom poro-chat gpt3-finnish",
    SplitRule((_BLOOM, r"\p{N}")): "viking",
    SplitRule(
        (
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): "bailingmoe bailingmoe2 llada-moe",
    SplitRule(
        (f"{_CONTRACTIONS}|{_WORD}|\\p{{N}}| ?[^\\s\\p{{L}}\\p{{N}}\\r\\n]+|{_SPACES}",)
    ): "seed-coder",
    SplitRule(("|".join((_WORD, r"\p{N}", _SYMBOLS, _SPACES)),)): "ufakzeka",
    SplitRule((r"\p{N}{1,3}", _llama(r"\p{N}+")), ignore_merges=True): "minicpm5",
    SplitRule(("[^\n]+|\n+", _llama(r"\p{N}"))): "laguna",
    SplitRule(
        (
            r"\p{Han}+|"
            + _cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?", _HAN_FREE_UPPER, _HAN_FREE_LOWER).replace(
                _SYMBOLS_AND_SLASHES, _SYMBOLS
            ),
        )
    ): "kimi-k2",
}
SPLIT_RULES: Mapping[str, SplitRule] = {
    name: rule for rule, names in _NAMES.items() for name in names.split()
}
