"""Base class of text models: tokenizes, batches by length, runs, restores the caller's order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError, ModelError
from clrt.runtime.execution.signature import TensorSpec
from clrt.runtime.model.model import Model, load
from clrt.runtime.model.pickling import PicklesByArguments
from clrt.runtime.opencl.devices import DeviceInfo, choose_device
from clrt.text.config import TextConfig
from clrt.text.feeds import INPUTS, MAX_PADDING, Feeds, batch_spans, fixed_dims, model_feeds
from clrt.text.pooling import MASK
from clrt.text.sentence_transformers_compat import device_name
from clrt.text.tokenize import IntArray, Text, TextTokenizer, Tokens
from clrt.text.torch_interop import to_tensor
from clrt.util.fast_dataclass import dataclass

Progress = Callable[[int, int], object]
M = TypeVar("M", bound="TextModel")


@dataclass(frozen=True)
class TextRequest:
    """Validated options of one `encode` or `predict` call.

    Attributes:
        batch_size: Maximum number of texts, or pairs, per run.
        prompt: Prepended to each text, or to the first text of each pair.
        show_progress_bar: None shows a bar if stderr is a terminal and there are several batches.
        progress: Called after each batch with the number of texts done and their total.
    """

    batch_size: int
    prompt: str
    show_progress_bar: bool | None = None
    progress: Progress | None = None


@dataclass(frozen=True)
class Batch:
    """Inputs of one model run.

    Attributes:
        rows: Indices of the batch's texts in the call, [texts].
        feeds: The model's inputs, int64 [rows, tokens]; if the model fixes the batch size, rows
            beyond the texts repeat the last text.
        mask: The attention mask, int64 [rows, tokens].
    """

    rows: NDArray[np.intp]
    feeds: Feeds
    mask: IntArray


@dataclass(frozen=True)
class LoadOptions:
    """Constructor arguments that all text models share.

    Attributes:
        device: Device as in `clrt.load`, or a torch device; None for the default.
        max_length: Maximum tokens per text, special ones included; None for the folder's value.
        prompts: Prompts by name, added to the folder's; None for none.
        default_prompt_name: Name of the prompt used if a call names none; None for the folder's.
        strict: Whether a node without a fitting kernel is an error; None reads CLRT_STRICT.
        cache_dir: Folder for compiled programs; None for the default.
    """

    device: Any = None
    max_length: int | None = None
    prompts: Mapping[str, str] | None = None
    default_prompt_name: str | None = None
    strict: bool | None = None
    cache_dir: str | Path | None = None


class TextModel(PicklesByArguments):
    """Base class of text models: a transformer with its tokenizer.

    Subclasses convert the transformer's outputs to vectors or scores.

    Pickling and copying store the constructor arguments and the attributes that were set
    afterwards.
    """

    _pairs: ClassVar[bool] = False
    # Prompt names that every model has; "" if the folder defines none.
    _prompt_names: ClassVar[tuple[str, ...]] = ()
    # Attributes that callers may set after construction; pickled with the arguments.
    _settable: ClassVar[tuple[str, ...]] = ("max_length", "prompts", "default_prompt_name")

    def __init__(self, config: TextConfig, options: LoadOptions) -> None:
        asked = options.max_length
        if asked is not None:
            config = replace(config, max_length=_checked_length(asked, config))
        default = options.default_prompt_name or config.default_prompt_name
        self.prompts: dict[str, str] = {
            **dict.fromkeys(self._prompt_names, ""),
            **config.prompts,
            **(options.prompts or {}),
        }
        self.default_prompt_name = default
        if default is not None:
            self._prompt(None, default)
        self._config = config
        self._tokenizer = TextTokenizer(config, self._pairs)
        self._model = load(
            config.source,
            device=device_name(options.device),
            strict=options.strict,
            cache_dir=options.cache_dir,
        )
        _check_inputs(self._model, config.source)
        self._rows, self._length = fixed_dims(self._model.inputs)
        if self._length is not None and self._length < (config.max_length or sys.maxsize):
            if asked is not None:
                raise self._too_long(asked)
            self._set_length(self._length)

    @property
    def model(self) -> Model:
        """The transformer."""
        return self._model

    @property
    def device(self) -> DeviceInfo:
        """The device that the transformer runs on."""
        return self._model.device

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, a `tokenizers.Tokenizer`."""
        return self._tokenizer.library

    @property
    def max_length(self) -> int | None:
        """Maximum tokens per text, special ones included; None for no limit. Settable."""
        return self._config.max_length

    @max_length.setter
    def max_length(self, value: int) -> None:
        length = _checked_length(value, self._config)
        if self._length is not None and length > self._length:
            raise self._too_long(length)
        self._set_length(length)

    max_seq_length = max_length

    def get_max_seq_length(self) -> int | None:
        """Returns `max_length`; sentence-transformers' name for it."""
        return self.max_length

    def tokenize(self, texts: Iterable[Text]) -> Feeds:
        """Returns the model's inputs, padded to the longest text: int64 [texts, tokens] each."""
        tokens = self._tokenizer.encode(self._texts(texts))
        longest = max(map(len, tokens), default=0)
        return self._feeds(tokens, longest)

    def close(self) -> None:
        """Releases the device memory."""
        self._model.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {name: getattr(self, name) for name in self._settable}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            if getattr(self, name) != value:
                setattr(self, name, value)

    def __enter__(self: M) -> M:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_length(self, length: int) -> None:
        self._config = replace(self._config, max_length=length)
        self._tokenizer = TextTokenizer(self._config, self._pairs)

    def _too_long(self, asked: int) -> InputError:
        return InputError(
            f"max_length={asked} exceeds the model's fixed input length of {self._length} tokens."
        )

    def _prompt(self, prompt: object, name: object) -> str:
        """Returns the prompt text of a call; "" for none.

        Args:
            prompt: Prompt text; None uses `name`.
            name: Name of a prompt; None uses the default prompt.

        Raises:
            InputError: `prompt` is not a string, or there is no prompt of that name.
        """
        if prompt is not None:
            if not isinstance(prompt, str):
                raise InputError(f"prompt must be a string, not {type(prompt).__name__}.")
            return prompt
        chosen = self.default_prompt_name if name is None else name
        if chosen is None:
            return ""
        if not isinstance(chosen, str) or chosen not in self.prompts:
            listing = ", ".join(map(repr, self.prompts)) or "none"
            raise InputError(f"There is no prompt {chosen!r}; the model has {listing}.")
        return self.prompts[chosen] or ""

    def _request(
        self,
        batch_size: object,
        prompt: object,
        prompt_name: object,
        show_progress_bar: bool | None,
        progress: Progress | None,
        device: Any,
    ) -> TextRequest:
        """Returns the checked options of a call that encodes texts.

        Args:
            batch_size: Maximum number of texts, or pairs, per run.
            prompt: Prompt text; None uses `prompt_name`.
            prompt_name: Name of a prompt; None uses the default prompt.
            show_progress_bar: Option of the call, as in `TextRequest`.
            progress: Option of the call, as in `TextRequest`.
            device: Device that the call names; None for the model's.

        Raises:
            InputError: An option is invalid, or `device` is not the model's device.
        """
        if device is not None and choose_device(device_name(device)).index != self.device.index:
            raise InputError(
                f"The model runs on {self.device}; to run on {device!r}, load it with that device."
            )
        text = self._prompt(prompt, prompt_name)
        return TextRequest(positive("batch_size", batch_size), text, show_progress_bar, progress)

    def _texts(self, given: object) -> list[Text]:
        """Returns the texts of a call as a list; subclasses may accept pairs.

        Args:
            given: One string, or an iterable of strings.

        Raises:
            InputError: An element is not a string, or `given` is bytes, a mapping or not iterable.
        """
        if isinstance(given, str):
            return [given]
        if isinstance(given, np.ndarray) and given.ndim == 0:
            given = [given.item()]
        if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
            raise InputError(
                f"Sentences must be a string or a list of strings, not {type(given).__name__}."
            )
        texts: list[Text] = list(given)
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                kind = type(text).__name__
                raise InputError(
                    f"Sentence {position} must be a string, not {kind} ({text!r:.80})."
                )
        return texts

    def _batches(self, texts: Sequence[Text], request: TextRequest) -> Iterator[Batch]:
        """Yields the batches of a call; texts are sorted by falling length, for little padding.

        Args:
            texts: Texts or pairs, without the prompt.
            request: Options of the call.
        """
        size = self._rows or request.batch_size
        tokens = self._tokenizer.encode(with_prompt(request.prompt, texts))
        order = np.argsort([-len(t) for t in tokens], kind="stable")
        one_batch = len(texts) <= size
        show = request.show_progress_bar
        if show is None:
            show = not one_batch and sys.stderr is not None and sys.stderr.isatty()
        with _progress(len(texts), show, request.progress) as advance:
            lengths = [max(len(tokens[int(i)]), 1) for i in order]
            saves_padding = self._rows is None and self._model.device.caps.is_cpu
            for start, end in batch_spans(lengths, size, MAX_PADDING if saves_padding else 1.0):
                rows = order[start:end]
                batch = [tokens[int(i)] for i in rows]
                longest = lengths[start]
                length = _common_length(longest, self.max_length) if one_batch else longest
                yield self._batch(rows, batch, length)
                advance(len(rows))

    def _batch(self, rows: NDArray[np.intp], batch: Sequence[Tokens], length: int) -> Batch:
        """Returns a padded batch.

        Args:
            rows: Indices of the batch's texts in the call.
            batch: Tokens of each text.
            length: Number of tokens to pad to.
        """
        feeds = self._feeds(batch, length)
        return Batch(rows, feeds, np.asarray(feeds[MASK], np.int64))

    def _feeds(self, batch: Sequence[Tokens], length: int) -> Feeds:
        """Returns the model's inputs for a batch padded to `length` tokens."""
        tokenizer, inputs = self._tokenizer, self._model.inputs
        return model_feeds(batch, length, tokenizer.pad_id, inputs, tokenizer.pads_left)

    def _output(self, names: Sequence[str], dims: Sequence[str], advice: str) -> TensorSpec:
        """Returns the model output that has one of some names, or else the expected axes.

        Args:
            names: Output names to look for, in order of preference. If the model has none of them,
                the first output with as many axes as `dims` is returned.
            dims: Names of the expected axes, also for the message.
            advice: Last sentence of the message.

        Raises:
            ModelError: There is no such output.
        """
        by_name = {spec.name: spec for spec in self._model.outputs}
        named = [by_name[name] for name in names if name in by_name]
        shaped = [
            s for s in self._model.outputs if s.shape is not None and len(s.shape) == len(dims)
        ]
        for spec in named + shaped:
            return spec
        raise ModelError(
            f"'{self._config.source}' has no output of shape [{', '.join(dims)}]; it has "
            f"{', '.join(by_name)}. {advice}"
        )


def last_size(spec: TensorSpec) -> int | None:
    """Returns the size of the last dim; None if it is dynamic or the rank is 0 or unknown."""
    size = spec.shape[-1] if spec.shape else None
    return size if isinstance(size, int) else None


def with_prompt(prompt: str, texts: Sequence[Text]) -> Sequence[Text]:
    """Prepends `prompt` to each text, or to the first text of each pair."""
    if not prompt:
        return texts
    return [prompt + t if isinstance(t, str) else (prompt + t[0], t[1]) for t in texts]


def positive(name: str, value: object) -> int:
    """Returns an option's value as an int of at least 1.

    Args:
        name: Name of the option, for the message.
        value: Value of the option.

    Raises:
        InputError: The value is not an integer of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(
            f"{name}={value!r} is out of range; expected a whole number of at least 1."
        )
    return int(value)


def converted(array: NDArray[Any], to_numpy: bool, tensor: bool) -> Any:
    """Converts results to the form that sentence-transformers' arguments select.

    Args:
        array: Results, one per row.
        to_numpy: Whether to return the array itself; if not, a list of torch tensors.
        tensor: Whether to return one torch tensor instead.

    Raises:
        InputError: A tensor is needed, and torch is not installed.
    """
    if tensor:
        return to_tensor(array)
    return array if to_numpy else list(to_tensor(array))


@contextmanager
def _progress(
    total: int, shown: bool, callback: Progress | None
) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar and calls `callback` within the context.

    Args:
        total: Number of texts.
        shown: Whether to show a progress bar on stderr.
        callback: Called with the number of texts done and `total`; None for none.

    Yields:
        Function to call after each batch with its number of texts.
    """
    with _bar(total, shown) as update:
        done = 0

        def advance(texts: int) -> None:
            nonlocal done
            done += texts
            update(texts)
            if callback is not None:
                callback(done, total)

        yield advance


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[int], object]]:
    """Shows a progress bar of `total` texts within the context, if `shown` and stderr exists.

    Yields:
        Function to call with the number of texts to advance by.
    """
    if not shown or sys.stderr is None:  # None in GUI programs on Windows
        yield lambda texts: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="sentence") as bar:
        yield bar.update


def _common_length(length: int, limit: int | None) -> int:
    """Rounds a token count up to one of eight lengths per power of two, by at most an eighth.

    Calls of a single batch, such as a query, are padded to this length: their inputs then have few
    distinct shapes, whose plans are cached. Calls of many batches repeat lengths anyway.

    Args:
        length: Number of tokens.
        limit: Maximum of the result; None for none.
    """
    step = 1 << max(length.bit_length() - 4, 0)
    return min(-(-length // step) * step, limit or sys.maxsize)


def _checked_length(max_length: int, config: TextConfig) -> int:
    length = positive("max_length", max_length)
    if config.positions is not None and length > config.positions:
        raise InputError(
            f"max_length={length} exceeds the {config.positions} positions of the model."
        )
    return length


def _check_inputs(model: Model, source: Path) -> None:
    needed = {"input_ids", MASK}
    names = {spec.name for spec in model.inputs}
    if names - {*INPUTS} or needed - names:
        raise ModelError(
            f"'{source}' has the inputs {', '.join(sorted(names))}; a text model takes "
            f"input_ids, {MASK} and, if present, token_type_ids and position_ids."
        )
