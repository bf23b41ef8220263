"""Configuration of text models: tokens, pooling, prompts and scores, read from model files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from clrt.errors import ModelError, UnsupportedError
from clrt.models.compiled_file import SUFFIX
from clrt.models.huggingface.json_values import as_object, positive_number
from clrt.models.huggingface.model_files import file_exists, read_optional
from clrt.models.sources import onnx_file
from clrt.text.modules import Modules, class_of
from clrt.text.settings import read_settings
from clrt.text.stages import VectorStage, read_stages, stages_of
from clrt.text.tokenizer_files import tokenizer_steps
from clrt.util.fast_dataclass import dataclass

# model_type values whose tokens start at row padding_idx + 1 of the position table.
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
_SENTENCE_CONFIGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True)
class TextConfig:
    """Tokenization, prompts and limits: the configuration that all text models share.

    Attributes:
        folder: Folder that holds tokenizer.json.
        source: The ONNX file or folder of the transformer.
        max_length: Maximum tokens per sequence, special ones included; None for no limit.
        positions: Maximum tokens that the model's position table allows; None for no limit.
        lower_case: Whether text is lowercased before the tokenizer's own normalizer.
        prompts: Prompts by name; a prompt is prepended to texts.
        default_prompt_name: Name of the prompt used if the caller names none; None for no prompt.
        pad_token: The tokenizer's padding token; "" if no file names it.
        truncation_side: Side at which long texts are cut, "right" or "left"; "" to read it from
            tokenizer.json.
        padding_side: Side of the padding, "right" or "left"; "" to read it from tokenizer.json.
        pads_left: Whether the tokenizer class pads on the left by default, used if no file names a
            side.
        normalizer: Options of BERT's normalizer, which override the options in tokenizer.json.
        prefix_space: ByteLevel's `add_prefix_space`, overriding tokenizer.json; None keeps it.
        token_types: Whether token_type_ids number the texts of a pair; if False they are all 0.
        added_tokens: Arguments of AddedToken for tokens that tokenizer.json may lack, in the order
            of their ids.
        tokenizer: Text of tokenizer.json if a compiled model embeds it, else None.
        special_tokens: Whether special tokens are added. If False and `max_length` is None, texts
            are truncated as tokenizer.json says.
        ends: Start token and end token, added to each text unless tokenizer.json adds them; "" for
            none.

    """

    wanted: ClassVar[str]  # Name of the class that runs the model.
    task: ClassVar[str]  # `transformer_task` in sentence-transformers' files.

    folder: Path
    source: Path
    max_length: int | None = None
    positions: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    pad_token: str = ""
    truncation_side: str = ""
    padding_side: str = ""
    pads_left: bool = False
    normalizer: Mapping[str, bool | None] = field(default_factory=dict)
    prefix_space: bool | None = None
    token_types: bool = True
    added_tokens: Sequence[Mapping[str, Any]] = ()
    tokenizer: str | None = None
    special_tokens: bool = True
    ends: tuple[str, str] = ("", "")

    @property
    def prompt(self) -> str:
        """Text of the default prompt; "" if there is none."""
        name = self.default_prompt_name
        return "" if name is None else self.prompts[name]

    def for_compiled(self, tokenizer: str) -> dict[str, Any]:
        """Returns the settings that a compiled model stores, as JSON values.

        Args:
            tokenizer: Text of tokenizer.json.
        """
        return self.stored(tokenizer)

    def stored(self, tokenizer: str) -> dict[str, Any]:
        """Returns all fields except paths as JSON values by name, and the class name as "class".

        Args:
            tokenizer: Text of tokenizer.json, stored as the field `tokenizer`.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        del values["folder"], values["source"]
        # The round trip turns tuples into lists, as when the file is read back.
        kept: dict[str, Any] = json.loads(json.dumps({**values, "tokenizer": tokenizer}))
        return {"class": self.wanted, **kept}


@dataclass(frozen=True)
class EncoderConfig(TextConfig):
    """Configuration of a sentence encoder.

    Attributes:
        modes: Pooling modes; several are concatenated.
        include_prompt: Whether the prompt's tokens are pooled.
        stages: Modules applied to pooled vectors, in order.
        normalize: Whether vectors are always L2-normalized after the stages.
        hidden: Token embedding size; None if config.json lacks it.
        truncate_dim: Default number of leading elements kept of each vector; None keeps all.
        similarity: Name of the similarity function; None if the folder names none.
    """

    wanted = "SentenceEncoder"
    task = "feature-extraction"

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True
    stages: tuple[VectorStage, ...] = ()
    normalize: bool = False
    hidden: int | None = None
    truncate_dim: int | None = None
    similarity: str | None = None

    def for_compiled(self, tokenizer: str) -> dict[str, Any]:
        """Returns the settings that a compiled model stores, as JSON values.

        Args:
            tokenizer: Text of tokenizer.json.
        """
        plain = replace(self, stages=()).stored(tokenizer)
        return {**plain, "stages": [s.stored() for s in self.stages]}


@dataclass(frozen=True)
class PairConfig(TextConfig):
    """Configuration of a cross-encoder.

    Attributes:
        activation: Name of the activation applied to scores; None if the folder names none.
    """

    wanted = "CrossEncoder"
    task = "sequence-classification"

    activation: str | None = None


@dataclass(frozen=True)
class SparseConfig(TextConfig):
    """Configuration of a sparse (SPLADE) encoder.

    Attributes:
        strategy: Reduction over tokens, "max" or "sum".
        activation: Activation of the logits before the logarithm, "relu" or "log1p_relu".
        max_active_dims: Default maximum of nonzero elements per vector; None for no limit.
        similarity: Name of the similarity function; None if the folder names none.
    """

    wanted = "SparseEncoder"
    task = "fill-mask"

    strategy: str = "max"
    activation: str = "relu"
    max_active_dims: int | None = None
    similarity: str | None = None


def read_config(path: Path, pooling: str | None = None) -> EncoderConfig:
    """Reads the configuration of a sentence encoder.

    Args:
        path: Existing model folder, compiled model, or ONNX file with tokenizer.json beside it or
            one folder above.
        pooling: Pooling mode that replaces the folder's; None keeps the folder's.

    Raises:
        InputError: `pooling` is not a pooling mode.
        ModelError: A file is missing or damaged.
        UnsupportedError: The folder names a module or pooling mode that clrt lacks.
    """
    if path.suffix == SUFFIX:
        asked = {} if pooling is None else {"modes": Modules(path, {}).pooling_modes(pooling)}
        return EncoderConfig(**{**_compiled(path, EncoderConfig), **asked})
    modules = Modules.read(_root(path), EncoderConfig.wanted)
    shared, model, whole = _read_shared(path, modules, EncoderConfig)
    stages = read_stages(modules.root, modules.stages)
    ends_in_unit = bool(stages) and stages[-1].kind == "Normalize"
    return EncoderConfig(
        **shared,
        special_tokens=not modules.is_static,
        stages=stages[:-1] if ends_in_unit else stages,
        modes=modules.pooling_modes(pooling),
        truncate_dim=positive_number(whole.get("truncate_dim")),
        include_prompt=bool(modules.options("Pooling").get("include_prompt", True)),
        normalize=ends_in_unit,
        hidden=positive_number(model.get("hidden_size") or model.get("dim")),
        similarity=_text(whole.get("similarity_fn_name")),
    )


def read_pair_config(path: Path) -> PairConfig:
    """Reads the configuration of a cross-encoder.

    Args:
        path: Model folder, compiled model, or ONNX file, as for `read_config`.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The folder has a module or option that clrt lacks.
    """
    if path.suffix == SUFFIX:
        return PairConfig(**_compiled(path, PairConfig))
    modules = Modules.read(_root(path), PairConfig.wanted)
    shared, model, whole = _read_shared(path, modules, PairConfig)
    stored = as_object(model.get("sentence_transformers")).get("activation_fn")
    older = model.get("sbert_ce_default_activation_function")
    return PairConfig(
        **shared,
        activation=_text(whole.get("activation_fn") or stored or older),
    )


def read_sparse_config(path: Path) -> SparseConfig:
    """Reads the configuration of a sparse (SPLADE) encoder.

    Args:
        path: Model folder, compiled model, or ONNX file, as for `read_config`.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The folder has a module or option that clrt lacks.
    """
    if path.suffix == SUFFIX:
        return SparseConfig(**_compiled(path, SparseConfig))
    modules = Modules.read(_root(path), SparseConfig.wanted)
    shared, _, whole = _read_shared(path, modules, SparseConfig)
    options = modules.options("SpladePooling")
    for key, known in (("pooling_strategy", ("max", "sum")),
                       ("activation_function", ("relu", "log1p_relu"))):  # fmt: skip
        if options.get(key, known[0]) not in known:
            raise UnsupportedError(
                f"SpladePooling of '{modules.root}' has {key} {options[key]!r}; clrt supports "
                f"{' and '.join(known)}.",
            )
    return SparseConfig(
        **shared,
        strategy=str(options.get("pooling_strategy", "max")),
        activation=str(options.get("activation_function", "relu")),
        max_active_dims=positive_number(whole.get("max_active_dims")),
        similarity=_text(whole.get("similarity_fn_name")),
    )


def read_any_config(path: Path) -> TextConfig:
    """Reads the configuration of a text model, of the class that its files call for.

    Args:
        path: Model folder, compiled model, or ONNX file, as for `read_config`.

    Raises:
        ModelError: A file is missing or damaged.
        UnsupportedError: The folder has a module or option that clrt lacks.
    """
    compiled = path.suffix == SUFFIX
    kind = str(read_settings(path).get("class")) if compiled else class_of(_root(path))
    readers = {"CrossEncoder": read_pair_config, "SparseEncoder": read_sparse_config}
    return readers.get(kind, read_config)(path)


def _read_shared(
    path: Path, modules: Modules, kind: type[TextConfig]
) -> tuple[dict[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Reads the settings that all text models share.

    Args:
        path: Model folder or ONNX file.
        modules: Module chain of the folder.
        kind: Configuration class, which determines the supported task.

    Returns:
        `TextConfig` fields by name; contents of config.json; contents of
        config_sentence_transformers.json. Contents of a missing file are {}.
    """
    folder = modules.transformer
    tokenizer = read_optional(folder / "tokenizer_config.json")
    model = read_optional(folder / "config.json")
    sentence = _first(folder, _SENTENCE_CONFIGS)
    _check_arguments(folder, sentence, kind.task)
    arguments = sentence.get("tokenizer_args") or sentence.get("processor_kwargs")
    limits = (sentence.get("max_seq_length"), as_object(arguments).get("model_max_length"),
              tokenizer.get("model_max_length"))  # fmt: skip
    positions = _positions(model)
    whole_file = modules.root / "config_sentence_transformers.json"
    whole = read_optional(whole_file)
    prompts, default = _prompts(whole_file, whole)
    shared = {
        "folder": folder,
        "source": path if path.is_file() else folder,
        "max_length": _smallest(positions, next(filter(None, map(positive_number, limits)), None)),
        "positions": positions,
        "lower_case": bool(sentence.get("do_lower_case", False)),
        "prompts": prompts,
        "default_prompt_name": default,
        **tokenizer_steps(folder, tokenizer),
    }
    if not path.is_file() and onnx_file(folder) is None:
        # Graphs built from weights return equal vectors for both padding sides, so one is enough.
        shared["padding_side"] = "right"
    return shared, model, whole


def _compiled(path: Path, kind: type[TextConfig]) -> dict[str, Any]:
    """Returns the fields of a configuration by name, read from a compiled model.

    Args:
        path: The compiled model.
        kind: Configuration class.

    Raises:
        ModelError: The model has no text configuration, a damaged one, or one for another class.
    """
    values = read_settings(path, kind.wanted)
    sequences = {n: tuple(v) for n, v in values.items() if n in ("modes", "ends")}
    if "stages" in values:
        sequences["stages"] = stages_of(values["stages"]) or ()
    return {"folder": path.parent, "source": path, **values, **sequences}


def _root(path: Path) -> Path:
    return path if path.is_dir() else _folder_of(path)


def _folder_of(file: Path) -> Path:
    for folder in (file.parent, file.parent.parent):
        if file_exists(folder / "tokenizer.json"):
            return folder
    raise ModelError(
        f"No tokenizer.json is beside '{file}' or one folder above; copy the model's "
        "tokenizer.json there."
    )


def _positions(model: Mapping[str, Any]) -> int | None:
    rows = positive_number(model.get("max_position_embeddings") or model.get("n_positions"))
    if rows is None or str(model.get("model_type")) not in _OFFSET_POSITIONS:
        return rows
    padding = model.get("pad_token_id")
    return rows - (padding if isinstance(padding, int) else 1) - 1


def _smallest(*values: object) -> int | None:
    numbers = [n for n in map(positive_number, values) if n is not None]
    return min(numbers, default=None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _prompts(file: Path, values: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Returns prompt name -> text, and the name of the default prompt, None if there is none.

    Args:
        file: Path of config_sentence_transformers.json, for messages.
        values: Contents of the file.

    Raises:
        ModelError: The default prompt is not among the prompts.
    """
    stored = as_object(values.get("prompts"))
    prompts = {str(name): str(text or "") for name, text in stored.items()}
    name = values.get("default_prompt_name")
    if name is not None and (not isinstance(name, str) or name not in prompts):
        listing = ", ".join(map(repr, prompts)) or "none"
        raise ModelError(
            f"'{file}' has no prompt of its default_prompt_name {name!r}, but {listing}; download "
            "the model's own file."
        )
    return prompts, name


def _check_arguments(folder: Path, sentence: Mapping[str, Any], task: str) -> None:
    """Checks that a module's configuration does not change the transformer or its task.

    Args:
        folder: Folder of the transformer, for messages.
        sentence: Contents of sentence_bert_config.json or a file like it.
        task: The supported `transformer_task`.

    Raises:
        UnsupportedError: The configuration has `config_args`, `config_kwargs` or another task.
    """
    changed = [k for k in ("config_args", "config_kwargs") if sentence.get(k)]
    changed += ["transformer_task"] if sentence.get("transformer_task") not in (None, task) else []
    if changed:
        raise UnsupportedError(
            f"The sentence_…_config.json of '{folder}' changes the model by "
            f"{', '.join(changed)}, which clrt does not support; write it into config.json.",
            changed,
        )


def _first(folder: Path, names: tuple[str, ...]) -> Mapping[str, Any]:
    return next((read_optional(folder / n) for n in names if file_exists(folder / n)), {})
