"""Writes the task heads that config.json's architecture names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clrt.importer.huggingface.encoder import Encoder

_LABELS = "classifier"
_SPANS = "qa_outputs"


@dataclass(frozen=True)
class Output:
    """A graph output: its name, the value it shows, and its dimensions."""

    name: str
    value: str
    dims: tuple[str | int, ...]


def head_outputs(encoder: Encoder, hidden: str, pooled: str | None) -> list[Output]:
    """Writes the head of the model's architecture.

    Args:
        encoder: The encoder under construction.
        hidden: Its last hidden state.
        pooled: Its pooler's output, where it has one.

    Returns:
        The head's outputs; none where the architecture names no known head, or where the
        checkpoint holds no weights for it (an encoder saved under its old architecture).
    """
    architecture = encoder.config.architecture
    for ending, write in _HEADS.items():
        if architecture.endswith(ending):
            return write(encoder, hidden, pooled)
    return []


def _sequence_classification(encoder: Encoder, hidden: str, pooled: str | None) -> list[Output]:
    head, writer, size = encoder.config.family.classifier, encoder.writer, encoder.config.hidden
    if f"{head.output}.weight" not in writer.checkpoint:
        return []
    if head.dense is None:
        first = pooled if pooled is not None else encoder.pooled(hidden)
    else:
        first = writer.first_token(hidden, head.dense)
        first = writer.linear(first, head.dense, size, size)
        first = writer.activation(first, head.activation, head.dense)
    logits = writer.linear(first, head.output, size, None)
    return [Output("logits", logits, ("batch", _width(encoder, head.output)))]


def _token_classification(encoder: Encoder, hidden: str, pooled: str | None) -> list[Output]:
    if f"{_LABELS}.weight" not in encoder.writer.checkpoint:
        return []
    logits = encoder.writer.linear(hidden, _LABELS, encoder.config.hidden, None)
    return [Output("logits", logits, ("batch", "sequence", _width(encoder, _LABELS)))]


def _question_answering(encoder: Encoder, hidden: str, pooled: str | None) -> list[Output]:
    writer = encoder.writer
    if f"{_SPANS}.weight" not in writer.checkpoint:
        return []
    both = writer.linear(hidden, _SPANS, encoder.config.hidden, 2)
    columns = (writer.constant("zero", 0), writer.constant("one", 1))
    values = [writer.node("Gather", [both, column], _SPANS, axis=2) for column in columns]
    names = ("start_logits", "end_logits")
    return [
        Output(name, value, ("batch", "sequence"))
        for name, value in zip(names, values, strict=True)
    ]


def _masked_lm(encoder: Encoder, hidden: str, pooled: str | None) -> list[Output]:
    config, head, writer = encoder.config, encoder.config.family.masked_lm, encoder.writer
    if f"{head.dense}.weight" not in writer.checkpoint:
        return []
    x = writer.linear(hidden, head.dense, config.hidden, config.embedding)
    x = writer.activation(x, head.activation or config.activation, head.dense)
    x = writer.layer_norm(x, head.norm, config.embedding, config.epsilon)
    own = f"{head.decoder}.weight"
    table = own if own in writer.checkpoint else encoder.word_embeddings
    bias = writer.first_present(*head.biases)
    logits = writer.dense(x, table, bias, config.embedding, config.vocabulary)
    return [Output("logits", logits, ("batch", "sequence", config.vocabulary))]


def _width(encoder: Encoder, path: str) -> int:
    return int(encoder.writer.weights[f"{path}.weight"].shape[0])


_HEADS: dict[str, Callable[[Encoder, str, str | None], list[Output]]] = {
    "ForSequenceClassification": _sequence_classification,
    "ForTokenClassification": _token_classification,
    "ForQuestionAnswering": _question_answering,
    "ForMaskedLM": _masked_lm,
}
