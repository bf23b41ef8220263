"""Module chains of sentence-transformers folders (modules.json)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clrt.errors import InputError, ModelError, UnsupportedError
from clrt.models.huggingface.model_files import file_exists, path_in, read_json, read_optional
from clrt.util.fast_dataclass import dataclass

POOLING_MODES = ("cls", "max", "mean", "mean_sqrt_len", "sum", "weightedmean", "lasttoken")

# Flags of Pooling's config.json -> mode, in sentence-transformers' order of concatenation.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ALIASES = {"mean_sqrt_len_tokens": "mean_sqrt_len"}
# Module class -> name used here. MLMTransformer is the Transformer, with head, of sparse encoders.
_KINDS = {"MLMTransformer": "Transformer"}

Chains = Mapping[tuple[str, ...], str]
"""Module chain supported by a model class -> its description in error messages."""

# Modules that may follow the pooling, in any order and number. Dropout is a no-op at inference.
STAGES = ("Dense", "LayerNorm", "Normalize", "Dropout")
DENSE: Chains = dict.fromkeys(
    (("Transformer",), ("Transformer", "Pooling"), ("StaticEmbedding",)),
    f"Transformer -> Pooling or StaticEmbedding, then any of {', '.join(STAGES)}",
)
PAIRS: Chains = {("Transformer",): "a Transformer alone"}
SPARSE: Chains = {("Transformer", "SpladePooling"): "Transformer -> SpladePooling"}
CLASSES = {"SentenceEncoder": DENSE, "CrossEncoder": PAIRS, "SparseEncoder": SPARSE}


@dataclass(frozen=True)
class Modules:
    """Module chain of a sentence-transformers folder, as modules.json lists it.

    Attributes:
        root: The model folder.
        paths: Module class -> folder below `root`, for modules up to and including the pooling;
            empty without modules.json.
        stages: (module class, folder below `root`) for modules after the pooling, in order.
    """

    root: Path
    paths: Mapping[str, str]
    stages: Sequence[tuple[str, str]] = ()

    @classmethod
    def read(cls, root: Path, wanted: str) -> Modules:
        """Reads modules.json of folder `root`; without that file the chain is empty.

        Args:
            root: The model folder.
            wanted: Name of the class that runs the model, a key of `CLASSES`.

        Raises:
            ModelError: The file is damaged.
            UnsupportedError: Class `wanted` does not support the module chain, or a module is not
                sentence-transformers' own.
        """
        file = root / "modules.json"
        if not file_exists(file):
            return cls(root, {})
        entries = read_json(file)
        if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
            raise ModelError(
                f"'{file}' must hold a list of modules; download the model's own file."
            )
        types = [str(e.get("type", "")) for e in entries]
        foreign = [t for t in types if not t.startswith("sentence_transformers.")]
        if foreign:
            raise UnsupportedError(
                f"'{file}' has modules with custom code: {', '.join(foreign)}; clrt supports those "
                "of sentence-transformers.",
                foreign,
            )
        kinds = [_KINDS.get(t.rpartition(".")[2], t.rpartition(".")[2]) for t in types]
        folders = [str(e.get("path", "")) for e in entries]
        for folder in folders:
            path_in(root, folder)
        count = len(kinds)
        while count and wanted == "SentenceEncoder" and kinds[count - 1] in STAGES:
            count -= 1
        _check_chain(file, kinds[:count], kinds, wanted)
        paths = dict(zip(kinds[:count], folders, strict=False))
        return cls(root, paths, list(zip(kinds[count:], folders[count:], strict=True)))

    @property
    def transformer(self) -> Path:
        """Folder of the module that embeds tokens: Transformer or StaticEmbedding."""
        folder = self.paths.get("Transformer", self.paths.get("StaticEmbedding", ""))
        return self.root / folder

    @property
    def is_static(self) -> bool:
        """Whether the model is a StaticEmbedding: a table lookup per token, no transformer."""
        return "StaticEmbedding" in self.paths

    def options(self, kind: str) -> Mapping[str, Any]:
        """Returns config.json of the module of class `kind`; {} if the chain has no such module."""
        folder = self.paths.get(kind)
        return {} if folder is None else read_optional(self.root / folder / "config.json")

    def pooling_modes(self, asked: str | None) -> tuple[str, ...]:
        """Returns the pooling modes of the model; the vectors of several modes are concatenated.

        Args:
            asked: Pooling mode that replaces the folder's; None keeps the folder's.

        Raises:
            InputError: `asked` is not a pooling mode.
            ModelError: The folder names no pooling mode.
            UnsupportedError: The folder names a pooling mode that clrt lacks.
        """
        if asked is not None:
            return (_asked_mode(asked),)
        if self.is_static:
            return ("mean",)
        if self.paths and "Pooling" not in self.paths:
            raise ModelError(
                f"'{self.root / 'modules.json'}' has no Pooling module; pass pooling= as one of "
                f"{', '.join(POOLING_MODES)}."
            )
        config = self.options("Pooling")
        named = config.get("pooling_mode")
        if named is None:
            selected = [mode for flag, mode in _FLAGS.items() if config.get(flag)] or ["mean"]
        else:
            selected = [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
        if self.paths and not (config and selected):
            raise ModelError(
                f"'{self.root / self.paths['Pooling'] / 'config.json'}' is missing or has no "
                f"pooling mode; download it, or pass pooling= as one of {', '.join(POOLING_MODES)}."
            )
        modes = tuple(_ALIASES.get(mode, mode) for mode in selected)
        missing = [mode for mode in modes if mode not in POOLING_MODES]
        if missing:
            raise UnsupportedError(
                f"Pooling mode {', '.join(missing)} of '{self.root}' is not supported; clrt "
                f"supports {', '.join(POOLING_MODES)}.",
                missing,
            )
        return modes


def class_of(root: Path) -> str:
    """Returns the name of the class that runs a model folder, a key of `CLASSES`.

    modules.json and `architectures` of config.json determine the class. If both files are missing,
    the result is "SentenceEncoder".
    """
    file = root / "modules.json"
    entries = read_json(file) if file_exists(file) else []
    listed = entries if isinstance(entries, list) else []
    kinds = [str(e.get("type")) for e in listed if isinstance(e, Mapping)]
    if any(kind.endswith(".SpladePooling") for kind in kinds):
        return "SparseEncoder"
    names = read_optional(root / "config.json").get("architectures")
    first = str(names[0]) if isinstance(names, list) and names else ""
    pooled = any(kind.endswith(".Pooling") for kind in kinds)
    if first.endswith("ForSequenceClassification") and not pooled:
        return "CrossEncoder"
    return "SentenceEncoder"


def _check_chain(file: Path, kinds: Sequence[str], whole: Sequence[str], wanted: str) -> None:
    """Checks that a class supports a module chain.

    Args:
        file: Path of modules.json, for the message.
        kinds: Module classes before the stages.
        whole: All module classes, for the message.
        wanted: Name of the class that runs the model, a key of `CLASSES`.

    Raises:
        UnsupportedError: The class does not support the chain.
    """
    if tuple(kinds) in CLASSES[wanted]:
        return
    other = next((name for name, chains in CLASSES.items() if tuple(kinds) in chains), None)
    supported = next(iter(CLASSES[wanted].values()))
    remedy = f"open it by clrt.{other}" if other else f"clrt supports {supported}"
    known = {*STAGES, *(kind for chain in CLASSES[wanted] for kind in chain)}
    raise UnsupportedError(
        f"'{file}' chains {' -> '.join(whole) or 'no modules'}, which a {wanted} does not have; "
        f"{remedy}.",
        [kind for kind in whole if kind not in known],
    )


def _asked_mode(pooling: str) -> str:
    mode = _ALIASES.get(str(pooling), pooling)
    if mode not in POOLING_MODES:
        raise InputError(f"pooling={pooling!r} is not one of {', '.join(POOLING_MODES)}.")
    return mode
