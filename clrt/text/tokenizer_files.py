"""Tokenizer settings in the files beside tokenizer.json, read as transformers reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clrt.errors import ModelError
from clrt.models.huggingface.json_values import as_object, token_text
from clrt.models.huggingface.model_files import read_optional

TOKEN_KEYS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
"""Arguments of `tokenizers.AddedToken`."""

# Tokenizer classes of transformers whose options override tokenizer.json.
_BERT_LIKE = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}
_ROBERTA_LIKE = {"RobertaTokenizer"}
# Tokenizer classes of transformers that pad on the left unless a file names a side.
_PAD_LEFT = {"CodeLlamaTokenizer", "CohereTokenizer", "GemmaTokenizer", "LlamaTokenizer",
             "Siglip2Tokenizer", "XLNetTokenizer"}  # fmt: skip


def tokenizer_steps(folder: Path, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `TextConfig` fields that configure the tokenizer, by name.

    Args:
        folder: Folder that holds the tokenizer's files.
        tokenizer: Contents of tokenizer_config.json.

    Raises:
        ModelError: A file is damaged.
    """
    kind = str(tokenizer.get("tokenizer_class") or "").removesuffix("Fast")
    special = read_optional(folder / "special_tokens_map.json")
    return {
        "normalizer": _normalizer(kind, tokenizer),
        "prefix_space": bool(tokenizer.get("add_prefix_space")) if kind in _ROBERTA_LIKE else None,
        "token_types": _has_types(tokenizer),
        "added_tokens": _added_tokens(folder, tokenizer),
        "pad_token": token_text(tokenizer.get("pad_token") or special.get("pad_token")),
        "truncation_side": _side(folder, tokenizer, "truncation_side"),
        "padding_side": _side(folder, tokenizer, "padding_side"),
        "pads_left": kind in _PAD_LEFT,
        "ends": tuple(
            token_text(tokenizer.get(f"{end}_token") or special.get(f"{end}_token"))
            if tokenizer.get(f"add_{end}_token") is True
            else ""
            for end in ("bos", "eos")
        ),
    }


def _has_types(tokenizer: Mapping[str, Any]) -> bool:
    names = tokenizer.get("model_input_names")
    return not isinstance(names, list) or "token_type_ids" in names


def _side(folder: Path, tokenizer: Mapping[str, Any], key: str) -> str:
    """Returns a padding or truncation side; "" if the file has none."""
    side = tokenizer.get(key) or ""
    if side not in ("", "left", "right"):
        file = folder / "tokenizer_config.json"
        raise ModelError(f"'{file}' has {key} {side!r}; expected 'left' or 'right'.")
    return str(side)


def _normalizer(kind: str, tokenizer: Mapping[str, Any]) -> dict[str, bool | None]:
    """Returns options of BERT's normalizer that override those of tokenizer.json, by name.

    Args:
        kind: Name of the tokenizer class. The result is {} if the class is not like BERT's.
        tokenizer: Contents of tokenizer_config.json.
    """
    if kind not in _BERT_LIKE:
        return {}
    accents = tokenizer.get("strip_accents")
    return {
        "lowercase": bool(tokenizer.get("do_lower_case", True)),
        "strip_accents": None if accents is None else bool(accents),
        "handle_chinese_chars": bool(tokenizer.get("tokenize_chinese_chars", True)),
    }


def _added_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the tokens that files beside tokenizer.json add, in order of id.

    Tokens without an id come last.

    Args:
        folder: Folder with added_tokens.json, which may be missing.
        tokenizer: Contents of tokenizer_config.json.

    Returns:
        Arguments of `tokenizers.AddedToken` for each token.
    """
    declared = as_object(tokenizer.get("added_tokens_decoder"))
    plain = read_optional(folder / "added_tokens.json")
    numbered = [(str(i), as_object(token)) for i, token in declared.items()]
    numbered += [(str(i), {"content": content}) for content, i in plain.items()]
    numbered = [(i, token) for i, token in numbered if i.isdecimal() and token.get("content")]
    tokens = [
        {key: value[key] for key in TOKEN_KEYS if key in value}
        for _, value in sorted(numbered, key=lambda item: int(item[0]))
    ]
    extra = tokenizer.get("additional_special_tokens")
    names = map(token_text, extra if isinstance(extra, list) else ())
    return tokens + [{"content": name, "special": True} for name in names if name]
