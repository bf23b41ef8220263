"""Reads what a sentence-transformers folder says of tokens, pooling and normalisation."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from clrt.container.compiled import SUFFIX, read_extras
from clrt.errors import InputError, ModelError, UnsupportedError

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len", "sum")

# In the order in which sentence-transformers concatenates them.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ALIASES = {"mean_sqrt_len_tokens": "mean_sqrt_len"}

# The first padding_idx + 1 rows of their position table belong to no token.
_OFFSET_POSITIONS = {
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
}
# Tokenizers of transformers whose options override tokenizer.json.
_BERT_LIKE = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"}
_ROBERTA_LIKE = {"RobertaTokenizer"}
# Arguments of the tokenizers library's AddedToken.
_TOKEN_KEYS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_SENTENCE_CONFIGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True)
class EncoderConfig:
    """How sentences become vectors.

    Attributes:
        folder: Holds tokenizer.json.
        source: The ONNX file or folder of the transformer.
        modes: Pooling modes; several are concatenated.
        include_prompt: Whether the prompt's tokens are pooled.
        normalize: Whether vectors always get unit length.
        max_length: Longest sequence in tokens, special ones included; None means no limit.
        positions: Rows of the position table; None where it sets no limit.
        lower_case: Whether text is lowercased before the tokenizer's own steps.
        prompt: Prepended where the caller names none.
        pad_token: The tokenizer's padding token, "" where no file names it.
        truncation_side: "right" or "left"; "" where only tokenizer.json may say.
        hidden: Size of a token's embedding, where config.json gives it.
        truncate_dim: How many numbers of each vector are kept where the caller does not say.
        normalizer: Options of BERT's normalizer; they override those of tokenizer.json.
        prefix_space: Whether byte-level tokens start with a space; overrides tokenizer.json.
        added_tokens: Tokens that tokenizer.json may lack, in the order of their ids.
        tokenizer: The text of tokenizer.json where it lies in a compiled model.
    """

    folder: Path
    source: Path
    modes: tuple[str, ...]
    include_prompt: bool = True
    normalize: bool = False
    max_length: int | None = None
    positions: int | None = None
    lower_case: bool = False
    prompt: str = ""
    pad_token: str = ""
    truncation_side: str = ""
    hidden: int | None = None
    truncate_dim: int | None = None
    normalizer: Mapping[str, bool | None] = field(default_factory=dict)
    prefix_space: bool | None = None
    added_tokens: Sequence[Mapping[str, Any]] = ()
    tokenizer: str | None = None

    def for_compiled(self, tokenizer: str) -> dict[str, Any]:
        """The part that a compiled model stores, as JSON values.

        Args:
            tokenizer: The text of tokenizer.json.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        del values["folder"], values["source"]
        return {**values, "tokenizer": tokenizer}


def read_config(path: Path, pooling: str | None = None) -> EncoderConfig:
    """The configuration of an ONNX file, a model folder or a compiled model.

    For an ONNX file the folder is the one that holds tokenizer.json: its own or the one above.

    Args:
        path: An existing ONNX file or folder.
        pooling: A mode that replaces the one the folder names.

    Raises:
        InputError: `pooling` is no pooling mode.
        ModelError: A file is missing or damaged.
        UnsupportedError: The folder asks for a module or pooling mode that clrt lacks.
    """
    asked = None if pooling is None else (_asked_mode(pooling),)
    if path.suffix == SUFFIX:
        config = _read_compiled(path)
        return replace(config, modes=asked) if asked else config
    root = path if path.is_dir() else _folder_of(path)
    modules = _Modules.read(root)
    folder = root / modules.transformer
    tokenizer = _read_json(folder / "tokenizer_config.json")
    model = _read_json(folder / "config.json")
    special = _read_json(folder / "special_tokens_map.json")
    sentence = _first(folder, _SENTENCE_CONFIGS)
    _check_arguments(folder, sentence)
    arguments = sentence.get("tokenizer_args") or sentence.get("processor_kwargs")
    limits = (sentence.get("max_seq_length"), _object(arguments).get("model_max_length"),
              tokenizer.get("model_max_length"))  # fmt: skip
    pooled = {} if modules.pooling is None else _read_json(root / modules.pooling / "config.json")
    positions = _positions(model)
    whole_file = root / "config_sentence_transformers.json"
    whole = _read_json(whole_file)
    kind = str(tokenizer.get("tokenizer_class") or "").removesuffix("Fast")
    return EncoderConfig(
        folder=folder,
        source=path if path.is_file() else folder,
        modes=asked or _modes(root, modules, pooled),
        truncate_dim=_number(whole.get("truncate_dim")),
        normalizer=_normalizer(kind, tokenizer),
        prefix_space=bool(tokenizer.get("add_prefix_space")) if kind in _ROBERTA_LIKE else None,
        added_tokens=_added_tokens(folder, tokenizer),
        include_prompt=bool(pooled.get("include_prompt", True)),
        normalize=modules.normalize,
        max_length=_smallest(positions, next(filter(None, map(_number, limits)), None)),
        positions=positions,
        lower_case=bool(sentence.get("do_lower_case", False)),
        prompt=_prompt(whole_file, whole),
        pad_token=_token(tokenizer.get("pad_token") or special.get("pad_token")),
        truncation_side=_side(folder / "tokenizer_config.json", tokenizer),
        hidden=_number(model.get("hidden_size") or model.get("dim")),
    )


def _read_compiled(path: Path) -> EncoderConfig:
    settings = read_extras(path).get("encoder")
    if settings is None:
        raise ModelError(
            f"'{path}' holds no tokenizer; convert the model's folder, with its tokenizer.json, "
            "to get a sentence encoder."
        )
    if not isinstance(settings, dict) or settings.keys() != _SETTINGS.keys():
        raise ModelError(f"'{path}' was converted by another version of clrt; convert it again.")
    for name, holds in _SETTINGS.items():
        if not holds(settings[name]):
            raise ModelError(
                f"'{path}' is damaged: '{name}' of its encoder is {reprlib.repr(settings[name])}; "
                "convert the model again."
            )
    return EncoderConfig(path.parent, path, **{**settings, "modes": tuple(settings["modes"])})


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_limit(value: object) -> bool:
    return value is None or (type(value) is int and 0 < value < 1 << 31)


def _is_choice(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _are_modes(value: object) -> bool:
    modes = value if isinstance(value, list) else []
    return bool(modes) and all(isinstance(m, str) and m in POOLING_MODES for m in modes)


def _is_normalizer(value: object) -> bool:
    options = ("lowercase", "strip_accents", "handle_chinese_chars")
    return isinstance(value, dict) and all(k in options and _is_choice(v) for k, v in value.items())


def _are_tokens(value: object) -> bool:
    tokens = value if isinstance(value, list) else [None]
    return all(
        isinstance(t, dict)
        and isinstance(t.get("content"), str)
        and all(k == "content" or (k in _TOKEN_KEYS and _is_flag(v)) for k, v in t.items())
        for t in tokens
    )


# What a compiled model keeps of a configuration.
_SETTINGS: Mapping[str, Callable[[object], bool]] = {
    "modes": _are_modes,
    "include_prompt": _is_flag,
    "normalize": _is_flag,
    "max_length": _is_limit,
    "positions": _is_limit,
    "lower_case": _is_flag,
    "prompt": _is_text,
    "pad_token": _is_text,
    "truncation_side": lambda value: value in ("", "left", "right"),
    "hidden": _is_limit,
    "truncate_dim": _is_limit,
    "normalizer": _is_normalizer,
    "prefix_space": _is_choice,
    "added_tokens": _are_tokens,
    "tokenizer": _is_text,
}


@dataclass(frozen=True)
class _Modules:
    """The chain of modules.json; without that file it is the transformer and mean pooling."""

    transformer: str = ""
    pooling: str | None = None
    normalize: bool = False
    listed: bool = False

    @classmethod
    def read(cls, root: Path) -> _Modules:
        file = root / "modules.json"
        if not file.is_file():
            return cls()
        entries = _parse(file)
        if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
            raise ModelError(
                f"'{file}' must hold a list of modules; download the model's own file."
            )
        types = [str(e.get("type", "")) for e in entries]
        foreign = [t for t in types if not t.startswith("sentence_transformers.")]
        if foreign:
            raise UnsupportedError(
                f"'{file}' has modules of its own code: {', '.join(foreign)}; clrt supports those "
                "of sentence-transformers.",
                foreign,
            )
        kinds = [t.rpartition(".")[2] for t in types]
        needed = [k for k in kinds if k != "Dropout"]
        if needed not in (
            ["Transformer"],
            ["Transformer", "Pooling"],
            ["Transformer", "Pooling", "Normalize"],
        ):
            raise UnsupportedError(
                f"'{file}' chains {' -> '.join(kinds) or 'no modules'}; clrt supports "
                "Transformer -> Pooling -> Normalize (the last one optional).",
                [k for k in needed if k not in {"Transformer", "Pooling", "Normalize"}],
            )
        paths = {kind: str(e.get("path", "")) for kind, e in zip(kinds, entries, strict=True)}
        return cls(paths["Transformer"], paths.get("Pooling"), "Normalize" in paths, listed=True)


def _folder_of(file: Path) -> Path:
    for folder in (file.parent, file.parent.parent):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise ModelError(
        f"No tokenizer.json lies beside '{file}' or one folder above; copy the model's "
        "tokenizer.json there."
    )


def _asked_mode(pooling: str) -> str:
    mode = _ALIASES.get(str(pooling), pooling)
    if mode not in POOLING_MODES:
        raise InputError(f"pooling={pooling!r} is not one of {', '.join(POOLING_MODES)}.")
    return mode


def _modes(root: Path, modules: _Modules, config: Mapping[str, Any]) -> tuple[str, ...]:
    if modules.listed and modules.pooling is None:
        raise ModelError(
            f"'{root / 'modules.json'}' names no Pooling module; "
            f"say pooling= one of {', '.join(POOLING_MODES)}."
        )
    named = config.get("pooling_mode")
    if named is None:
        found = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
    else:
        found = [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
    if modules.listed and not (config and found):
        raise ModelError(
            f"'{root / str(modules.pooling) / 'config.json'}' is missing or names no pooling mode; "
            f"download it, or say pooling= one of {', '.join(POOLING_MODES)}."
        )
    modes = tuple(_ALIASES.get(mode, mode) for mode in found)
    missing = [mode for mode in modes if mode not in POOLING_MODES]
    if missing:
        raise UnsupportedError(
            f"Pooling mode {', '.join(missing)} of '{root}' is not supported; "
            f"clrt has {', '.join(POOLING_MODES)}.",
            missing,
        )
    return modes


def _positions(model: Mapping[str, Any]) -> int | None:
    rows = _number(model.get("max_position_embeddings") or model.get("n_positions"))
    if rows is None or str(model.get("model_type")) not in _OFFSET_POSITIONS:
        return rows
    padding = model.get("pad_token_id")
    return rows - (padding if isinstance(padding, int) else 1) - 1


def _number(value: object) -> int | None:
    """A positive whole number; configs write "no limit" as null, -1 or 1e30."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1 << 31:
        return int(value)
    return None


def _smallest(*values: object) -> int | None:
    numbers = [n for n in map(_number, values) if n is not None]
    return min(numbers, default=None)


def _token(value: object) -> str:
    return str((value.get("content") if isinstance(value, Mapping) else value) or "")


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _prompt(file: Path, values: Mapping[str, Any]) -> str:
    """The default prompt."""
    prompts, name = _object(values.get("prompts")), values.get("default_prompt_name")
    if name is None:
        return ""
    if not isinstance(name, str) or name not in prompts:
        listing = ", ".join(map(repr, prompts)) or "none"
        raise ModelError(
            f"'{file}' has no prompt of its default_prompt_name {name!r}, but {listing}; download "
            "the model's own file."
        )
    return str(prompts[name] or "")


def _side(file: Path, tokenizer: Mapping[str, Any]) -> str:
    side = tokenizer.get("truncation_side") or ""
    if side not in ("", "left", "right"):
        raise ModelError(f"'{file}' has truncation_side {side!r}; it is 'left' or 'right'.")
    return str(side)


def _check_arguments(folder: Path, sentence: Mapping[str, Any]) -> None:
    """Refuses arguments of the transformer that change what it computes."""
    task = sentence.get("transformer_task")
    changed = [k for k in ("config_args", "config_kwargs") if sentence.get(k)]
    changed += ["transformer_task"] if task not in (None, "feature-extraction") else []
    if changed:
        raise UnsupportedError(
            f"The sentence_…_config.json of '{folder}' changes the model by "
            f"{', '.join(changed)}, which clrt does not follow; write it into config.json.",
            changed,
        )


def _normalizer(kind: str, tokenizer: Mapping[str, Any]) -> dict[str, bool | None]:
    """What transformers' classes of that kind make of the normalizer, whatever its file says."""
    if kind not in _BERT_LIKE:
        return {}
    accents = tokenizer.get("strip_accents")
    return {
        "lowercase": bool(tokenizer.get("do_lower_case", True)),
        "strip_accents": None if accents is None else bool(accents),
        "handle_chinese_chars": bool(tokenizer.get("tokenize_chinese_chars", True)),
    }


def _added_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those that files beside tokenizer.json declare, as arguments of AddedToken."""
    declared = _object(tokenizer.get("added_tokens_decoder"))
    plain = _read_json(folder / "added_tokens.json")
    numbered = [(str(i), _object(token)) for i, token in declared.items()]
    numbered += [(str(i), {"content": content}) for content, i in plain.items()]
    numbered = [(i, token) for i, token in numbered if i.isdecimal() and token.get("content")]
    tokens = [
        {key: value[key] for key in _TOKEN_KEYS if key in value}
        for _, value in sorted(numbered, key=lambda item: int(item[0]))
    ]
    extra = tokenizer.get("additional_special_tokens")
    names = map(_token, extra if isinstance(extra, list) else ())
    return tokens + [{"content": name, "special": True} for name in names if name]


def _first(folder: Path, names: tuple[str, ...]) -> Mapping[str, Any]:
    return next((_read_json(folder / n) for n in names if (folder / n).is_file()), {})


def _read_json(file: Path) -> Mapping[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    if not file.is_file():
        return {}
    values = _parse(file)
    if not isinstance(values, dict):
        raise ModelError(f"'{file}' must hold a JSON object; download the model's own file.")
    return values


def _parse(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"'{file}' is not readable as JSON ({error}); download the model's own file."
        ) from error
