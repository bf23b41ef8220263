"""Scores of text pairs (rerankers), compatible with sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clrt.errors import InputError
from clrt.models.locate import find_model
from clrt.text.activations import as_activation, find_activation, softmax
from clrt.text.config import PairConfig, read_pair_config
from clrt.text.sentence_transformers_compat import (
    CALL_OPTIONS,
    LOAD_OPTIONS,
    accepts_old_names,
    hub_cache,
    ignore,
)
from clrt.text.text_model import LoadOptions, Progress, TextModel, TextRequest, converted, last_size
from clrt.text.tokenize import Text

FloatArray = NDArray[np.float32]


class CrossEncoder(TextModel):
    """Cross-encoder: a sequence classifier that scores pairs of texts.

    Args:
        model_name_or_path: As in `SentenceEncoder`; the model must be a sequence classifier.
        num_labels: Expected number of scores per pair; another number in the model raises
            InputError. None accepts any number.
        activation_fn: Activation applied to scores: "sigmoid", "identity", "softmax", "tanh",
            "relu", a function of an array, or a torch module. None uses the activation that the
            folder names; if it names none, the sigmoid for one score per pair and the identity for
            several.
        max_length: As in `SentenceEncoder`.
        device: As in `SentenceEncoder`.
        prompts: As in `SentenceEncoder`.
        default_prompt_name: As in `SentenceEncoder`.
        strict: As in `SentenceEncoder`.
        cache_dir: As in `SentenceEncoder`.

    Raises:
        InputError, ModelError, UnsupportedError, DeviceError: As `SentenceEncoder`.

    Source: sentence-transformers' `CrossEncoder`.
    """

    _pairs = True
    _config: PairConfig

    @accepts_old_names(
        model_name="model_name_or_path",
        default_activation_function="activation_fn",
        max_seq_length="max_length",
    )
    def __init__(
        self,
        model_name_or_path: str | Path,
        *,
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Any = None,
        device: Any = None,
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        strict: bool | None = None,
        cache_dir: str | Path | None = None,
        **others: Any,
    ) -> None:
        ignore("CrossEncoder", others, LOAD_OPTIONS)
        config = read_pair_config(find_model(model_name_or_path, hub_cache(others)))
        options = LoadOptions(device, max_length, prompts, default_prompt_name, strict, cache_dir)
        super().__init__(config, options)
        self._logits = self._output(
            ("logits", "scores"), ("batch", "labels"), "Take a sequence classifier, with its head."
        )
        self._labels = last_size(self._logits)
        if num_labels is not None and num_labels != self.num_labels:
            raise InputError(
                f"num_labels={num_labels!r} differs from the model's {self.num_labels}; leave it "
                "out."
            )
        if activation_fn is not None:
            self.activation_fn = as_activation(activation_fn)
        elif config.activation is not None:
            self.activation_fn = find_activation(config.activation, f"'{config.folder}'")
        else:
            name = "sigmoid" if self.num_labels == 1 else "identity"
            self.activation_fn = find_activation(name, "clrt")

    @property
    def num_labels(self) -> int:
        """Number of scores per pair."""
        if self._labels is None:
            self._labels = self._scores([("", "")], TextRequest(1, "")).shape[1]
        return self._labels

    @accepts_old_names(sentences="inputs", activation_fct="activation_fn")
    def predict(
        self,
        inputs: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Any = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        *,
        device: Any = None,
        progress: Progress | None = None,
        **others: Any,
    ) -> Any:
        """Computes the scores of pairs, in the caller's order.

        Arguments that are not listed are as in `SentenceEncoder.encode`; a prompt is prepended to
        the first text of each pair.

        Args:
            inputs: One pair of texts or an iterable of pairs. `sentences=` is an alias.
            activation_fn: Activation of this call, as in the constructor; None uses the model's.
            apply_softmax: Whether to apply softmax to the scores of a pair after the activation;
                ignored if the model has one score per pair.

        Returns:
            float32 [pairs] for a model with one score, else [pairs, num_labels]; without the
            first axis for one pair.

        Raises:
            InputError: A pair is not two strings, or an option is out of range.
        """
        ignore("predict", others, CALL_OPTIONS)
        single = _is_pair(inputs)
        pairs = self._texts([inputs] if single else inputs)
        request = self._request(
            batch_size, prompt, prompt_name, show_progress_bar, progress, device
        )
        if not pairs:
            empty = np.zeros((0, self.num_labels)[: min(self.num_labels, 2)], np.float32)
            return converted(empty, convert_to_numpy, convert_to_tensor)
        scores = self._scores(pairs, request)
        apply = self.activation_fn if activation_fn is None else as_activation(activation_fn)
        scores = np.asarray(apply(scores), np.float32)
        if self.num_labels == 1:
            scores = scores.reshape(len(scores))
        elif apply_softmax:
            scores = softmax(scores)
        results = converted(scores, convert_to_numpy, convert_to_tensor)
        return results[0] if single else results

    @accepts_old_names(activation_fct="activation_fn")
    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Ranks documents by their score with a query.

        Args:
            query: First text of each pair.
            documents: Second texts of the pairs.
            top_k: Maximum number of results; None returns all.
            return_documents: Whether results include the document as "text".
            options: Keyword arguments passed to `predict`.

        Returns:
            {"corpus_id", "score"} and optionally "text" for each result, best first; "corpus_id"
            is the index in `documents`.

        Raises:
            InputError: The model has several scores per pair, a text is not a string, or an option
                is out of range.
        """
        if self.num_labels != 1:
            raise InputError(
                f"A model with {self.num_labels} scores cannot rank; use predict() with pairs."
            )
        scores = self.predict([(query, text) for text in documents], **options)
        order = sorted(range(len(documents)), key=lambda i: -float(scores[i]))[:top_k]
        texts = ({"text": documents[i]} if return_documents else {} for i in order)
        return [
            {"corpus_id": i, "score": float(scores[i]), **text}
            for i, text in zip(order, texts, strict=True)
        ]

    def _texts(self, given: object) -> list[Text]:
        """Returns checked pairs of strings."""
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            raise InputError(f"Pairs must be lists of two strings, not {type(given).__name__}.")
        pairs: list[Text] = []
        for position, pair in enumerate(given):
            texts = list(pair) if isinstance(pair, (list, tuple, np.ndarray)) else [pair]
            if len(texts) != 2 or not all(isinstance(text, str) for text in texts):
                raise InputError(f"Pair {position} is not two strings but {pair!r:.80}.")
            pairs.append((str(texts[0]), str(texts[1])))
        return pairs

    def _scores(self, pairs: Sequence[Text], request: TextRequest) -> FloatArray:
        rows: dict[int, FloatArray] = {}
        name = self._logits.name
        for batch in self._batches(pairs, request):
            scores = np.asarray(self._model.run(batch.feeds, outputs=[name])[name], np.float32)
            rows.update(zip(batch.rows.tolist(), scores, strict=False))
        return np.stack([rows[i] for i in range(len(pairs))])


def _is_pair(inputs: object) -> bool:
    """Returns whether `inputs` is one pair of texts, not an iterable of pairs."""
    if isinstance(inputs, (list, tuple, np.ndarray)):
        return len(inputs) > 0 and isinstance(inputs[0], str)
    return isinstance(inputs, str)
